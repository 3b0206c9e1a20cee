from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from serving.base.fingerprint import Fingerprint
from serving.core.servable import AspiredVersion
from serving.core.version_selection import All, Latest, Specific, VersionSelection
from serving.source.found_versions import (
    SelectionInputs,
    SourceState,
    after_unreadable,
    decide,
    is_as_found,
    next_comparison_seconds,
    next_poll_seconds,
    not_yet_found,
    select_again,
    to_compare,
    to_observe,
    with_comparison,
)
from serving.source.listing import VERSION_MAX, Child, Listing, version_directories
from serving.source.notes import Note
from serving.source.settling import (
    RECHECK_NS,
    SETTLE_NS,
    Candidate,
    Instant,
    after_check,
    needs_check,
    observe,
    settles_in_ns,
)

WALL_NS = 1_700_000_000 * NS_PER_SECOND
NOW = Instant(now_ns=1_000 * NS_PER_SECOND, wall_ns=WALL_NS)
OLD = Fingerprint((("", 0, WALL_NS - SETTLE_NS, 0), ("saved_model.pb", 10, WALL_NS - SETTLE_NS, 0)))
HALF_COPIED = Fingerprint(OLD.entries[:1])
FRESH = Fingerprint((("", 0, WALL_NS - 1, 0), ("saved_model.pb", 10, WALL_NS - 2, 0)))
FUTURE = Fingerprint((("", 0, WALL_NS + 3_600 * NS_PER_SECOND, 0),))


def later(seconds: float, start: Instant = NOW) -> Instant:
    passed_ns = round(seconds * NS_PER_SECOND)
    return Instant(start.now_ns + passed_ns, start.wall_ns + passed_ns)


def directories(*names: str) -> Listing:
    return Listing(tuple(Child(name, is_directory=True) for name in names))


def events(notes: frozenset[Note]) -> list[str]:
    return sorted(note.event for note in notes)


# --- Names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1", "0", "001", "20261121", str(VERSION_MAX)])
def test_version_directories_takes_decimal_names(name: str) -> None:
    assert version_directories(directories(name)) == ({int(name): name}, frozenset())


@pytest.mark.parametrize(
    "name", ["", "v1", "1.denied", "-1", "+1", " 1", "1_0", "0x1", "1.0", "tmp", "١", "²"]
)
def test_version_directories_skip_other_names_silently(name: str) -> None:
    found, notes = version_directories(directories(name, "7"))
    assert (found, notes) == ({7: "7"}, frozenset())


@pytest.mark.parametrize("name", ["v1", "ctr", "1.denied"])
def test_version_directories_explain_other_names(name: str) -> None:
    found, notes = version_directories(directories(name), base_path="/models")
    (note,) = notes
    values = dict(note.values)
    assert (found, note.level, values["directories"]) == ({}, "info", name)
    assert "like /models/1" in str(values["remedy"])


@pytest.mark.parametrize("names", [(), (".8",)])
def test_version_directories_empty_path_has_no_hint(
    names: tuple[str, ...],
) -> None:
    assert version_directories(directories(*names)) == ({}, frozenset())


def test_version_directories_note_numeric_file() -> None:
    listing = Listing((Child("1", is_directory=True), Child("2", is_directory=False)))
    found, notes = version_directories(listing)
    assert found == {1: "1"}
    assert events(notes) == ["numeric_file_ignored"]


def test_version_directories_note_dangling_link() -> None:
    listing = Listing((Child("2", is_directory=False, is_link=True),))
    (note,) = version_directories(listing)[1]
    assert note.event == "numeric_file_ignored"
    assert dict(note.values)["remedy"] == "let the link lead to a directory"


def test_version_directories_note_number_above_int64() -> None:
    found, notes = version_directories(directories(str(VERSION_MAX + 1)))
    assert found == {}
    assert events(notes) == ["version_above_int64_ignored"]


@pytest.mark.parametrize("names", [("001", "1"), ("1", "001"), ("01", "1", "001")])
def test_version_directories_prefer_canonical_spelling(names: tuple[str, ...]) -> None:
    found, notes = version_directories(directories(*names))
    assert found == {1: "1"}
    assert set(events(notes)) == {"duplicate_version_ignored"}


def test_version_directories_duplicate_keeps_spelling() -> None:
    assert version_directories(directories("001", "1"), {1: "001"})[0] == {1: "001"}


def test_version_directories_drop_removed_spelling() -> None:
    assert version_directories(directories("1"), {1: "001"})[0] == {1: "1"}


@pytest.mark.parametrize("name", ["saved_model.pb", "saved_model.pbtxt"])
def test_version_directories_version_path_names_parent(name: str) -> None:
    listing = Listing((Child("variables", is_directory=True), Child(name, is_directory=False)))
    (note,) = version_directories(listing, base_path="/models/ctr/7")[1]
    assert (note.event, note.level) == ("base_path_is_a_version", "warning")
    assert "give /models/ctr as the base path" in str(dict(note.values)["remedy"])


def test_version_directories_bare_model_has_a_hint() -> None:
    listing = Listing((Child("saved_model.pb", is_directory=False),))
    (note,) = version_directories(listing, base_path="/models/ctr")[1]
    assert "/models/ctr/1" in str(dict(note.values)["remedy"])


def test_version_directories_ignores_model_beside_them() -> None:
    files = (Child("saved_model.pb", is_directory=False), Child("7", is_directory=True))
    assert version_directories(Listing(files)) == ({7: "7"}, frozenset())


def test_version_directories_prefers_directory_to_file() -> None:
    listing = Listing((Child("1", is_directory=False), Child("001", is_directory=True)))
    assert version_directories(listing)[0] == {1: "001"}


# --- Settling -------------------------------------------------------------------------------------


def test_old_candidate_settles_at_first_sight() -> None:
    assert settles_in_ns(observe(None, "/m/1", OLD, NOW), NOW) == 0


def test_fresh_candidate_settles_once_old_enough() -> None:
    assert settles_in_ns(observe(None, "/m/1", FRESH, NOW), NOW) == SETTLE_NS - 1


def test_future_candidate_settles_by_observation() -> None:
    candidate = observe(None, "/m/1", FUTURE, NOW)
    assert settles_in_ns(candidate, NOW) == SETTLE_NS
    assert settles_in_ns(candidate, later(1)) == 0


def test_candidate_that_changes_starts_over() -> None:
    before = after_check(observe(None, "/m/1", FUTURE, NOW), "no index", NOW)
    grown = Fingerprint((*FUTURE.entries, ("variables", 4096, WALL_NS, 0)))
    after = observe(before, "/m/1", grown, later(1))
    assert (after.unchanged_since_ns, after.reason) == (later(1).now_ns, "")


def test_candidate_that_does_not_change_is_remembered() -> None:
    before = after_check(observe(None, "/m/1", FRESH, NOW), "no index", NOW)
    assert observe(before, "/m/1", FRESH, later(5)) is before


def test_needs_check_waits_until_settled() -> None:
    candidate = observe(None, "/m/1", FRESH, NOW)
    assert not needs_check(candidate, NOW)
    assert needs_check(candidate, later(1))


def test_needs_check_again_only_after_a_while() -> None:
    candidate = after_check(observe(None, "/m/1", OLD, NOW), "no index", NOW)
    assert not needs_check(candidate, later(1))
    assert needs_check(candidate, later(RECHECK_NS / NS_PER_SECOND))


def lacking(fingerprint: Fingerprint, now: Instant, wait_seconds: float = 30) -> Candidate:
    return after_check(
        observe(None, "/m/1", fingerprint, NOW),
        "",
        now,
        missing_assets=("assets/words.txt",),
        asset_wait_ns=round(wait_seconds * NS_PER_SECOND),
    )


@pytest.mark.parametrize(
    ("fingerprint", "checked_after_seconds", "is_complete"),
    # OLD has been still for one second longer than the watching time, FUTURE for exactly that time.
    [(OLD, 28.9, False), (OLD, 29, True), (FUTURE, 29.9, False), (FUTURE, 30, True)],
)
def test_candidate_missing_asset_waits_until_still(
    fingerprint: Fingerprint, checked_after_seconds: float, is_complete: bool
) -> None:
    assert lacking(fingerprint, later(checked_after_seconds)).is_complete == is_complete


def test_candidate_missing_asset_is_checked_last() -> None:
    candidate = lacking(OLD, later(27))
    assert not needs_check(candidate, later(28.9))
    assert needs_check(candidate, later(29))


def test_decide_names_three_missing_assets_of_many() -> None:
    names = tuple(f"assets/{number}" for number in range(5))
    candidate = after_check(observe(None, "/m/1", OLD, NOW), "", later(60), missing_assets=names)
    memory = decide(SourceState(), {1: "/m/1"}, {1: candidate}, SelectionInputs(), later(60))
    (note,) = memory.notes
    assert dict(note.values)["files"] == "assets/0, assets/1, assets/2 and 2 more"


def test_decide_keeps_missing_asset_note_while_found() -> None:
    memory = decide(
        SourceState(), {1: "/m/1"}, {1: lacking(OLD, later(30))}, SelectionInputs(), later(30)
    )
    again = decide(memory, {1: "/m/1"}, {}, SelectionInputs(), later(31))
    assert events(memory.notes) == events(again.notes) == ["asset_missing"]
    gone = decide(again, {2: "/m/2"}, {2: checked_old(2)}, SelectionInputs(), later(32))
    assert (set(gone.found), gone.notes, gone.missing_assets) == ({2}, frozenset(), {})


def test_last_version_may_go_beside_a_blocked_one() -> None:
    inputs = SelectionInputs(blocked=frozenset({2}))
    both = {1: "/m/1", 2: "/m/2"}
    memory = decide(SourceState(), both, {1: checked_old(1), 2: checked_old(2)}, inputs, NOW)
    assert [item.version for item in memory.aspired or ()] == [1]
    gone = decide(memory, {2: "/m/2"}, {}, inputs, later(1))
    assert [item.version for item in gone.aspired or ()] == [1], "it serves on"
    assert events(gone.notes) == ["last_version_gone_from_disk"]
    assert next_comparison_seconds(gone, 1, later(1)) > 0
    back = decide(gone, both, {1: checked_old(1)}, inputs, later(2))
    assert events(back.notes) == []


def checked_old(version: int) -> Candidate:
    return after_check(observe(None, f"/m/{version}", OLD, NOW), "", NOW)


# --- Time of the next look ------------------------------------------------------------------------


def memory_with(*fingerprints: Fingerprint) -> SourceState:
    candidates = {
        version: observe(None, f"/m/{version}", fingerprint, NOW)
        for version, fingerprint in enumerate(fingerprints)
    }
    return SourceState(candidates=candidates)


@pytest.mark.parametrize(
    ("memory", "period_seconds", "expected"),
    [
        (SourceState(), 60, 60),
        (SourceState(), 0.25, 0.25),
        (SourceState(), 0, None),
        (memory_with(FUTURE), 60, 1),
        (memory_with(FUTURE), 0.25, 0.25),
        (memory_with(FUTURE), 0, 1),
        (memory_with(OLD), 60, 60),
        (memory_with(OLD), 0, None),
        (memory_with(OLD, FUTURE), 60, 1),
        (SourceState(candidates={1: lacking(OLD, NOW)}), 60, 29),
        (SourceState(candidates={1: lacking(OLD, NOW)}), 0, 29),
        (SourceState(candidates={1: lacking(OLD, later(30))}), 0, None),
    ],
)
def test_next_poll_comes_when_candidate_may_settle(
    memory: SourceState, period_seconds: float, expected: float | None
) -> None:
    assert next_poll_seconds(memory, period_seconds, NOW) == expected


# --- Deciding -------------------------------------------------------------------------------------


@dataclass
class Disk:
    """A base path whose contents a test sets; every directory on it has settled."""

    selection: VersionSelection = Latest(1)
    blocked: frozenset[int] = frozenset()
    keeps_last: bool = True
    memory: SourceState = field(default_factory=SourceState)
    now: Instant = NOW
    # The files of each version; versions that are not in here have never changed.
    contents: dict[int, Fingerprint] = field(default_factory=dict)

    @property
    def wanted(self) -> SelectionInputs:
        return SelectionInputs(
            selection=self.selection, blocked=self.blocked, keeps_last=self.keeps_last
        )

    def aspired(self) -> list[int]:
        return [version.version for version in self.memory.aspired or ()]

    def change(self, version: int) -> None:
        """Changes the bytes in the files of `version`, like a copy that keeps size and mtime."""
        (*head, ctime_ns) = self.contents.get(version, OLD).entries[1]
        file = (*head, ctime_ns + 1)
        self.contents[version] = Fingerprint((OLD.entries[0], file))  # type: ignore[arg-type]

    def move_away_and_back(self, version: int) -> None:
        """Keeps the files and changes the ctime of their directory, as a move does."""
        (own, *files) = self.contents.get(version, OLD).entries
        self.contents[version] = Fingerprint(((*own[:3], own[3] + 1), *files))

    def poll(
        self,
        *versions: int,
        incomplete: Mapping[int, str] | None = None,
        failed: Collection[int] = (),
    ) -> list[int]:
        """Runs one poll that sees `versions`; returns the aspired ones."""
        self.now = later(RECHECK_NS / NS_PER_SECOND, self.now)
        files = {**self.contents, **dict.fromkeys(incomplete or {}, HALF_COPIED)}
        on_disk = {version: f"/m/{version}" for version in versions}
        candidates = {
            version: after_check(
                observe(self.memory.candidates.get(version), directory, seen, self.now),
                (incomplete or {}).get(version, ""),
                self.now,
            )
            for version, directory in to_observe(self.memory, on_disk, failed, self.blocked).items()
            if not is_as_found(self.memory, version, directory, seen := files.get(version, OLD))
        }
        live = to_compare(self.memory, on_disk, failed, self.now)
        seen_now = {version: files.get(version, OLD) for version in live}
        memory = with_comparison(self.memory, seen_now, self.now)
        self.memory = decide(memory, on_disk, candidates, self.wanted, self.now)
        return self.aspired()


def test_decide_nothing_found_aspires_nothing_at_all() -> None:
    disk = Disk()
    disk.poll()
    assert disk.memory.aspired is None
    assert events(disk.memory.notes) == ["no_version_in_base_path"]


def test_decide_version_not_yet_checked_is_not_found() -> None:
    candidate = observe(None, "/m/1", FRESH, NOW)
    memory = decide(SourceState(), {1: "/m/1"}, {1: candidate}, SelectionInputs(), NOW)
    assert (memory.found, memory.aspired) == ({}, None)
    assert events(memory.notes) == ["version_settling"]


def test_decide_incomplete_version_keeps_older_one() -> None:
    disk = Disk()
    disk.poll(1)
    assert disk.poll(1, 2, incomplete={2: "no index"}) == [1]
    assert events(disk.memory.notes) == ["version_incomplete"]


def test_decide_completed_version_is_aspired() -> None:
    disk = Disk()
    disk.poll(1, 2, incomplete={2: "no index"})
    assert disk.poll(1, 2) == [2]


def test_decide_keeps_last_version_until_next_is_ready() -> None:
    disk = Disk()
    disk.poll(1)
    assert disk.poll(2, incomplete={2: "no index"}) == [1]
    assert disk.poll(2) == [2]


def test_decide_returned_unchanged_version_is_not_new() -> None:
    disk = Disk()
    disk.poll(1)
    before = disk.memory.found
    disk.poll()
    disk.move_away_and_back(1)
    assert disk.poll(1) == [1]
    assert (disk.memory.found, disk.memory.missing) == (before, frozenset())
    assert (disk.memory.candidates, disk.memory.notes) == ({}, frozenset())
    assert disk.poll(1) == [1]
    assert disk.memory.found == before


def test_decide_returning_failed_version_is_found_anew() -> None:
    disk = Disk()
    disk.poll(1)
    before = disk.memory.found[1]
    disk.poll(failed={1})
    disk.poll(1, failed={1})
    assert disk.memory.found[1].found_at_ns > before.found_at_ns


def test_decide_returned_changed_version_is_new() -> None:
    disk = Disk()
    disk.poll(1)
    before = disk.memory.found[1]
    disk.poll()
    disk.change(1)
    assert disk.poll(1, incomplete={1: "half copied"}) == [1]
    assert disk.memory.found[1] == before
    assert disk.poll(1) == [1]
    assert disk.memory.found[1].found_at_ns > before.found_at_ns


def test_decide_moved_version_is_found_anew() -> None:
    memory = SourceState(found={1: AspiredVersion(version=1, directory="/m/001")})
    assert not_yet_found(memory, {1: "/m/1"}) == {1: "/m/1"}


# --- Mending in place -----------------------------------------------------------------------------


def test_decide_incomplete_failed_version_stays() -> None:
    disk = Disk()
    disk.poll(1)
    before = disk.memory.found
    disk.change(1)
    assert disk.poll(1, failed={1}, incomplete={1: "no index"}) == [1]
    assert disk.memory.found == before
    assert events(disk.memory.notes) == ["version_incomplete"]
    disk.poll(1, failed={1})
    assert disk.memory.found != before


def test_decide_unchanged_failed_version_stays_failed() -> None:
    disk = Disk()
    disk.poll(1)
    before = disk.memory
    disk.change(1)
    disk.poll(1, failed={1}, incomplete={1: "no index"})
    disk.contents.clear()
    disk.poll(1, failed={1})
    assert disk.memory == before


def test_decide_version_changed_in_load_is_new_later() -> None:
    disk = Disk()
    disk.poll(1)
    before = disk.memory.found
    disk.change(1)
    disk.poll(1)
    assert disk.memory.found == before
    disk.poll(1, failed={1})
    assert disk.memory.found != before


@pytest.mark.parametrize(
    ("failed", "expected"), [(set(), {3}), ({1}, {3}), ({2}, {2, 3}), ({2, 7}, {2, 3})]
)
def test_to_observe_takes_unfound_and_failed_versions(failed: set[int], expected: set[int]) -> None:
    disk = Disk(Latest(1))
    disk.poll(1, 2)
    on_disk = {version: f"/m/{version}" for version in (1, 2, 3)}
    assert set(to_observe(disk.memory, on_disk, failed)) == expected


def test_is_as_found_in_another_directory_is_not() -> None:
    disk = Disk()
    disk.poll(1)
    assert is_as_found(disk.memory, 1, "/m/1", OLD)
    assert not is_as_found(disk.memory, 1, "/m/001", OLD)
    assert not is_as_found(disk.memory, 1, "/m/1", FRESH)


def test_decide_forgets_fingerprint_of_removed_version() -> None:
    disk = Disk()
    disk.poll(1, 2)
    disk.poll(1)
    assert set(disk.memory.fingerprints) == {1}


# --- Selections -----------------------------------------------------------------------------------


def test_decide_reports_missing_specific_version() -> None:
    disk = Disk(Specific(frozenset({1, 7})))
    assert disk.poll(1, 2) == [1]
    assert disk.memory.notes == {Note.of("specific_version_not_found", versions=(7,))}


def not_found(state: SourceState) -> set[Note]:
    return {note for note in state.notes if note.event == "specific_version_not_found"}


def test_specific_version_that_is_there_is_not_missing() -> None:
    disk = Disk(Specific(frozenset({1, 2, 7})))
    # No poll yet, as when blocked versions of an earlier process are restored.
    assert not_found(select_again(disk.memory, disk.wanted)) == set()
    settling = decide(
        disk.memory,
        {1: "/m/1", 2: "/m/2"},
        {1: observe(None, "/m/1", FRESH, NOW)},
        disk.wanted,
        NOW,
    )
    assert not_found(settling) == {Note.of("specific_version_not_found", versions=(7,))}


def test_specific_version_is_missed_by_new_listings() -> None:
    disk = Disk(Specific(frozenset({1, 7})))
    disk.poll(1, 2)
    # 8 may have come since the poll, 7 had not come at the poll.
    wanted = replace(disk.wanted, selection=Specific(frozenset({1, 7, 8})))
    again = select_again(disk.memory, wanted)
    assert not_found(again) == {Note.of("specific_version_not_found", versions=(7,))}
    polled = decide(again, {1: "/m/1", 2: "/m/2"}, {}, wanted, NOW)
    assert not_found(polled) == {Note.of("specific_version_not_found", versions=(7, 8))}


@given(
    st.sets(st.integers(1, 6)),
    st.sets(st.integers(1, 6), min_size=1),
    st.sets(st.integers(1, 6)),
    st.none() | st.frozensets(st.integers(1, 6)),
)
def test_version_with_a_directory_is_never_missed(
    on_disk: set[int], selected: set[int], settling: set[int], granted: frozenset[int] | None
) -> None:
    wanted = SelectionInputs(selection=Specific(frozenset(selected)), granted=granted)
    directories = {version: f"/m/{version}" for version in on_disk}
    candidates = {
        version: observe(None, f"/m/{version}", FRESH, NOW) for version in settling & on_disk
    }
    state = decide(SourceState(), directories, candidates, wanted, NOW)
    absent = tuple(sorted(selected - on_disk))
    expected = {Note.of("specific_version_not_found", versions=absent)} if absent else set()
    assert not_found(state) == expected


def test_decide_keeps_only_specific_version_once_gone() -> None:
    disk = Disk(Specific(frozenset({2})))
    disk.poll(1, 2)
    assert disk.poll(1) == [2]


def test_decide_empty_selection_unloads_everything() -> None:
    disk = Disk(All())
    disk.poll(1, 2)
    disk.selection = Specific(frozenset())
    assert disk.poll(1, 2) == []
    assert disk.memory.aspired == ()


def test_decide_gone_version_waits_for_its_successor() -> None:
    disk = Disk(keeps_last=False)
    disk.poll(1)
    assert disk.poll(2, incomplete={2: "no index"}) == [1]
    assert disk.memory.missing == {1}
    assert disk.poll(2, incomplete={2: "no index"}) == [1]
    assert disk.poll(2) == [2]


def test_decide_gone_version_and_successor_unload() -> None:
    disk = Disk(keeps_last=False)
    disk.poll(1)
    disk.poll(2, incomplete={2: "no index"})
    assert disk.poll() == []


def test_decide_gone_specific_version_stays() -> None:
    disk = Disk(Specific(frozenset({2})), keeps_last=False)
    disk.poll(1, 2)
    assert disk.poll(1) == [2]
    assert disk.poll() == []


def test_decide_never_filled_base_path_omits_nothing() -> None:
    disk = Disk(keeps_last=False)
    disk.poll()
    assert disk.memory.aspired is None


def test_decide_blocked_version_falls_back() -> None:
    disk = Disk()
    disk.poll(1, 2)
    disk.blocked = frozenset({2})
    assert disk.poll(1, 2) == [1]
    assert disk.poll(1, 2, 3) == [3]


def test_decide_blocked_specific_version_not_missing() -> None:
    disk = Disk(Specific(frozenset({1, 2})), blocked=frozenset({2}))
    assert disk.poll(1, 2) == [1]
    assert disk.memory.notes == frozenset()


def test_decide_last_blocked_version_stays_with_note() -> None:
    disk = Disk()
    disk.poll(2)
    disk.blocked = frozenset({2})
    assert disk.poll(2) == [2]
    assert events(disk.memory.notes) == ["last_version_blocked"]


def test_select_again_agrees_with_next_poll() -> None:
    disk = Disk(All())
    disk.poll(1, 2, incomplete={2: "no index"})
    disk.poll(1, 3, 4, incomplete={4: "no index"})
    disk.selection, disk.blocked = Specific(frozenset({1, 3, 7})), frozenset({3})
    after = select_again(disk.memory, disk.wanted, is_just_listed=True)
    disk.poll(1, 3, 4, incomplete={4: "no index"})
    assert replace(after, candidates=disk.memory.candidates) == replace(
        disk.memory, looked_at_ns=after.looked_at_ns
    )


def test_decide_forgets_overwrite_once_files_return() -> None:
    disk = Disk()
    disk.poll(1)
    disk.change(1)
    disk.poll(1)
    disk.contents.clear()
    disk.poll(1)
    assert (disk.memory.overwritten, disk.memory.notes) == (frozenset(), frozenset())


def test_decide_overwritten_then_failed_is_found_anew() -> None:
    disk = Disk()
    disk.poll(1)
    disk.change(1)
    disk.poll(1)
    disk.poll(1, failed={1})
    assert disk.memory.overwritten == frozenset()
    assert disk.memory.found[1].found_at_ns == disk.now.now_ns


@pytest.mark.parametrize(
    ("after_seconds", "failed", "expected"),
    [(9, set(), set()), (10, set(), {2}), (10, {2}, set()), (10, {1}, {2})],
)
def test_to_compare_takes_live_versions_every_10_s(
    after_seconds: int, failed: set[int], expected: set[int]
) -> None:
    disk = Disk(Latest(1))
    disk.poll(1, 2)
    on_disk = {version: f"/m/{version}" for version in (1, 2, 3)}
    now = later(after_seconds, disk.now)
    assert set(to_compare(disk.memory, on_disk, failed, now)) == expected


def test_unreadable_base_path_changes_only_notes() -> None:
    disk = Disk()
    disk.poll(1, 2, incomplete={2: "no index"})
    after = after_unreadable(disk.memory, "permission denied")
    assert replace(after, notes=disk.memory.notes) == disk.memory
    assert events(after.notes) == ["base_path_unreadable", "version_incomplete"]


def test_unreadable_base_path_updates_its_reason() -> None:
    after = after_unreadable(after_unreadable(SourceState(), "gone"), "permission denied")
    assert after.notes == {Note.of("base_path_unreadable", reason="permission denied")}


# --- Any sequence of polls ------------------------------------------------------------------------

POLLS = st.lists(st.tuples(st.frozensets(st.integers(1, 4)), st.frozensets(st.integers(1, 4))))


@given(POLLS, st.sampled_from([Latest(1), Latest(2), All(), Specific(frozenset({1, 3}))]))
def test_decide_never_drops_all_aspired_versions(
    polls: list[tuple[frozenset[int], frozenset[int]]], selection: VersionSelection
) -> None:
    disk = Disk(selection)
    aspired: list[int] = []
    for on_disk, incomplete in polls:
        before, aspired = aspired, disk.poll(*on_disk, incomplete=dict.fromkeys(incomplete, "x"))
        assert aspired or not before


@given(POLLS)
def test_decide_aspires_all_that_is_found_and_on_disk(
    polls: list[tuple[frozenset[int], frozenset[int]]],
) -> None:
    disk = Disk(All())
    for on_disk, incomplete in polls:
        kept = on_disk.intersection(disk.memory.found) - disk.memory.missing
        aspired = set(disk.poll(*on_disk, incomplete=dict.fromkeys(incomplete, "x")))
        expected = kept | (on_disk - incomplete)
        assert aspired == expected or (not expected and not aspired & on_disk - incomplete)


@given(POLLS)
def test_decide_skips_never_complete_version(
    polls: list[tuple[frozenset[int], frozenset[int]]],
) -> None:
    disk = Disk(All())
    complete: set[int] = set()
    for on_disk, incomplete in polls:
        complete |= on_disk - incomplete
        assert set(disk.poll(*on_disk, incomplete=dict.fromkeys(incomplete, "x"))) <= complete


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 2))))
def test_candidate_is_checked_after_the_settle_time(
    looks: list[tuple[int, float]],
) -> None:
    now, changed_at, candidate, content = NOW, NOW, None, None
    for size, seconds in looks:
        now = later(seconds, now)
        if size != content:
            changed_at, content = now, size
        seen = Fingerprint((("f", size, FUTURE.mtime_ns_newest, 0),))
        candidate = observe(candidate, "/m/1", seen, now)
        if needs_check(candidate, now):
            assert now.now_ns - changed_at.now_ns >= SETTLE_NS


CHANGES = st.lists(
    st.tuples(
        *[st.frozensets(st.integers(1, 4))] * 4  # on disk, incomplete, failed, changed before it
    )
)


@given(CHANGES, st.sampled_from([Latest(1), All()]))
def test_decide_finds_anew_only_mended_versions(
    polls: list[tuple[frozenset[int], ...]], selection: VersionSelection
) -> None:
    disk = Disk(selection)
    for on_disk, incomplete, failed, changed in polls:
        for version in changed:
            disk.change(version)
        before = disk.memory
        disk.poll(*on_disk, incomplete=dict.fromkeys(incomplete, "x"), failed=failed)
        aspired = {item.version for item in before.aspired or ()}
        for version in on_disk & set(before.found) - before.missing:
            is_changed = disk.contents.get(version, OLD) != before.fingerprints[version]
            is_anew = disk.memory.found[version] != before.found[version]
            assert is_anew == (is_changed and version in (failed & aspired) - incomplete)
        assert set(disk.memory.fingerprints) == set(disk.memory.found)


def test_candidate_complete_only_after_a_check() -> None:
    candidate = Candidate(directory="/m/1", fingerprint=OLD, unchanged_since_ns=0)
    assert not candidate.is_complete
    assert after_check(candidate, "", NOW).is_complete
    assert not after_check(candidate, "no index", NOW).is_complete


def test_decide_notes_only_blocked_versions_at_start() -> None:
    disk = Disk(blocked=frozenset({2, 3}))
    assert disk.poll(2) == []
    (note,) = disk.memory.notes
    assert (note.event, dict(note.values)["versions"]) == ("only_blocked_versions_found", (2,))
    assert disk.poll(1, 2) == [1]
    assert disk.memory.notes == frozenset()


def test_blocked_failed_version_is_found_once_mended() -> None:
    disk = Disk(blocked=frozenset({2}))
    disk.poll(1, 2, failed={2})
    before = disk.memory.found[2]
    disk.poll(1, 2, failed={2})
    assert disk.memory.found[2] == before
    disk.change(2)
    disk.poll(1, 2, failed={2})
    assert disk.memory.found[2].found_at_ns > before.found_at_ns
    assert disk.aspired() == [1]


def test_blocked_sound_version_is_not_observed() -> None:
    disk = Disk(blocked=frozenset({2}))
    disk.poll(1, 2)
    assert to_observe(disk.memory, {1: "/m/1", 2: "/m/2"}, {3}, frozenset({2})) == {}


def test_member_of_a_fleet_selects_only_granted() -> None:
    inputs = SelectionInputs(granted=frozenset({1}))
    assert inputs.select([1, 2, 3]).versions == (1,)
    assert replace(inputs, blocked=frozenset({1})).select([1, 2]).versions == ()
    assert SelectionInputs().select([1, 2, 3]).versions == (3,)

import os
import random
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.base.clock import NS_PER_SECOND, SystemClock, pause, seconds_since
from serving.base.errors import DataLoss, FailedPrecondition, PermissionDenied
from serving.base.fingerprint import Fingerprint, fingerprint
from serving.core.label_targets import NO_LABELS, NOT_FOUND, NOT_SELECTED
from serving.core.servable import AspiredVersion
from serving.core.version_selection import All, Latest, Specific, VersionSelection
from serving.source.file_system_source import (
    FileSystemSource,
    SourceListener,
    SourceSettings,
    list_children,
)
from serving.source.glance import Sight
from serving.source.listing import Listing
from serving.source.notes import Note
from serving.source.poll_schedule import PollLimits
from serving.source.poller_pool import Pollable, PollerPool
from serving.source.settling import RECHECK_NS, SETTLE_NS
from tests.unit.fakes.clocks import FakeClock

TIMEOUT_SECONDS = 60


class Aspirations(SourceListener):
    """Records every aspired list that a source has set, and answers as the model's status."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lists: list[list[int]] = []
        # The blocked versions that each list was made without.
        self.left_out: list[frozenset[int]] = []
        self.found_at_ns: list[int] = []
        self.directories: dict[int, str] = {}
        # The directories of the last list.
        self.current: dict[int, str] = {}
        # The model's status; set by a test.
        self.failed: set[int] = set()
        self.lost: dict[int, int] = {}
        self.available: set[int] = set()
        self.labels: dict[str, int] = {}
        # The versions of all calls, aspired or not.
        self.anew: list[int] = []
        self.seen: list[tuple[set[int], set[int]]] = []

    def found_anew(self, name: str, version: int, files: Fingerprint | None) -> None:
        assert name == self.name
        self.anew.append(version)

    def versions_seen(self, name: str, on_disk: frozenset[int], watched: frozenset[int]) -> None:
        assert name == self.name
        self.seen.append((set(on_disk), set(watched)))

    def set_aspired(
        self, name: str, versions: Sequence[AspiredVersion], left_out: frozenset[int]
    ) -> None:
        assert name == self.name
        self.left_out.append(left_out)
        self.lists.append([version.version for version in versions])
        self.found_at_ns.append(max((version.found_at_ns for version in versions), default=0))
        self.current = {version.version: version.directory for version in versions}
        self.directories.update(self.current)

    def failed_versions(self, name: str) -> set[int]:
        assert name == self.name
        return self.failed

    def lost_versions(self, name: str) -> dict[int, int]:
        assert name == self.name
        return self.lost

    def available_versions(self, name: str) -> set[int]:
        assert name == self.name
        return self.available

    def labels_in_effect(self, name: str) -> dict[str, int]:
        assert name == self.name
        return self.labels


def check(directory: str) -> list[str]:
    path = Path(directory, "saved_model.pb")
    if not path.exists():
        raise FailedPrecondition("saved_model.pb is missing")
    if path.read_bytes() == b"noise":
        raise DataLoss("saved_model.pb does not parse")
    if path.read_bytes() == b"secret":
        raise PermissionDenied("saved_model.pb: Permission denied")
    needs_words = path.read_bytes() == b"graph of words"
    return ["assets/words.txt"] if needs_words and not (path.parent / "words.txt").exists() else []


class FakePollers(PollerPool):
    """Polls one source on the caller's thread."""

    def __init__(self, clock: FakeClock) -> None:
        self._test_clock = clock
        self.group = ""
        self._source: Pollable | None = None
        self._is_due = False
        self._look_count = 0
        self.waits: list[float] = []
        # The directory that is watched, if a test lets it be.
        self.can_watch = False
        self.watched: str | None = None
        self.model_count = 1
        self.tried_count = 0

    def add(self, key: str, group: str, source: Pollable, *, is_due: bool) -> None:
        self.group, self._source, self._is_due = group, source, is_due

    def remove(self, key: str) -> None:
        self._source = None

    def wake(self, key: str, group: str | None = None) -> None:
        self.group, self._is_due = group or self.group, True

    @property
    def source_count(self) -> int:
        return self.model_count

    def watch(self, key: str, directory: str, sight: Sight, period_seconds: float) -> bool:
        self.tried_count += 1
        self.watched = directory if self.can_watch else None
        return self.can_watch

    def forget_watch(self, key: str) -> None:
        self.watched = None

    def wait_until_idle(self, key: str, timeout_seconds: float) -> bool:
        return True

    def look_while_due(self) -> None:
        """Polls until the source is not due any more by itself."""
        while self._is_due and self._source is not None:
            self._is_due = False
            self._look_count += 1
            delay_seconds = self._source.poll(self._look_count)
            if delay_seconds is not None:
                self.waits.append(delay_seconds)
                self._test_clock.advance(delay_seconds)
                self._is_due = True


class Site:
    """A base path with its clock, and what a source of it reports."""

    def __init__(self, path: Path, name: str = "m") -> None:
        self.path = path
        self.clock = FakeClock()
        self.aspirations = Aspirations(name)

    def source(
        self,
        selection: VersionSelection | None = None,
        *,
        base_path: Path | None = None,
        period_seconds: float = 60,
        keeps_last: bool = True,
        labels: Mapping[str, int] = NO_LABELS,
        pollers: PollerPool | None = None,
        missing_asset_wait_seconds: float = 30,
    ) -> FileSystemSource:
        return FileSystemSource(
            self.aspirations.name,
            SourceSettings(
                base_path=str(base_path or self.path),
                selection=selection or All(),
                labels=labels,
                keeps_last=keeps_last,
                period_seconds=period_seconds,
                missing_asset_wait_seconds=missing_asset_wait_seconds,
            ),
            listener=self.aspirations,
            model_status=self.aspirations,
            check=check,
            pollers=pollers or FakePollers(self.clock),
            clock=self.clock,
        )

    def drop(self, name: str, *, age_seconds: float = 60, graph: bytes = b"graph") -> Path:
        """Writes a complete version directory whose newest change is `age_seconds` ago."""
        directory = self.path / name
        directory.mkdir(parents=True)
        (directory / "saved_model.pb").write_bytes(graph)
        self.set_age(directory, age_seconds)
        return directory

    def set_age(self, directory: Path, age_seconds: float) -> None:
        at_ns = self.clock.wall_ns() - round(age_seconds * 1e9)
        for path in [*directory.rglob("*"), directory]:
            os.utime(path, ns=(at_ns, at_ns))

    def poll_until_settled(self, source: FileSystemSource) -> None:
        """Polls, and polls again once changed files have been seen unchanged for SETTLE_NS."""
        source.poll()
        self.clock.advance(SETTLE_NS / NS_PER_SECOND)
        source.poll()


def copy_again(path: Path, content: bytes) -> None:
    """Writes like `cp -p`: with the former modification time."""
    before = path.stat()
    # It is written repeatedly, because the kernel's clock for ctime ticks a few hundred times a
    # second only.
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def remove(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_source_aspires_old_complete_version_at_once(site: Site) -> None:
    site.drop("7")
    assert site.source().poll() == 60
    assert site.aspirations.lists == [[7]]
    assert site.aspirations.directories == {7: str(site.path / "7")}


def test_source_aspires_fresh_version_once_settled(site: Site) -> None:
    site.drop("7", age_seconds=0.25)
    source = site.source()
    assert source.poll() == 0.75
    site.clock.advance(0.75)
    source.poll()
    assert site.aspirations.lists == [[7]]


def test_source_leaves_out_version_under_copy(site: Site) -> None:
    source = site.source()
    directory = site.drop("7", age_seconds=-3600)
    for size in range(1, 5):
        (directory / "shard").write_bytes(b"x" * size)
        site.set_age(directory, -3600)
        source.poll()
        site.clock.advance(1)
    assert site.aspirations.lists == []
    source.poll()
    assert site.aspirations.lists == [[7]]


def test_source_half_copied_version_waits_for_the_rest(site: Site) -> None:
    (site.path / "7").mkdir()
    site.set_age(site.path / "7", 60)
    source = site.source()
    with capture_logs() as logs:
        source.poll()
        source.poll()
    assert [log["reason"] for log in logs if log["event"] == "version_incomplete"] == [
        "saved_model.pb is missing"
    ]
    (site.path / "7" / "saved_model.pb").write_bytes(b"graph")
    site.set_age(site.path / "7", 30)
    site.poll_until_settled(source)
    assert site.aspirations.lists == [[7]]


def test_source_aspires_broken_beside_sound_version(site: Site) -> None:
    site.drop("6")
    broken = site.drop("7", graph=b"noise", age_seconds=60)
    source = site.source(Latest(1))
    source.poll()
    assert site.aspirations.lists == [[6, 7]]
    site.aspirations.failed = {7}
    (broken / "saved_model.pb").write_bytes(b"graph!")
    site.set_age(broken, 30)
    site.poll_until_settled(source)
    assert site.aspirations.lists == [[6, 7], [7]]


def test_source_aspires_version_it_may_not_read(site: Site) -> None:
    """Its load ends with the error, so that status and page show it."""
    site.drop("7", graph=b"secret", age_seconds=60)
    source = site.source()
    source.poll()
    assert site.aspirations.lists == [[7]]


def test_source_broken_version_that_serves_is_sound(site: Site) -> None:
    """Its files may be repaired between the check and the load."""
    site.drop("6")
    site.drop("7", graph=b"noise", age_seconds=60)
    source = site.source(Latest(1))
    source.poll()
    site.aspirations.available = {6}
    source.poll()
    assert site.aspirations.lists == [[6, 7]]
    site.aspirations.available = {6, 7}
    source.poll()
    assert site.aspirations.lists == [[6, 7], [7]]


def test_source_repair_under_way_is_not_found(site: Site) -> None:
    """A file system may report a truncated file with its old times."""
    site.drop("6")
    broken = site.drop("7", graph=b"noise", age_seconds=60)
    source = site.source(Latest(1))
    source.poll()
    site.aspirations.failed = {7}
    (broken / "saved_model.pb").write_bytes(b"")
    site.set_age(broken, 60)
    source.poll()
    assert site.aspirations.anew == [6, 7]
    (broken / "saved_model.pb").write_bytes(b"graph!")
    site.set_age(broken, 60)
    site.poll_until_settled(source)
    assert (site.aspirations.anew, site.aspirations.lists[-1]) == ([6, 7, 7], [7])


def test_source_broken_file_that_grows_is_not_aspired(site: Site) -> None:
    site.drop("7", graph=b"noise", age_seconds=0)
    source = site.source()
    source.poll()
    assert site.aspirations.lists == []


def drop_without_asset(site: Site, *, age_seconds: float) -> Path:
    return site.drop("7", graph=b"graph of words", age_seconds=age_seconds)


def test_source_aspires_old_version_without_asset(site: Site) -> None:
    drop_without_asset(site, age_seconds=30)
    source = site.source()
    with capture_logs() as logs:
        source.poll()
        source.poll()
    assert site.aspirations.lists == [[7]]
    missing = [log for log in logs if log["event"] == "asset_missing"]
    assert [(log["version"], log["files"]) for log in missing] == [(7, "assets/words.txt")]
    assert [note.event for note in source.notes()] == ["asset_missing"]


@pytest.mark.parametrize("wait_seconds", [5, 30])
def test_source_fresh_version_waits_for_its_asset(site: Site, wait_seconds: float) -> None:
    pollers = FakePollers(site.clock)
    drop_without_asset(site, age_seconds=0)
    source = site.source(
        period_seconds=0,
        pollers=pollers,
        missing_asset_wait_seconds=wait_seconds,
    )
    source.start()
    pollers.look_while_due()
    assert site.aspirations.lists == [[7]]
    assert pollers.waits == [1.0, wait_seconds - 1.0]


def test_source_asset_that_comes_ends_the_wait(site: Site) -> None:
    directory = drop_without_asset(site, age_seconds=1)
    source = site.source()
    source.poll()
    (note,) = source.notes()
    assert note.event == "version_incomplete"
    assert "assets/words.txt is missing" in str(dict(note.values)["reason"])
    assert "after 30 s without a change" in str(dict(note.values)["reason"])
    assert site.aspirations.lists == []
    (directory / "words.txt").write_bytes(b"word")
    site.set_age(directory, 1)
    site.poll_until_settled(source)
    assert (site.aspirations.lists, source.notes()) == ([[7]], [])


def test_source_late_asset_reloads_failed_version(site: Site) -> None:
    directory = drop_without_asset(site, age_seconds=30)
    source = site.source()
    source.poll()
    site.aspirations.failed = {7}
    (directory / "words.txt").write_bytes(b"word")
    site.clock.advance(60)
    site.set_age(directory, 1)
    site.poll_until_settled(source)
    assert site.aspirations.anew == [7, 7]
    assert source.notes() == []


def test_source_same_versions_are_set_once(site: Site) -> None:
    site.drop("7")
    source = site.source()
    source.poll()
    source.poll()
    assert site.aspirations.lists == [[7]]


def test_source_removed_version_is_omitted(site: Site) -> None:
    site.drop("1")
    newer = site.drop("2")
    source = site.source(Latest(1))
    source.poll()
    remove(newer)
    source.poll()
    assert site.aspirations.lists == [[2], [1]]


def test_source_renamed_version_is_withdrawn(site: Site) -> None:
    site.drop("1")
    site.drop("2").rename(site.path / "2.denied")
    site.source().poll()
    assert site.aspirations.lists == [[1]]


@pytest.mark.parametrize("content", [b"mended graph", b"GRAPH"], ids=["other_size", "same_size"])
def test_source_mended_version_is_found_anew_once(site: Site, content: bytes) -> None:
    directory = site.drop("7")
    source = site.source()
    source.poll()
    site.aspirations.failed = {7}
    site.clock.advance(60)
    source.poll()
    assert site.aspirations.lists == [[7]]
    copy_again(directory / "saved_model.pb", content)
    site.poll_until_settled(source)
    source.poll()
    assert site.aspirations.lists == [[7], [7]]


def test_source_mended_version_waits_until_settled(site: Site) -> None:
    directory = site.drop("7")
    source = site.source()
    source.poll()
    site.aspirations.failed = {7}
    (directory / "saved_model.pb").unlink()
    site.set_age(directory, 30)
    source.poll()
    (directory / "saved_model.pb").write_bytes(b"graph")
    site.set_age(directory, 0)
    assert source.poll() == 1
    assert site.aspirations.lists == [[7]]
    site.clock.advance(1)
    source.poll()
    assert site.aspirations.lists == [[7], [7]]


def test_source_compares_live_version_every_10_s(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.drop("7")
    looks: list[str] = []

    def look(directory: str) -> Fingerprint:
        looks.append(Path(directory).name)
        return fingerprint(directory)

    monkeypatch.setattr("serving.source.file_system_source.fingerprint", look)
    source = site.source()
    for _ in range(3):
        source.poll()
    assert looks == ["7"]
    site.clock.advance(RECHECK_NS / NS_PER_SECOND)
    for _ in range(3):
        source.poll()
    assert looks == ["7", "7"]


def test_source_observes_failed_version_in_every_poll(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.drop("7")
    source = site.source()
    source.poll()
    looks: list[str] = []

    def look(directory: str) -> Fingerprint:
        looks.append(Path(directory).name)
        return fingerprint(directory)

    monkeypatch.setattr("serving.source.file_system_source.fingerprint", look)
    site.aspirations.failed = {7}
    for _ in range(3):
        source.poll()
    assert looks == ["7", "7", "7"]


def test_source_emptied_base_path_keeps_version(site: Site) -> None:
    directory = site.drop("1")
    source = site.source()
    source.poll()
    remove(directory)
    with capture_logs() as logs:
        source.poll()
        source.poll()
    assert site.aspirations.lists == [[1]]
    assert [log["event"] for log in logs] == ["last_version_gone_from_disk"]


def test_source_vanished_base_path_keeps_version(site: Site) -> None:
    base_path = site.path / "models"
    site.drop("models/1")
    source = site.source(base_path=base_path)
    source.poll()
    base_path.rename(site.path / "elsewhere")
    with capture_logs() as logs:
        source.poll()
        source.poll()
        (site.path / "elsewhere").rename(base_path)
        source.poll()
    assert site.aspirations.lists == [[1]]
    assert [log["event"] for log in logs] == ["base_path_unreadable", "warning_over"]
    assert str(base_path) in logs[0]["reason"]


def test_source_version_lost_in_a_load_is_found_anew(site: Site) -> None:
    base_path = site.path / "models"
    site.drop("models/1")
    source = site.source(base_path=base_path)
    source.poll()
    base_path.rename(site.path / "elsewhere")
    source.poll()
    site.aspirations.failed, site.aspirations.lost = {1}, {1: site.aspirations.found_at_ns[-1]}
    site.clock.advance(1)
    source.poll()
    assert site.aspirations.lists == [[1]]
    (site.path / "elsewhere").rename(base_path)
    for _ in range(2):
        site.clock.advance(1)
        source.poll()
    assert site.aspirations.lists == [[1], [1]]
    assert site.aspirations.anew == [1, 1]


def test_source_base_path_that_appears_later_is_found(site: Site) -> None:
    source = site.source(base_path=site.path / "models")
    source.poll()
    site.drop("models/1")
    source.poll()
    assert site.aspirations.lists == [[1]]


def test_source_logs_odd_names_once(site: Site) -> None:
    site.drop("1")
    site.drop("001")
    (site.path / "2").write_text("not a directory")
    source = site.source()
    with capture_logs() as logs:
        source.poll()
        source.poll()
    warnings = sorted(log["event"] for log in logs if log["log_level"] == "warning")
    assert warnings == ["duplicate_version_ignored", "numeric_file_ignored"]
    assert site.aspirations.directories == {1: str(site.path / "1")}


def test_source_finds_version_behind_symbolic_link(site: Site) -> None:
    directory = site.drop("store/abc")
    (site.path / "models").mkdir()
    (site.path / "models" / "1").symlink_to(directory)
    site.source(base_path=site.path / "models").poll()
    assert site.aspirations.lists == [[1]]


def test_source_polls_once_with_period_zero(site: Site) -> None:
    site.drop("1")
    assert site.source(period_seconds=0).poll() is None


def test_source_with_period_zero_polls_until_settled(site: Site) -> None:
    pollers = FakePollers(site.clock)
    site.drop("1", age_seconds=0)
    site.source(period_seconds=0, pollers=pollers).start()
    pollers.look_while_due()
    assert site.aspirations.lists == [[1]]
    assert pollers.waits == [1.0]


def test_source_never_polls_with_negative_period(site: Site) -> None:
    pollers = FakePollers(site.clock)
    site.drop("1")
    site.source(period_seconds=-1, pollers=pollers).start()
    pollers.look_while_due()
    assert site.aspirations.lists == []


# --- Changes of the selection ---------------------------------------------------------------------


@pytest.mark.parametrize("period_seconds", [0, -1])
def test_source_without_polls_looks_at_new_selection(site: Site, period_seconds: float) -> None:
    pollers = FakePollers(site.clock)
    source = site.source(Latest(1), period_seconds=period_seconds, pollers=pollers)
    source.start()
    pollers.look_while_due()
    site.drop("1")
    site.drop("2")
    pollers.look_while_due()
    assert site.aspirations.lists == []
    source.set_selection(All())
    pollers.look_while_due()
    assert site.aspirations.lists == [[1, 2]]


def test_source_new_selection_is_aspired_at_once(site: Site) -> None:
    site.drop("1")
    site.drop("2")
    source = site.source(Latest(1))
    source.poll()
    source.set_selection(Specific(frozenset({1})))
    assert site.aspirations.lists == [[2], [1]]


def test_source_selectable_versions_follow_selection(site: Site) -> None:
    for name in ("1", "2", "3"):
        site.drop(name)
    source = site.source(Latest(1))
    source.poll()
    assert source.selectable_versions() == {1, 2, 3}
    source.set_selection(Specific(frozenset({2, 9})))
    assert source.selectable_versions() == {2}
    assert source.found_versions() == {1, 2, 3}


def test_source_former_base_path_offers_only_aspired(site: Site) -> None:
    for name in ("old/1", "old/2", "new/7"):
        site.drop(name)
    source = site.source(Latest(1), base_path=site.path / "old")
    source.poll()
    assert (set(source.selectable_versions()), source.awaited_base_path()) == ({1, 2}, "")
    unreadable = site.path / "unreadable"
    source.set_base_path(str(unreadable), Latest(1))
    source.poll()
    assert (set(source.selectable_versions()), source.awaited_base_path()) == (
        {2},
        str(unreadable),
    )
    assert source.found_versions() == {1, 2}
    source.set_base_path(str(site.path / "new"), Latest(1))
    source.poll()
    assert (set(source.selectable_versions()), source.awaited_base_path()) == ({7}, "")


def test_source_dangling_label_is_reported_once(site: Site) -> None:
    site.drop("1")
    site.drop("2")
    source = site.source(Latest(1), labels={"old": 1, "next": 3})
    with capture_logs() as logs:
        source.poll()
        source.poll()
        warnings = [log for log in logs if log["event"] == "label_of_absent_version"]
        source.set_selection(All(), {"old": 1})
        source.poll()
    assert [(log["label"], log["version"], log["reason"]) for log in warnings] == [
        ("next", 3, NOT_FOUND),
        ("old", 1, NOT_SELECTED),
    ]
    over = [log["warning"] for log in logs if log["event"] == "warning_over"]
    assert over == ["label_of_absent_version"]


def test_source_label_of_new_version_needs_no_warning(site: Site) -> None:
    site.drop("1")
    source = site.source(Latest(1), labels={"stable": 1})
    site.aspirations.labels = {"stable": 1}
    source.poll()
    with capture_logs() as logs:
        site.drop("2")
        source.set_selection(Specific(frozenset({2})), {"stable": 2})
        source.poll()
        # It is still being copied.
        site.drop("3", age_seconds=0)
        source.set_selection(All(), {"stable": 3})
        source.poll()
    assert "label_of_absent_version" not in [log["event"] for log in logs]


def test_source_unmoved_label_needs_no_warning(site: Site) -> None:
    site.drop("1")
    source = site.source(Latest(1), labels={"stable": 1})
    source.poll()
    site.aspirations.labels = {"stable": 1}
    site.drop("2")
    source.poll()
    assert site.aspirations.lists == [[1], [2]]
    assert source.notes() == []


def test_source_blocked_version_falls_back_and_returns(site: Site) -> None:
    site.drop("1")
    site.drop("2")
    source = site.source(Latest(1))
    source.poll()
    source.set_blocked(frozenset({2}))
    source.poll()
    source.set_blocked(frozenset())
    assert site.aspirations.lists == [[2], [1], [2]]
    assert site.aspirations.left_out == [set(), {2}, set()]


def test_source_of_a_fleet_member_awaits_its_grant(site: Site) -> None:
    site.drop("1")
    site.drop("2")
    source = site.source(Latest(1))
    source.set_granted(frozenset())
    source.poll()
    assert site.aspirations.lists == []
    assert [note.event for note in source.notes()] == ["grant_awaited"]
    source.set_granted(frozenset({1}))
    assert source.notes() == []
    source.set_granted(frozenset({2}))
    # Without files for it, a granted version leaves the one before.
    source.set_granted(frozenset({3}))
    assert site.aspirations.lists == [[1], [2]]
    assert source.selected_among([1, 2, 3]) == {3}
    source.set_granted(frozenset())
    assert site.aspirations.lists == [[1], [2], []]


def test_source_loads_a_failed_version_granted_anew(site: Site) -> None:
    site.drop("1")
    site.drop("2")
    source = site.source(Latest(1))
    source.set_granted(frozenset({2}))
    source.poll()
    site.aspirations.failed = {2}
    source.set_granted(frozenset({1}))
    site.clock.advance(1)
    source.set_granted(frozenset({2}))
    assert site.aspirations.lists == [[2], [1], [2]]
    first, again = site.aspirations.found_at_ns[0], site.aspirations.found_at_ns[2]
    assert again > first
    assert site.aspirations.anew == [1, 2, 2]


@pytest.mark.parametrize(("available", "anew"), [(set(), [1, 2, 2]), ({2}, [1, 2])])
def test_source_tells_of_blocked_version_granted_anew(
    site: Site, available: set[int], anew: list[int]
) -> None:
    """An earlier process has blocked it. It is none that serves although it is blocked."""
    site.drop("1")
    site.drop("2")
    source = site.source(Latest(1))
    source.set_blocked(frozenset({2}))
    source.set_granted(frozenset({1}))
    source.poll()
    site.aspirations.available = available
    site.clock.advance(1)
    source.set_granted(frozenset({1, 2}))
    assert site.aspirations.anew == anew


def test_source_blocked_version_falls_back_on_hang(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.drop("1")
    site.drop("2")
    source = site.source(Latest(1))
    source.poll()

    def hang(base_path: str) -> Listing:
        source.set_blocked(frozenset({2}))
        assert site.aspirations.lists == [[2], [1]]
        return list_children(base_path)

    monkeypatch.setattr("serving.source.file_system_source.list_children", hang)
    source.poll()
    assert site.aspirations.lists == [[2], [1]]


def test_source_new_base_path_keeps_old_versions_first(site: Site) -> None:
    site.drop("old/1")
    source = site.source(base_path=site.path / "old")
    source.poll()
    source.set_base_path(str(site.path / "new"), Latest(1))
    source.poll()
    assert site.aspirations.lists == [[1]]
    site.drop("new/2")
    source.poll()
    assert site.aspirations.lists == [[1], [2]]
    assert site.aspirations.directories[2] == str(site.path / "new" / "2")


def test_source_new_base_path_settles_before_a_swap(site: Site) -> None:
    site.drop("old/1")
    source = site.source(keeps_last=False, base_path=site.path / "old")
    source.poll()
    site.drop("new/1", age_seconds=0.25)
    source.set_base_path(str(site.path / "new"), Latest(1))
    source.poll()
    assert site.aspirations.lists == [[1]]
    site.clock.advance(0.75)
    source.poll()
    assert site.aspirations.lists == [[1], [1]]
    assert site.aspirations.directories == {1: str(site.path / "new" / "1")}


def test_source_selects_in_the_new_base_path_only(site: Site) -> None:
    for name in ("old/1", "old/2", "old/5", "new/1", "new/2", "new/3"):
        site.drop(name)
    source = site.source(Latest(1), base_path=site.path / "old")
    source.poll()
    source.set_base_path(str(site.path / "new"), All())
    source.poll()
    assert site.aspirations.lists == [[5], [1, 2, 3]]
    directories = {version: str(site.path / "new" / str(version)) for version in (1, 2, 3)}
    assert site.aspirations.directories == {5: str(site.path / "old" / "5"), **directories}


def test_source_former_base_path_can_be_unloaded(site: Site) -> None:
    site.drop("old/1")
    source = site.source(base_path=site.path / "old")
    source.poll()
    source.set_base_path(str(site.path / "new"), Latest(1))
    source.set_selection(Specific(frozenset()))
    assert site.aspirations.lists == [[1], []]
    source.set_selection(All())
    source.poll()
    assert site.aspirations.lists == [[1], []]
    site.drop("new/2")
    source.poll()
    assert site.aspirations.lists == [[1], [], [2]]


def test_source_former_base_path_loses_blocked(site: Site) -> None:
    for name in ("old/1", "old/2", "old/3"):
        site.drop(name)
    source = site.source(Latest(2), base_path=site.path / "old")
    source.poll()
    source.set_base_path(str(site.path / "new"), Latest(1))
    source.set_blocked(frozenset({3}))
    assert site.aspirations.lists == [[2, 3], [2]]
    source.set_blocked(frozenset({2, 3}))
    assert site.aspirations.lists == [[2, 3], [2]]


@pytest.mark.parametrize("seed", range(200))
def test_source_aspires_only_in_configured_base_path(site: Site, seed: int) -> None:
    """Any sequence of changes: a version that is aspired anew lies in the base path of that time.

    The selection of that time takes it, and none that is older.
    """
    draw = random.Random(seed)
    base_paths = [site.path / name for name in ("a", "b")]
    selections: list[VersionSelection] = [
        Latest(1),
        Latest(2),
        All(),
        Specific(frozenset({1, 3})),
        Specific(frozenset()),
    ]
    for base_path in base_paths:
        base_path.mkdir()
    configured, selection = base_paths[0], selections[0]
    source = site.source(selection, base_path=configured, keeps_last=draw.random() < 0.5)
    for _ in range(40):
        directories = dict(site.aspirations.current)
        step = draw.randrange(6)
        if step == 0:
            configured, selection = draw.choice(base_paths), draw.choice(selections)
            source.set_base_path(str(configured), selection)
        elif step == 1:
            selection = draw.choice(selections)
            source.set_selection(selection)
        elif step == 2:
            source.set_blocked(frozenset(draw.sample(range(1, 5), draw.randrange(2))))
        elif step == 3:
            directory = draw.choice(base_paths) / str(draw.randrange(1, 5))
            if directory.exists():
                shutil.rmtree(directory)
            else:
                site.drop(str(directory.relative_to(site.path)), age_seconds=draw.choice([0, 60]))
        else:
            site.clock.advance(draw.choice([0, 1]))
            source.poll()
        for version, place in site.aspirations.current.items():
            if directories.get(version) != place:
                assert Path(place).parent == configured
                assert selection.select([version]).versions == (version,)


def test_source_empty_new_base_path_unloads_if_allowed(site: Site) -> None:
    site.drop("old/1")
    source = site.source(keeps_last=False, base_path=site.path / "old")
    source.poll()
    source.set_base_path(str(site.path / "new"), Latest(1))
    source.poll()
    assert site.aspirations.lists == [[1]]
    (site.path / "new").mkdir()
    source.poll()
    assert site.aspirations.lists == [[1], []]


def test_source_look_at_a_former_base_path_is_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.drop("old/1")
    source = site.source(base_path=site.path / "old")

    def change(base_path: str) -> Listing:
        source.set_base_path(str(site.path / "new"), Latest(1))
        return list_children(base_path)

    monkeypatch.setattr("serving.source.file_system_source.list_children", change)
    source.poll()
    assert site.aspirations.lists == []


def test_source_aspires_nothing_after_stop(site: Site) -> None:
    site.drop("1")
    source = site.source()
    source.stop()
    source.poll()
    source.set_selection(Latest(1))
    assert site.aspirations.lists == []


def test_source_allowed_to_empty_drops_last_version(site: Site) -> None:
    directory = site.drop("1")
    source = site.source(keeps_last=False)
    source.poll()
    site.path.rename(site.path.with_suffix(".away"))
    source.poll()
    assert site.aspirations.lists == [[1]]
    site.path.with_suffix(".away").rename(site.path)
    remove(directory)
    source.poll()
    assert site.aspirations.lists == [[1], []]
    site.drop("3")
    source.poll()
    assert site.aspirations.lists == [[1], [], [3]]


# --- Overwriting a version that serves ------------------------------------------------------------


@pytest.fixture
def links(site: Site) -> Path:
    """A directory on the file system of the base path, for links to files of versions."""
    path = site.path / ".links"
    path.mkdir()
    return path


@pytest.mark.parametrize("failed", [set[int](), {7}])
def test_source_version_linked_elsewhere_is_the_same(
    site: Site, links: Path, failed: set[int]
) -> None:
    directory = site.drop("7")
    source = site.source()
    source.poll()
    site.aspirations.failed = failed
    before = fingerprint(str(directory))
    # Each link and its removal change the ctime of the file.
    for name in ("first", "second"):
        os.link(directory / "saved_model.pb", links / name)
        site.clock.advance(60)
        source.poll()
    assert fingerprint(str(directory)) != before
    assert source.notes() == []
    assert (site.aspirations.lists, site.aspirations.anew) == ([[7]], [7])


def test_source_live_version_may_lose_its_links(site: Site, links: Path) -> None:
    directory = site.drop("7")
    source = site.source()
    source.poll()
    for _ in range(2):
        os.link(directory / "saved_model.pb", links / "link")
        site.clock.advance(60)
        source.poll()
        (links / "link").unlink()
        site.clock.advance(60)
        source.poll()
    assert source.notes() == []


def test_source_replaced_linked_file_is_reported(site: Site, links: Path) -> None:
    directory = site.drop("7")
    graph = directory / "saved_model.pb"
    os.link(graph, links / "first")
    source = site.source()
    source.poll()
    other = links / "other"
    shutil.copy2(graph, other)
    os.link(other, links / "second")
    other.replace(graph)
    site.clock.advance(60)
    source.poll()
    assert [note.event for note in source.notes()] == ["live_version_overwritten"]


def test_source_overwritten_version_is_reported_once(site: Site) -> None:
    directory = site.drop("7")
    source = site.source()
    source.poll()
    copy_again(directory / "saved_model.pb", b"GRAPH")
    with capture_logs() as logs:
        for _ in range(3):
            site.clock.advance(RECHECK_NS / NS_PER_SECOND)
            source.poll()
    assert [(log["event"], log["version"]) for log in logs] == [("live_version_overwritten", 7)]
    assert site.aspirations.lists == [[7]]
    assert [note.event for note in source.notes()] == ["live_version_overwritten"]


def test_source_notes_name_missing_files(site: Site) -> None:
    (site.path / "7").mkdir()
    site.set_age(site.path / "7", 60)
    source = site.source()
    source.poll()
    assert source.notes() == [
        Note.of("version_incomplete", version=7, reason="saved_model.pb is missing")
    ]


def test_source_result_of_an_older_look_is_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.drop("1")
    source = site.source()

    def hang(base_path: str) -> Listing:
        listing = list_children(base_path)
        # While this poll hangs, version 2 comes and a later poll ends.
        monkeypatch.setattr("serving.source.file_system_source.list_children", list_children)
        site.drop("2")
        source.poll(2)
        return listing

    monkeypatch.setattr("serving.source.file_system_source.list_children", hang)
    source.poll(1)
    assert site.aspirations.lists == [[1, 2]]
    assert source.found_versions() == {1, 2}


def test_source_stuck_is_noted_and_logged_once(site: Site) -> None:
    source = site.source()
    with capture_logs() as logs:
        source.stuck_changed(lambda: 10.0)
        source.stuck_changed(lambda: 25.0)
        (note,) = source.notes()
        source.stuck_changed(lambda: None)
        source.stuck_changed(lambda: None)
    assert note.event == "source_stuck"
    assert "has not finished within 10 s" in str(dict(note.values)["reason"])
    assert source.notes() == []
    assert [(log["event"], log.get("warning")) for log in logs] == [
        ("source_stuck", None),
        ("warning_over", "source_stuck"),
    ]


def test_source_on_hanging_disk_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, live = Site(tmp_path / "a" / "dead", "dead"), Site(tmp_path / "b" / "live", "live")
    is_mended = threading.Event()

    def hang(base_path: str) -> Listing:
        if base_path == str(dead.path):
            is_mended.wait(TIMEOUT_SECONDS)
        return list_children(base_path)

    monkeypatch.setattr("serving.source.file_system_source.list_children", hang)
    soon_ns = NS_PER_SECOND // 20
    pool = PollerPool(PollLimits(stuck_after_ns=soon_ns, first_retry_ns=soon_ns), SystemClock())
    pool.start()
    sources = [site.source(period_seconds=0.01, pollers=pool) for site in (dead, live)]
    for site, source in zip((dead, live), sources, strict=True):
        site.drop("1")
        source.start()
    wait_until(lambda: [note.event for note in sources[0].notes()] == ["source_stuck"])
    # A version comes complete, by a rename: the poll may look at any time.
    live.drop("copied").rename(live.path / "2")
    wait_until(lambda: live.aspirations.lists == [[1], [1, 2]])
    # A poll that got no core for a moment counts as stuck until it ends.
    wait_until(lambda: sources[1].notes() == [])
    assert dead.aspirations.lists == []
    is_mended.set()
    wait_until(lambda: dead.aspirations.lists == [[1]] and sources[0].notes() == [])
    pool.stop()
    assert pool.join(TIMEOUT_SECONDS)


def wait_until(is_so: Callable[[], bool]) -> None:
    clock = SystemClock()
    began_ns = clock.now_ns()
    while not is_so():
        assert seconds_since(clock, began_ns) < TIMEOUT_SECONDS
        pause(clock, 0.01)


def test_source_group_is_parent_of_base_path(site: Site) -> None:
    pollers = FakePollers(site.clock)
    source = site.source(pollers=pollers, base_path=site.path / "m")
    source.start()
    assert pollers.group == str(site.path)
    source.set_base_path("/elsewhere/m/", Latest(1))
    assert pollers.group == "/elsewhere"


@pytest.mark.parametrize("name", ["9", "current"])
def test_source_circular_link_hides_no_version(site: Site, name: str) -> None:
    site.drop("1")
    (site.path / name).symlink_to(name)
    source = site.source(Latest(1))
    source.poll()
    site.drop("2")
    source.poll()
    assert site.aspirations.lists == [[1], [2]]
    reasons = [str(note) for note in source.notes() if note.event == "version_unreadable"]
    assert len(reasons) == (name == "9")
    assert all("Too many levels of symbolic links" in reason for reason in reasons)


def test_source_version_of_a_circular_link_stays(site: Site) -> None:
    for version in ("1", "2"):
        (site.path / version).symlink_to(site.drop(f"elsewhere/{version}"))
    source = site.source(Latest(1))
    source.poll()
    (site.path / "2").unlink()
    (site.path / "2").symlink_to("2")
    source.poll()
    assert site.aspirations.lists == [[2]]


def test_list_children_of_a_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert "Not a directory" in list_children(str(path)).error


def test_fingerprint_holds_every_file_and_directory(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    (tmp_path / "variables" / "variables.index").write_bytes(b"12345")
    (tmp_path / "saved_model.pb").write_bytes(b"123")
    sizes = {path: size for path, size, *_ in fingerprint(str(tmp_path)).entries}
    assert set(sizes) == {"", "variables", "variables/variables.index", "saved_model.pb"}
    assert (sizes["saved_model.pb"], sizes["variables/variables.index"]) == (3, 5)


def test_fingerprint_tolerates_dead_and_circular_links(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle").symlink_to(tmp_path)
    paths = [path for path, *_ in fingerprint(str(tmp_path)).entries]
    assert paths == ["", "circle", "dangling"]


def test_fingerprint_of_removed_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fingerprint(str(tmp_path / "7"))


def test_source_version_as_base_path_is_warned_of_once(site: Site) -> None:
    source = site.source(base_path=site.drop("7"))
    with capture_logs() as logs:
        source.poll()
        source.poll()
    (warning,) = [log for log in logs if log["event"] == "base_path_is_a_version"]
    assert warning["log_level"] == "warning"
    assert f"give {site.path} as the base path" in warning["remedy"]


def test_source_aspires_returned_last_version_again(site: Site) -> None:
    directory = site.drop("7")
    source = site.source()
    source.poll()
    before = fingerprint(str(directory))
    # It is written repeatedly, because the kernel's clock for ctime ticks a few hundred times a
    # second only.
    while fingerprint(str(directory)) == before:
        directory.rename(site.path / "away")
        source.poll()
        (site.path / "away").rename(directory)
    site.clock.advance(60)
    source.poll()
    assert site.aspirations.lists == [[7]]
    assert source.notes() == []


def test_source_reports_each_found_version(site: Site) -> None:
    site.drop("1")
    directory = site.drop("2")
    source = site.source(Latest(1))
    source.poll()
    assert site.aspirations.anew == [1, 2]
    # The same holds for a blocked version that is mended after its failure.
    site.aspirations.failed = {2}
    source.set_blocked(frozenset({2}))
    site.clock.advance(60)
    source.poll()
    assert (site.aspirations.lists[-1], site.aspirations.anew) == ([1], [1, 2])
    (directory / "saved_model.pb").write_bytes(b"mended graph")
    site.set_age(directory, 30)
    site.clock.advance(60)
    site.poll_until_settled(source)
    assert (site.aspirations.lists[-1], site.aspirations.anew) == ([1], [1, 2, 2])
    source.set_blocked(frozenset())
    assert site.aspirations.lists[-1] == [2]


def test_source_blocked_before_first_poll_leaves_out(site: Site) -> None:
    site.drop("1")
    site.drop("2")
    source = site.source(Latest(1))
    source.set_blocked(frozenset({2}))
    source.poll()
    assert site.aspirations.lists == [[1]]


def test_source_reports_disk_contents_and_watches(site: Site) -> None:
    source = site.source(Latest(1), base_path=site.path / "m")
    source.poll()
    assert site.aspirations.seen == []  # The base path was missing.
    for version in ("1", "2", "3"):
        site.drop(f"m/{version}")
    source.poll()
    assert site.aspirations.seen[-1] == ({1, 2, 3}, {3})
    source.set_blocked(frozenset({3}))
    assert site.aspirations.seen[-1] == ({1, 2, 3}, {2, 3})
    remove(site.path / "m" / "3")
    source.poll()
    assert site.aspirations.seen[-1] == ({1, 2}, {2, 3})
    source.stop()
    assert site.aspirations.seen[-1] == (set(), set())
    source.poll()
    assert site.aspirations.seen[-1] == (set(), set())


def test_source_selects_among_other_versions(site: Site) -> None:
    source = site.source(Latest(2))
    assert source.selected_among([1, 2, 3]) == {2, 3}
    source.set_blocked(frozenset({3}))
    assert source.selected_among([1, 2, 3]) == {1, 2}
    site.drop("7")
    source.poll()
    assert source.aspired_versions() == {7}


def test_source_shows_notes_of_its_mirror(site: Site) -> None:
    source = site.source(base_path=site.path / "missing")
    source.poll()
    assert [note.event for note in source.notes()] == ["base_path_unreadable"]
    note = Note.of("store_unreadable", reason="403")
    source.set_store_notes(frozenset({note}))
    assert source.notes() == [note]
    source.set_store_notes(frozenset())
    assert [note.event for note in source.notes()] == ["base_path_unreadable"]


# --- A base path at rest --------------------------------------------------------------------------


class Reads:
    """Counts how often base paths and version directories are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed = 0
        self.compared = 0
        module = "serving.source.file_system_source"

        def count_listing(base_path: str) -> Listing:
            self.listed += 1
            return list_children(base_path)

        def count_comparison(directory: str) -> Fingerprint:
            self.compared += 1
            return fingerprint(directory)

        monkeypatch.setattr(f"{module}.list_children", count_listing)
        monkeypatch.setattr(f"{module}.fingerprint", count_comparison)


def at_rest(site: Site, **settings: object) -> FileSystemSource:
    """A source with one version, whose listing is old enough to be relied on."""
    site.drop("7")
    source = site.source(period_seconds=1, **settings)  # type: ignore[arg-type]
    for _ in range(4):
        source.poll()
        site.clock.advance(1)
    return source


def test_base_path_at_rest_is_not_listed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source = at_rest(site)
    reads = Reads(monkeypatch)
    # Until the files of version 7 are compared, RECHECK_NS after they were found.
    for _ in range(5):
        assert source.poll() == 1
        site.clock.advance(1)
    assert (reads.listed, reads.compared) == (0, 0)
    site.drop("8")
    source.poll()
    assert site.aspirations.lists == [[7], [7, 8]]


def test_base_path_at_rest_is_compared_in_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source = at_rest(site)
    reads = Reads(monkeypatch)
    for _ in range(RECHECK_NS // NS_PER_SECOND):
        source.poll()
        site.clock.advance(1)
    assert (reads.listed, reads.compared) == (1, 1)


def test_base_path_with_undated_mtimes_is_listed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "serving.source.file_system_source.file_system_of", lambda path: "fuse.gcsfuse"
    )
    source = at_rest(site)
    reads = Reads(monkeypatch)
    source.poll()
    assert reads.listed == 1


def test_base_path_at_rest_is_listed_if_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source = at_rest(site)
    reads = Reads(monkeypatch)
    source.poll_soon()
    source.poll()
    assert reads.listed == 1


def test_linked_version_at_rest_is_found(tmp_path: Path) -> None:
    """The place that a link leads to gets its version, so that the base path itself does not change."""
    site, store = Site(tmp_path / "m"), Site(tmp_path / "store")
    store.drop("8")
    site.path.mkdir()
    for version in ("8", "9"):
        (site.path / version).symlink_to(store.path / version)
    pollers = FakePollers(site.clock)
    pollers.can_watch = True
    source = site.source(period_seconds=1, pollers=pollers)
    for _ in range(4):
        source.poll()
        site.clock.advance(1)
    store.drop("9")
    assert source.poll() == 1
    assert (site.aspirations.lists, pollers.watched) == ([[8], [8, 9]], None)


def test_failed_version_at_rest_is_repaired(site: Site) -> None:
    source = at_rest(site)
    site.aspirations.failed = {7}
    copy_again(site.path / "7" / "saved_model.pb", b"other")
    source.poll()
    site.poll_until_settled(source)
    assert site.aspirations.anew == [7, 7]


def test_watched_base_path_is_polled_for_comparisons(site: Site) -> None:
    pollers = FakePollers(site.clock)
    pollers.can_watch = True
    source = at_rest(site, pollers=pollers)
    # Version 7 was found 4 s ago.
    assert (source.poll(), pollers.watched) == (RECHECK_NS / NS_PER_SECOND - 4, str(site.path))


def test_refused_watch_is_tried_again_after_a_listing(site: Site) -> None:
    pollers = FakePollers(site.clock)
    source = at_rest(site, pollers=pollers)
    pollers.tried_count = 0
    for _ in range(5):
        source.poll()
        site.clock.advance(1)
    # The sight of the last listing.
    assert pollers.tried_count <= 1
    site.clock.advance(RECHECK_NS / NS_PER_SECOND)
    source.poll()
    pollers.can_watch = True
    assert source.poll() == RECHECK_NS / NS_PER_SECOND


def test_comparisons_of_many_models_take_turns(site: Site) -> None:
    pollers = FakePollers(site.clock)
    pollers.can_watch, pollers.model_count = True, 1_000
    assert at_rest(site, pollers=pollers).poll() == 96


def test_watched_base_path_that_changed_is_polled(site: Site) -> None:
    pollers = FakePollers(site.clock)
    pollers.can_watch = True
    source = at_rest(site, pollers=pollers)
    site.drop("8")
    # Something has come, and more may come: no watch until a poll finds nothing new.
    assert (source.poll(), pollers.watched) == (1, None)
    site.clock.advance(1)
    assert source.poll() == pytest.approx(RECHECK_NS / NS_PER_SECOND - 5)
    assert pollers.watched == str(site.path)


@pytest.mark.parametrize("period_seconds", [0, -1])
def test_base_path_is_not_watched_without_period(site: Site, period_seconds: float) -> None:
    pollers = FakePollers(site.clock)
    pollers.can_watch = True
    site.drop("7")
    source = site.source(period_seconds=period_seconds, pollers=pollers)
    assert [source.poll() for _ in range(3)] == [None, None, None]
    assert pollers.watched is None


def test_version_that_settles_is_not_left_to_a_watch(site: Site) -> None:
    pollers = FakePollers(site.clock)
    pollers.can_watch = True
    source = at_rest(site, pollers=pollers)
    site.drop("8", age_seconds=0)
    waits = [source.poll()]
    while site.aspirations.lists[-1] != [7, 8]:
        wait = waits[-1]
        assert wait is not None
        assert wait <= 1
        site.clock.advance(wait)
        waits.append(source.poll())
    assert pollers.watched is None

"""The decisions of a mirror, as a table of situations."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.storage.mirror_plan import (
    RELIST_NS,
    SETTLE_NS,
    MirrorView,
    RemoteVersion,
    copied_files,
    listed,
    mirror_notes,
    next_copy,
    next_look_seconds,
    partials_to_drop,
    selected_versions,
    to_evict,
    to_list,
    to_remove,
)
from serving.storage.stored_objects import Objects, StoredObject

NOW_NS = 1_000 * RELIST_NS


def objects(tag: str = "a", size: int = 10) -> Objects:
    return (StoredObject("saved_model.pb", size, tag),)


def remote(
    of: Objects | None = None,
    *,
    still_ns: int = SETTLE_NS,
    refusal: str = "",
    refused_ago_ns: int = 0,
) -> RemoteVersion:
    return RemoteVersion(
        objects=objects() if of is None else of,
        unchanged_since_ns=NOW_NS - still_ns,
        listed_at_ns=NOW_NS,
        refusal=refusal,
        refused_at_ns=NOW_NS - refused_ago_ns,
    )


def view(*versions: int, **fields: object) -> MirrorView:
    base = MirrorView(remote=frozenset(versions), now_ns=NOW_NS, budget_bytes=10**9)
    return replace(base, **fields)  # type: ignore[arg-type]


def latest(found: Collection[int]) -> list[int]:
    return sorted(found)[-1:]


def test_listing_that_changes_starts_anew():
    first = listed(None, objects("a"), 1)
    assert listed(first, objects("a"), 5) == replace(first, listed_at_ns=5)
    assert listed(first, objects("b"), 5).unchanged_since_ns == 5
    refused = replace(first, refusal="broken")
    assert listed(refused, objects("b"), 5).refusal == ""


def test_version_is_copied_once_two_listings_agree():
    fresh = view(7, listed={7: remote(still_ns=0)})
    assert next_copy(fresh, frozenset({7})) is None
    assert next_look_seconds(fresh, frozenset({7}), 10) == SETTLE_NS / 1e9
    still = view(7, listed={7: remote()})
    assert next_copy(still, frozenset({7})) == 7
    assert next_look_seconds(still, frozenset({7}), 10) == 0


@pytest.mark.parametrize(
    "item",
    [
        remote(still_ns=0),
        remote((StoredObject("variables/v", 1),)),
        remote(refusal="variables are missing"),
    ],
    ids=["settling", "no graph", "refused"],
)
def test_upload_under_way_takes_no_whole_version_away(item: RemoteVersion):
    seen = view(6, 7, listed={7: item})
    assert selected_versions(seen, latest) == {6, 7}
    assert selected_versions(view(6, 7, listed={7: remote()}), latest) == {7}


def test_settling_version_below_a_faulty_one_stays():
    seen = view(5, 6, 7, listed={7: remote(refusal="half"), 6: remote(still_ns=0)})
    assert selected_versions(seen, latest) == {5, 6, 7}


def test_fault_that_was_seen_long_ago_does_not_count():
    old = replace(remote(refusal="half"), listed_at_ns=NOW_NS - 2 * RELIST_NS)
    seen = view(6, 7, listed={7: remote(refusal="half"), 6: old})
    assert selected_versions(seen, latest) == {6, 7}
    assert to_list(seen, frozenset({6, 7})) == (7, 6)


def test_highest_version_that_can_be_is_copied_first():
    both = view(6, 7, listed={6: remote(), 7: remote()})
    assert next_copy(both, frozenset({6, 7})) == 7
    half = view(6, 7, listed={6: remote(), 7: remote(refusal="half")})
    assert next_copy(half, frozenset({6, 7})) == 6


def test_refused_copy_is_tried_again_later():
    item = remote(refusal="half", refused_ago_ns=RELIST_NS)
    assert next_copy(view(7, listed={7: item}), frozenset({7})) == 7


def test_copied_version_is_listed_rarely():
    copied = view(7, listed={7: remote()}, local={7: objects()})
    assert to_list(copied, frozenset({7})) == ()
    later = replace(copied, now_ns=NOW_NS + RELIST_NS)
    assert to_list(later, frozenset({7})) == (7,)
    assert to_list(view(7), frozenset({7})) == (7,)
    assert next_copy(copied, frozenset({7})) is None
    assert next_look_seconds(copied, frozenset({7}), 10) == 10


def test_overwritten_version_that_serves_stays():
    changed = view(7, listed={7: remote(objects("b"))}, local={7: objects("a")})
    assert next_copy(changed, frozenset({7})) == 7
    serves = replace(changed, in_use=frozenset({7}))
    assert next_copy(serves, frozenset({7})) is None
    assert {note.event for note in mirror_notes(serves, frozenset({7}))} == {
        "store_version_overwritten"
    }
    failed = replace(serves, failed=frozenset({7}))
    assert next_copy(failed, frozenset({7})) == 7


def test_version_is_removed_after_two_looks_without_it():
    local = {6: objects(), 7: objects()}
    assert to_remove(view(7, local=local)) == frozenset()
    assert to_remove(view(7, local=local, gone_before=frozenset({6}))) == {6}
    assert to_remove(view(6, 7, local=local, gone_before=frozenset({6}))) == frozenset()


def test_emptied_store_keeps_the_copies_unless_allowed():
    emptied = view(local={7: objects()}, gone_before=frozenset({7}))
    assert to_remove(emptied) == frozenset()
    assert "last_version_gone_from_store" in {n.event for n in mirror_notes(emptied, frozenset())}
    assert to_remove(replace(emptied, keeps_last=False)) == {7}


def test_last_copy_stays_until_another_is_whole():
    local = {5: objects(), 6: objects(), 7: ()}
    half = view(8, local=local, gone_before=frozenset(local), listed={8: remote(refusal="half")})
    assert to_remove(half) == {5, 7}
    assert to_remove(replace(half, keeps_last=False)) == {5, 6, 7}
    # A copy that is not whole is none.
    assert to_remove(replace(half, local={**local, 8: ()})) == {5, 7}
    assert to_remove(replace(half, local={**local, 8: objects()})) == {5, 6, 7}


def test_partial_copy_of_a_removed_version_is_dropped():
    seen = view(7, partial=frozenset({5, 6, 7}))
    assert partials_to_drop(seen, frozenset({7})) == {5, 6}


def test_lowest_versions_go_for_the_budget():
    local = {version: objects() for version in (1, 2, 3, 4)}
    full = view(1, 2, 3, 4, 5, local=local, listed={5: remote()}, budget_bytes=30)
    assert to_evict(full, frozenset({5}), 5) == (1, 2)
    assert to_evict(replace(full, in_use=frozenset({1})), frozenset({5}), 5) == (2, 3)
    assert to_evict(replace(full, budget_bytes=50), frozenset({5}), 5) == ()


def test_linked_versions_take_the_budget_once():
    table = StoredObject("table", 100, digest="md5:a")
    local = {version: (table, StoredObject("rows", 5)) for version in (1, 2, 3)}
    seen = view(1, 2, 3, 4, local=local, listed={4: remote(local[1])}, budget_bytes=120)
    assert to_evict(seen, frozenset({4}), 4) == ()
    assert to_evict(replace(seen, budget_bytes=114), frozenset({4}), 4) == (1, 2)
    over = replace(seen, budget_bytes=100)
    (note,) = mirror_notes(replace(over, remote=frozenset({1})), frozenset({1, 2}))
    assert dict(note.values)["needed_bytes"] == 110


def test_copied_files_are_found_by_content():
    table = StoredObject("table", 100, digest="md5:a")
    local = {7: (table, StoredObject("rows", 5)), 8: (), 9: (replace(table, path="other"),)}
    assert copied_files(local) == {("md5:a", 100): (9, "other")}


def test_budget_below_the_selected_versions_is_noted():
    seen = view(7, local={7: objects()}, budget_bytes=5)
    assert to_evict(seen, frozenset({7}), None) == ()
    (note,) = mirror_notes(seen, frozenset({7}))
    assert note.event == "model_cache_above_budget"
    assert dict(note.values)["needed_bytes"] == 10


VERSIONS = st.frozensets(st.integers(1, 6))


@given(VERSIONS, VERSIONS, VERSIONS, VERSIONS, st.integers(0, 100))
def test_no_used_copy_is_ever_evicted(
    remote_ones: frozenset[int],
    local: frozenset[int],
    wanted: frozenset[int],
    in_use: frozenset[int],
    budget: int,
):
    seen = view(
        *remote_ones,
        local=dict.fromkeys(local, objects()),
        in_use=in_use,
        budget_bytes=budget,
        gone_before=local,
    )
    evicted = to_evict(seen, wanted, None)
    assert not {*evicted} & (wanted | in_use)
    left = 10 * (len(local) - len(evicted))
    assert left <= budget or local - {*evicted} <= wanted | in_use
    assert to_remove(seen) <= local - remote_ones

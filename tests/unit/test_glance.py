import os
from pathlib import Path

from serving.source.glance import MTIME_GRAIN_NS, Sight, after_listing, glance


def sight(seen, *, links: tuple[str, ...] = (), is_dated: bool = True) -> Sight:
    """A sight that was listed long after it was first seen."""
    return Sight(seen, links, since_ns=0, listed_ns=MTIME_GRAIN_NS, is_dated=is_dated)


def test_glance_differs_after_an_entry_has_come(tmp_path: Path) -> None:
    before = glance(str(tmp_path), ())
    assert glance(str(tmp_path), ()) == before
    (tmp_path / "7").mkdir()
    assert glance(str(tmp_path), ()) != before


def test_glance_differs_if_a_link_leads_elsewhere(tmp_path: Path) -> None:
    base, targets = tmp_path / "m", [tmp_path / "a", tmp_path / "b"]
    for directory in (base, *targets):
        directory.mkdir()
    # The link that changes lies beside the base path, as in Kubernetes.
    (tmp_path / "data").symlink_to(targets[0])
    (base / "1").symlink_to(tmp_path / "data")
    before = glance(str(base), ("1",))
    (tmp_path / "new").symlink_to(targets[1])
    os.replace(tmp_path / "new", tmp_path / "data")
    assert glance(str(base), ()) == glance(str(base), ())
    assert glance(str(base), ("1",)) != before
    targets[1].rmdir()
    assert glance(str(base), ("1",)) is not None


def test_glance_at_no_directory_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert glance(str(tmp_path / "nowhere"), ()) is None
    assert glance(str(tmp_path / "file"), ()) is None


def test_sight_counts_once_the_mtime_is_old(tmp_path: Path) -> None:
    seen = glance(str(tmp_path), ())
    first = after_listing(None, seen, (), now_ns=5, is_dated=True)
    assert first is not None
    assert not first.has_entries_of(seen)
    second = after_listing(first, seen, (), now_ns=5 + MTIME_GRAIN_NS - 1, is_dated=True)
    assert second is not None
    assert not second.has_entries_of(seen)
    third = after_listing(second, seen, (), now_ns=5 + MTIME_GRAIN_NS, is_dated=True)
    assert third is not None
    assert third.has_entries_of(seen)


def test_sight_of_undated_file_system_never_counts(tmp_path: Path) -> None:
    seen = glance(str(tmp_path), ())
    assert seen is not None
    assert sight(seen).has_entries_of(seen)
    assert not sight(seen, is_dated=False).has_entries_of(seen)


def test_sight_begins_anew_with_other_links(tmp_path: Path) -> None:
    seen = glance(str(tmp_path), ())
    assert seen is not None
    after = after_listing(sight(seen), seen, ("1",), now_ns=9 * MTIME_GRAIN_NS, is_dated=True)
    assert after is not None
    assert (after.links, after.since_ns) == (("1",), 9 * MTIME_GRAIN_NS)
    assert not after.has_entries_of(glance(str(tmp_path), ("1",)))


def test_sight_of_unreadable_base_path_is_none() -> None:
    assert after_listing(None, None, (), now_ns=0, is_dated=True) is None

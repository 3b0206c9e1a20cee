import errno
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import inotify_simple
import pytest
from structlog.testing import capture_logs

from serving.source.directory_watch import DirectoryWatch

TIMEOUT_SECONDS = 60


class Watched:
    """A watch, and the keys that it has called."""

    def __init__(self) -> None:
        self.keys: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.watch = DirectoryWatch(self.keys.put)

    def next_key(self) -> str:
        return self.keys.get(timeout=TIMEOUT_SECONDS)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.watch.stop()
    assert made.watch.join(TIMEOUT_SECONDS)


@pytest.fixture
def base_path(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "m"
    path.mkdir(parents=True)
    return path


def test_watch_calls_once_for_many_new_entries(watched: Watched, base_path: Path) -> None:
    assert watched.watch.watch("m", str(base_path))
    for version in range(20):
        (base_path / str(version)).mkdir()
    assert watched.next_key() == "m"
    # The other directory's event comes after all events of the first one.
    other = base_path.parent / "other"
    other.mkdir()
    assert watched.watch.watch("other", str(other))
    (other / "1").mkdir()
    assert watched.next_key() == "other"
    assert watched.keys.empty()


def test_watch_calls_again_if_it_is_watched_again(watched: Watched, base_path: Path) -> None:
    for version in ("1", "2"):
        assert watched.watch.watch("m", str(base_path))
        (base_path / version).mkdir()
        assert watched.next_key() == "m"


@pytest.mark.parametrize("depth", [0, 1])
def test_watch_calls_if_a_directory_above_moves(
    watched: Watched, base_path: Path, depth: int
) -> None:
    assert watched.watch.watch("m", str(base_path))
    moved = [base_path, base_path.parent][depth]
    moved.rename(moved.with_name("gone"))
    assert watched.next_key() == "m"


def test_watch_calls_if_the_directory_is_removed(watched: Watched, base_path: Path) -> None:
    assert watched.watch.watch("m", str(base_path))
    base_path.rmdir()
    assert watched.next_key() == "m"


def test_watch_calls_each_model_of_one_base_path(watched: Watched, base_path: Path) -> None:
    assert watched.watch.watch("a", str(base_path))
    assert watched.watch.watch("b", str(base_path))
    watched.watch.forget("a")
    (base_path / "1").mkdir()
    assert watched.next_key() == "b"
    assert watched.keys.empty()


def test_watch_keeps_models_within_each_other(watched: Watched, base_path: Path) -> None:
    # The inner model's watch of the directory above must not replace the outer model's watch of it.
    assert watched.watch.watch("outer", str(base_path.parent))
    assert watched.watch.watch("inner", str(base_path))
    watched.watch.forget("inner")
    (base_path.parent / "1").mkdir()
    assert watched.next_key() == "outer"


def switch(link: Path, target: Path) -> None:
    """Replaces the link in one step, as deployments do."""
    link.with_name("next").symlink_to(target)
    link.with_name("next").rename(link)


@pytest.fixture
def link(base_path: Path) -> Path:
    """A link to the base path, over another link in another directory."""
    between = base_path.parent.parent / "links" / "between"
    between.parent.mkdir()
    between.symlink_to(base_path.parent, target_is_directory=True)
    link = base_path.parent.parent / "link"
    link.symlink_to("links/between/m")
    return link


def test_watch_over_links_sees_new_entries(watched: Watched, base_path: Path, link: Path) -> None:
    assert watched.watch.watch("m", str(link))
    (base_path / "1").mkdir()
    assert watched.next_key() == "m"


@pytest.mark.parametrize("name", ["link", "links/between"])
def test_watch_calls_if_a_link_is_switched(
    watched: Watched, base_path: Path, link: Path, name: str
) -> None:
    assert watched.watch.watch("m", str(link))
    switch(link.parent / name, base_path.parent)
    assert watched.next_key() == "m"


def test_watch_calls_if_what_holds_a_link_moves(watched: Watched, link: Path) -> None:
    assert watched.watch.watch("m", str(link))
    (link.parent / "links").rename(link.parent / "gone")
    assert watched.next_key() == "m"


@pytest.mark.parametrize("is_switched", [True, False])
def test_watch_calls_if_a_version_behind_links_changes(
    watched: Watched, base_path: Path, link: Path, *, is_switched: bool
) -> None:
    export = base_path.parent.parent / "export"
    export.mkdir()
    current = export.with_name("current")
    current.symlink_to(export)
    (base_path / "1").symlink_to(current)
    assert watched.watch.watch("m", str(base_path), ("1",))
    if is_switched:
        switch(current, base_path)
    else:
        export.rename(export.with_name("gone"))
    assert watched.next_key() == "m"


def test_watch_calls_if_a_version_link_is_switched(watched: Watched, base_path: Path) -> None:
    (base_path / "1").symlink_to(base_path.parent)
    assert watched.watch.watch("m", str(base_path), ("1",))
    switch(base_path / "1", base_path)
    assert watched.next_key() == "m"


def test_watch_ignores_what_is_beside_a_link(watched: Watched, base_path: Path, link: Path) -> None:
    assert watched.watch.watch("m", str(link))
    (link.parent / "other").symlink_to(base_path)
    (base_path / "1").mkdir()
    assert watched.next_key() == "m"
    assert watched.keys.empty()


def test_watch_refuses_disks_that_others_change(
    watched: Watched, base_path: Path, link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system of a link decides as much as that of the place where it leads."""
    monkeypatch.setattr(
        "serving.source.directory_watch.file_system_of",
        lambda path: "nfs4" if path.endswith("/links") else "ext4",
    )
    with capture_logs() as logs:
        assert watched.watch.watch("direct", str(base_path))
        assert [watched.watch.watch(key, str(link)) for key in ("a", "b")] == [False, False]
    assert [(log["event"], log["file_system"]) for log in logs] == [("base_path_polled", "nfs4")]


def test_watch_of_missing_directory_logs_nothing(watched: Watched, base_path: Path) -> None:
    with capture_logs() as logs:
        assert not watched.watch.watch("m", str(base_path / "nowhere"))
    assert logs == []


def test_watch_out_of_watches_logs_one_line(
    watched: Watched, base_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(inotify: object, path: str, mask: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(inotify_simple.INotify, "add_watch", refuse)
    with capture_logs() as logs:
        assert not watched.watch.watch("a", str(base_path))
        assert not watched.watch.watch("b", str(base_path))
    assert [log["event"] for log in logs] == ["directory_watch_refused"]
    assert "max_user_watches" in logs[0]["remedy"]


def test_watch_without_a_thread_is_refused(
    watched: Watched, base_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread would read the events, so that a watch would hide each change."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(threading.Thread, "start", refuse)
        assert not watched.watch.watch("m", str(base_path))
    assert [log["event"] for log in logs] == ["directory_watch_refused"]
    assert watched.watch.watch("m", str(base_path))
    (base_path / "1").mkdir()
    assert watched.next_key() == "m"


def test_watch_that_loses_events_calls_each_key(
    watched: Watched, base_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = inotify_simple.Event(-1, inotify_simple.flags.Q_OVERFLOW, 0, "")
    read = inotify_simple.INotify.read

    def read_lossy(inotify: inotify_simple.INotify, timeout: int) -> list[inotify_simple.Event]:
        return [lost] if list(read(inotify, timeout=timeout)) else []

    monkeypatch.setattr(inotify_simple.INotify, "read", read_lossy)
    other = base_path.with_name("other")
    other.mkdir()
    assert watched.watch.watch("m", str(base_path))
    assert watched.watch.watch("other", str(other))
    (other / "1").mkdir()
    assert [watched.next_key(), watched.next_key()] == ["m", "other"]


def test_watch_after_stop_is_refused(base_path: Path) -> None:
    watch = DirectoryWatch(print)
    watch.stop()
    assert not watch.watch("m", str(base_path))
    assert watch.join(TIMEOUT_SECONDS)

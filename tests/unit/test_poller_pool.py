import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.base.clock import NS_PER_SECOND, SystemClock, pause, seconds_since
from serving.source.glance import MTIME_GRAIN_NS, Sight, glance
from serving.source.poll_schedule import PollLimits
from serving.source.poller_pool import PollerPool

TIMEOUT_SECONDS = 60
LIMITS = PollLimits(
    running_count_max=2,
    stuck_after_ns=NS_PER_SECOND // 20,
    first_retry_ns=NS_PER_SECOND // 20,
    stuck_count_max=4,
)


class Disk:
    """A source with polls that hang until the test releases them."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.pool: PollerPool | None = None
        self.changed = threading.Condition()
        self.hangs = hangs
        self.poll_count = 0
        self.hanging_count = 0
        self.stuck: list[bool] = []
        self.error: Exception | None = None

    def poll(self, number: int) -> float | None:
        with self.changed:
            self.poll_count += 1
            self.hanging_count += 1
            self.changed.notify_all()
            while self.hangs:
                self.changed.wait()
            self.hanging_count -= 1
            if self.error is not None:
                raise self.error
        return 0.001

    def stuck_changed(self, stuck_seconds: Callable[[], float | None]) -> None:
        with self.changed:
            self.stuck.append(stuck_seconds() is not None)
            self.changed.notify_all()

    def set_hangs(self, hangs: bool) -> None:
        with self.changed:
            self.hangs = hangs
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT_SECONDS)


@pytest.fixture
def pool() -> Iterator[PollerPool]:
    pool = PollerPool(LIMITS, SystemClock())
    pool.start()
    yield pool
    pool.stop()


def test_pool_polls_again_and_again(pool: PollerPool):
    disk = Disk()
    pool.add("a", "d", disk, is_due=True)
    disk.wait_for(lambda: disk.poll_count > 20)
    pool.remove("a")
    assert pool.wait_until_idle("a", TIMEOUT_SECONDS)


def test_pool_polls_when_it_is_woken(pool: PollerPool):
    disk = Disk()
    pool.add("a", "d", disk, is_due=False)
    pool.wake("a", "d")
    disk.wait_for(lambda: disk.poll_count > 0)
    pool.remove("a")
    assert pool.wait_until_idle("a", TIMEOUT_SECONDS)


def test_pool_has_few_threads_for_many_sources():
    # A machine that stalls must not make a poll stuck: a stuck poll gets a thread in its place.
    limits = replace(LIMITS, stuck_after_ns=10 * TIMEOUT_SECONDS * NS_PER_SECOND)
    pool = PollerPool(limits, SystemClock())
    before = set(threading.enumerate())
    pool.start()
    disks = [Disk() for _ in range(300)]
    for number, disk in enumerate(disks):
        pool.add(str(number), "d", disk, is_due=True)
    for disk in disks:
        disk.wait_for(lambda disk=disk: disk.poll_count > 2)  # type: ignore[misc]
    started = [thread.name for thread in threading.enumerate() if thread not in before]
    pool.stop()
    assert len([name for name in started if name != "poller-watch"]) <= limits.running_count_max


def test_stopped_pool_leaves_only_held_threads():
    before = set(threading.enumerate())
    pool = PollerPool(LIMITS, SystemClock())
    pool.start()
    disks, dead = [Disk() for _ in range(5)], Disk(hangs=True)
    for number, disk in enumerate([dead, *disks]):
        pool.add(str(number), str(number), disk, is_due=True)
    for disk in disks:
        disk.wait_for(lambda disk=disk: disk.poll_count > 2)  # type: ignore[misc]
    dead.wait_for(lambda: dead.hanging_count > 0)
    pool.stop()
    pool.remove("0")
    assert pool.join(TIMEOUT_SECONDS)
    left = set(threading.enumerate()) - before
    # Each poll of the dead disk holds one thread.
    assert len(left) == dead.hanging_count
    dead.set_hangs(False)
    for thread in left:
        thread.join(TIMEOUT_SECONDS)
    assert set(threading.enumerate()) <= before


def test_pool_hanging_disk_holds_up_no_other(pool: PollerPool):
    dead, live = [Disk(hangs=True) for _ in range(5)], Disk()
    for number, disk in enumerate(dead):
        pool.add(f"dead-{number}", "dead", disk, is_due=True)
    dead[0].wait_for(lambda: dead[0].stuck == [True])
    pool.add("live", "live", live, is_due=True)
    live.wait_for(lambda: live.poll_count > 20)
    assert "dead-0" in pool.stuck_keys
    assert "live" not in pool.stuck_keys
    for disk in dead:
        disk.set_hangs(False)
    for disk in dead:
        disk.wait_for(lambda disk=disk: disk.poll_count > 20)  # type: ignore[misc]
        disk.wait_for(lambda disk=disk: not disk.stuck or not disk.stuck[-1])  # type: ignore[misc]
    assert pool.stuck_keys == frozenset()


def test_pool_source_recovers_though_its_thread_hangs(pool: PollerPool):
    disk = Disk(hangs=True)
    pool.add("a", "d", disk, is_due=True)
    disk.wait_for(lambda: disk.stuck == [True])
    with disk.changed:
        # The path has recovered, but the hanging poll still hangs.
        disk.hangs, disk.poll = True, lambda number: 0.001  # type: ignore[method-assign]
    disk.wait_for(lambda: disk.stuck[-1] is False)
    assert pool.stuck_keys == frozenset()
    disk.set_hangs(False)
    pool.remove("a")
    assert pool.wait_until_idle("a", TIMEOUT_SECONDS)


def test_failing_poll_is_logged_and_retried(pool: PollerPool):
    disk = Disk()
    disk.error = ValueError("bug")
    with capture_logs() as logs:
        pool.add("a", "d", disk, is_due=True)
        disk.wait_for(lambda: disk.poll_count > 1)
    assert logs[0]["event"] == "poll_failed"
    assert logs[0]["model"] == "a"


def test_stopping_pool_skips_hanging_disk(pool: PollerPool):
    disk = Disk(hangs=True)
    pool.add("a", "d", disk, is_due=True)
    disk.wait_for(lambda: disk.hanging_count > 0)
    pool.remove("a")
    pool.stop()
    assert not pool.wait_until_idle("a", 0.01)
    disk.set_hangs(False)
    assert pool.wait_until_idle("a", TIMEOUT_SECONDS)


def has_polled(disk: Disk) -> bool:
    return disk.poll_count > 5


def wait_until(is_so: Callable[[], bool]) -> None:
    clock = SystemClock()
    started_ns = clock.now_ns()
    while not is_so():
        assert seconds_since(clock, started_ns) < TIMEOUT_SECONDS
        pause(clock, 0.001)


@pytest.fixture
def grants(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The number of threads that the kernel still grants for each first part of a name; without end if unset."""
    granted: dict[str, int] = {}
    start = threading.Thread.start

    def start_if_granted(thread: threading.Thread) -> None:
        kind = thread.name.split("-")[0]
        if granted.get(kind, 1) < 1:
            raise RuntimeError("can't start new thread")
        if kind in granted:
            granted[kind] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_granted)
    return granted


def test_pool_out_of_threads_polls_once_it_has_one(
    pool: PollerPool, grants: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.source.poller_pool.RETRY_SECONDS", 0.01)
    grants["poller"] = 0
    disk = Disk()
    with capture_logs() as logs:
        pool.add("a", "d", disk, is_due=True)
        wait_until(lambda: bool(logs))
        grants["poller"] = 1
        disk.wait_for(lambda: disk.poll_count > 1)
    assert [log["event"] for log in logs] == ["poller_not_started"]
    pool.remove("a")
    assert pool.wait_until_idle("a", TIMEOUT_SECONDS)


def test_pool_with_one_thread_polls_all_sources(pool: PollerPool, grants: dict[str, int]) -> None:
    grants["poller"] = 1
    disks = [Disk() for _ in range(3)]
    for number, disk in enumerate(disks):
        pool.add(str(number), str(number), disk, is_due=True)
    for disk in disks:
        disk.wait_for(partial(has_polled, disk))


class WatchedDisk(Disk):
    """A source that is polled if its directory changes, and never by time."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.shows_changes = True

    def poll(self, number: int) -> float | None:
        assert self.pool is not None
        identity = glance(str(self.directory), ())
        assert identity is not None
        listed_ns = MTIME_GRAIN_NS if self.shows_changes else 0
        sight = Sight(identity, (), 0, listed_ns, is_dated=True)
        is_watched = self.pool.watch("m", str(self.directory), sight, PERIOD_SECONDS)
        assert is_watched == self.shows_changes
        super().poll(number)
        return None

    def has_polled(self, count: int) -> bool:
        return self.poll_count == count


PERIOD_SECONDS = 0.01


@pytest.fixture(params=["ext4", "nfs4"])
def watched_disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WatchedDisk]:
    """A disk whose changes the kernel reports, or the glances of a round."""
    monkeypatch.setattr("serving.source.directory_watch.file_system_of", lambda _: request.param)
    disk = WatchedDisk(tmp_path)
    pool = disk.pool = PollerPool(LIMITS, SystemClock())
    pool.add("m", "group", disk, is_due=True)
    pool.start()
    disk.wait_for(lambda: disk.poll_count == 1)
    yield disk
    pool.stop()
    assert pool.join(TIMEOUT_SECONDS)


def test_source_is_due_when_its_directory_changes(watched_disk: WatchedDisk) -> None:
    for version in (1, 2):
        (watched_disk.directory / str(version)).mkdir()
        watched_disk.wait_for(partial(watched_disk.has_polled, version + 1))


@pytest.mark.parametrize("watched_disk", ["nfs4"], indirect=True)
def test_sight_that_may_hide_changes_is_no_watch(watched_disk: WatchedDisk) -> None:
    watched_disk.shows_changes = False
    assert watched_disk.pool is not None
    watched_disk.pool.wake("m")
    watched_disk.wait_for(lambda: watched_disk.poll_count == 2)


@pytest.mark.parametrize("watched_disk", ["nfs4"], indirect=True)
def test_disk_that_hangs_in_a_round_is_reported(
    watched_disk: WatchedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round itself is no model, so that only the model counts as stuck."""
    pool, may_go_on = watched_disk.pool, threading.Event()
    assert pool is not None

    def hang(directory: str, links: tuple[str, ...]) -> None:
        watched_disk.set_hangs(True)
        may_go_on.wait(TIMEOUT_SECONDS)

    monkeypatch.setattr("serving.source.glance_rounds.glance", hang)
    watched_disk.wait_for(lambda: watched_disk.hanging_count > 0)
    watched_disk.wait_for(lambda: pool.stuck_keys == {"m"})
    assert pool.source_count == 1
    may_go_on.set()
    watched_disk.set_hangs(False)
    watched_disk.wait_for(lambda: pool.stuck_keys == frozenset())

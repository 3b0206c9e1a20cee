"""The supervisor's loop, over servers that a script ends."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import DataLoss
from serving.base.service_manager import ServiceManager
from serving.core.blocked_versions import BlockedBy, BlockedVersion, BlockedVersions
from serving.supervisor.block_store import BlockStore
from serving.supervisor.child_process import ChildProcess
from serving.supervisor.crash_page import CrashMarks, CrashPage, MarkedVersion
from serving.supervisor.events import Events
from serving.supervisor.restarts import Restarts
from serving.supervisor.supervisor import Supervisor
from tests.unit.fakes.clocks import FakeClock

CTR_7 = MarkedVersion("ctr", 7)
TERM = signal.SIGTERM


@dataclass
class Life:
    """One server: the signals that come while it lives, its status of waitpid(2), and its marks.

    A long life outlasts the start of a standby. A failed standby ends before it is needed.
    """

    status: int
    suspects: tuple[MarkedVersion, ...] = ()
    signals: Sequence[int] = ()
    has_begun_loads: bool = True
    is_long: bool = False
    is_failed_standby: bool = False


class FakePage(CrashPage):
    """The page of one life. It has no memory."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.is_closed = False

    def read(self) -> CrashMarks:
        assert not self.is_closed
        return CrashMarks(suspects=self.life.suspects, has_begun_loads=self.life.has_begun_loads)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeBlocks(BlockStore):
    refusal: str = ""
    is_damaged: bool = False
    by_name: dict[str, BlockedVersions] = field(default_factory=dict)

    def read(self) -> Mapping[str, BlockedVersions]:
        if self.is_damaged:
            raise DataLoss("damaged")
        return self.by_name

    def add(self, blocks: Mapping[MarkedVersion, BlockedVersion]) -> str:
        for marked, block in () if self.refusal else blocks.items():
            before = self.by_name.get(marked.name, {})
            self.by_name[marked.name] = {**before, marked.version: block}
        return self.refusal


class FakeChild(ChildProcess):
    def __init__(self, world: "World", life: Life) -> None:
        super().__init__(42)
        self._world = world
        self._life = life

    def begin(self, restart_count: int) -> None:
        self._world.restart_counts.append(restart_count)
        self._world.life = self._life
        self._world.signals = list(self._life.signals)
        self._world.is_alive = True

    def wait_status(self) -> int | None:
        if self._world.signals:
            return None
        self._world.is_alive = False
        return self._life.status

    def send_signal(self, number: int) -> None:
        self._world.passed_on.append(number)

    def release(self, restart_count: int) -> bool:
        if not self._life.is_failed_standby:
            self.begin(restart_count)
        return not self._life.is_failed_standby

    def discard(self) -> None:
        self._world.discarded.append(self._life)


class FakeEvents(Events):
    """The signals of a world, which come when they are waited for."""

    def __init__(self, world: "World") -> None:
        super().__init__(None)
        self._world = world

    def wait(self, timeout_seconds: float | None) -> list[int]:
        return self._world.wait_for_events(timeout_seconds)


class World:
    """A supervisor of the servers in `lives`; the last one ends for good."""

    def __init__(self, lives: Sequence[Life], blocks: FakeBlocks | None = None) -> None:
        self.lives = list(lives)
        self.life = self.lives[0]
        self.blocks = blocks or FakeBlocks()
        self.clock = FakeClock()
        self.signals: list[int] = []
        self.signals_in_pause: list[int] = []
        self.passed_on: list[int] = []
        self.pages: list[FakePage] = []
        self.restart_counts: list[int] = []
        self.logged: list[tuple[str, Mapping[str, object]]] = []
        self.pauses: list[float] = []
        self.is_alive = False
        self.standby_count = 0
        self.discarded: list[Life] = []
        self.standby_error: OSError | None = None

    def make_page(self) -> FakePage:
        self.pages.append(FakePage(self.lives[len(self.pages)]))
        return self.pages[-1]

    def start_child(self, page: CrashPage, restart_count: int | None) -> FakeChild:
        assert page is self.pages[-1]
        child = FakeChild(self, self.pages[-1].life)
        if restart_count is not None:
            child.begin(restart_count)
            return child
        self.standby_count += 1
        if self.standby_error is not None:
            error, self.standby_error = self.standby_error, None
            raise error
        return child

    def wait_for_events(self, timeout_seconds: float | None) -> list[int]:
        if self.is_alive and self.life.is_long and timeout_seconds is not None:
            return []
        if not self.is_alive and timeout_seconds is not None:
            self.pauses.append(timeout_seconds)
            self.clock.advance(timeout_seconds)
            return self.signals_in_pause
        return [self.signals.pop(0)] if self.signals else [signal.SIGCHLD]

    def run(self) -> int:
        return Supervisor(
            start_child=self.start_child,
            make_page=self.make_page,
            events=FakeEvents(self),
            restarts=Restarts(self.clock),
            blocks=self.blocks,
            log=lambda level, event, message, fields: self.logged.append((event, fields)),
            service_manager=ServiceManager({}),
            clock=self.clock,
        ).run()


def exited(status: int) -> int:
    return status << 8


CLEAN = Life(exited(0))
CRASH = Life(signal.SIGSEGV, (CTR_7,))


def test_status_of_server_is_the_supervisors():
    assert World([Life(exited(2))]).run() == 2


def test_stop_signal_is_passed_on_and_ends():
    world = World([Life(exited(0), signals=[TERM, signal.SIGCHLD])])
    assert world.run() == 0
    assert world.passed_on == [TERM]


def test_signal_that_comes_with_the_end_stops():
    """The signal that woke the supervisor finds no server, and must not be lost."""
    world = World([Life(signal.SIGKILL), CLEAN])
    waits: Iterator[list[int]] = iter([[TERM]])
    world.wait_for_events = lambda timeout_seconds: next(waits)  # type: ignore[method-assign]
    assert world.run() == 128 + signal.SIGKILL


def test_crash_blocks_version_and_restarts():
    world = World([CRASH, CLEAN])
    assert world.run() == 0
    assert world.restart_counts == [0, 1]
    assert world.blocks.by_name["ctr"][7].by is BlockedBy.CRASH
    assert [event for event, _ in world.logged] == ["version_crashed", "server_restarts"]
    assert all(page.is_closed for page in world.pages)


def test_block_that_is_not_kept_counts_towards_a_loop():
    world = World([*[CRASH] * 4, CLEAN], FakeBlocks(refusal="disk full"))
    assert world.run() == 0
    assert sum(world.pauses) == 1 + 2
    assert "version_crashed" not in [event for event, _ in world.logged]


def test_damaged_file_of_blocks_stops_nothing():
    world = World([CRASH, CLEAN], FakeBlocks(is_damaged=True))
    assert world.run() == 0


def test_stop_in_back_off_ends():
    world = World([*[Life(signal.SIGKILL)] * 3, CLEAN])
    world.signals_in_pause = [TERM]
    assert world.run() == 128 + signal.SIGKILL
    assert world.restart_counts == [0, 1, 2]


def test_standby_serves_after_crash():
    long_crash = replace(CRASH, is_long=True)
    world = World([long_crash, CRASH, CLEAN])
    assert world.run() == 0
    assert world.restart_counts == [0, 1, 2]
    assert world.standby_count == 1
    assert world.discarded == []
    assert all(page.is_closed for page in world.pages)


def test_failed_standby_is_replaced_by_a_new_server():
    failed = Life(exited(1), is_failed_standby=True)
    world = World([replace(CRASH, is_long=True), failed, CLEAN])
    assert world.run() == 0
    assert world.restart_counts == [0, 1]
    assert all(page.is_closed for page in world.pages)


def test_standby_ends_with_its_supervisor():
    unneeded = Life(exited(0))
    world = World([replace(CLEAN, is_long=True), unneeded])
    assert world.run() == 0
    assert world.discarded == [unneeded]
    assert all(page.is_closed for page in world.pages)


def test_standby_that_cannot_start_is_tried_again():
    world = World([replace(CLEAN, is_long=True), CLEAN, CLEAN])
    world.standby_error = OSError("no memory")
    assert world.run() == 0
    assert world.standby_count == 2
    assert all(page.is_closed for page in world.pages)


LIVES = st.lists(
    st.builds(
        Life,
        status=st.sampled_from([signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, exited(1)]),
        suspects=st.lists(
            st.builds(MarkedVersion, st.sampled_from("ab"), st.integers(1, 3)), max_size=2
        ).map(tuple),
        is_long=st.booleans(),
    ),
    max_size=40,
)


@given(LIVES)
def test_every_crash_restarts_and_blocks_suspects_only(lives: list[Life]):
    world = World([*lives, CLEAN])
    assert world.run() == 0
    assert world.restart_counts == list(range(len(lives) + 1))
    suspected = {(item.name, item.version) for life in lives for item in life.suspects}
    blocked = {(name, version) for name, rows in world.blocks.by_name.items() for version in rows}
    assert blocked <= suspected
    assert all(seconds <= 60 for seconds in world.pauses)

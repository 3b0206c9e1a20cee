"""CompileRuns: which programs a process compiles, and what its end means for a version and the server."""

import os
import signal
import threading
from collections.abc import Callable, Sequence

import pytest
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.base.errors import Cancelled, FailedPrecondition, ResourceExhausted
from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.loading.child_process import Child
from serving.loading.compile_runs import CompileRuns, Program
from serving.loading.program_process import UNABLE, Arguments
from tests.unit.fakes.children import FEW_CORES, FakeChild, program_runs
from tests.unit.fakes.data_plane import FakeAccelerator

ARGUMENTS = Arguments("/p.so", "/cache", priority="idle")
ID = ServableId("m", 7)
ACCELERATOR = FakeAccelerator()
PROGRAMS = [Program("signature 'a', 1 rows", b"first"), Program("signature 'a', 8 rows", b"second")]


class Started:
    """Compile runs with fake processes, each of which ends with `status` after so many programs were begun."""

    def __init__(self, seconds_max: float = 30) -> None:
        self.status: int | None = 0
        self.begun = len(PROGRAMS)
        self.arguments: list[Arguments] = []
        self.codes: list[Sequence[bytes]] = []
        self.children: list[FakeChild] = []
        self.come = threading.Semaphore(0)
        self.on_spawn: Callable[[int], object] = lambda stderr: None
        runs = program_runs(self._spawn, seconds_max)
        self.runs = CompileRuns(ARGUMENTS, runs, SystemClock())
        self.runs.start()

    def run(self, cancellation: Cancellation | None = None) -> None:
        self.runs.run(ID, ACCELERATOR, PROGRAMS, cancellation or Cancellation())

    def _spawn(self, arguments: Arguments, programs: Sequence[bytes], stderr: int) -> Child:
        child = FakeChild()
        self.arguments.append(arguments)
        self.codes.append(programs)
        self.children.append(child)
        os.write(arguments.begun, b"." * self.begun)
        self.on_spawn(stderr)
        if self.status is not None:
            child.end(self.status)
        self.come.release()
        return child


def test_a_process_gets_the_programs_and_the_topology():
    started = Started()
    with capture_logs() as logs:
        started.run()
    [arguments] = started.arguments
    assert (arguments.plugin, arguments.cache_directory) == ("/p.so", "/cache")
    assert (arguments.topology, arguments.target) == ("a fake", "fake plugin, Fake")
    assert (arguments.priority, arguments.cores) == ("idle", FEW_CORES)
    assert arguments.visible_devices == ""
    assert started.codes == [[b"first", b"second"]]
    [line] = logs
    assert (line["event"], line["version"], line["programs"]) == ("programs_compiled", 7, 2)


def test_nothing_is_compiled_beside_a_start():
    runs = CompileRuns(ARGUMENTS, program_runs(lambda *_: FakeChild()), SystemClock())
    assert not runs.may_compile(ACCELERATOR)
    runs.start()
    assert runs.may_compile(ACCELERATOR)
    assert not runs.may_compile(FakeAccelerator(topology=None))


def test_a_crash_names_the_program_and_the_remedy():
    started = Started()
    started.status = -signal.SIGSEGV
    started.on_spawn = lambda stderr: os.write(stderr, b"F0000 check failed\n")
    with pytest.raises(FailedPrecondition, match=r"SIGSEGV.*'a', 8 rows.*check failed") as raised:
        started.run()
    assert 'set platform = "tensorflow"' in str(raised.value)
    assert started.runs.may_compile(ACCELERATOR), "another program need not crash it"


def test_a_process_without_memory_is_tried_again_later():
    started = Started()
    started.status, started.begun = -signal.SIGKILL, 1
    with pytest.raises(ResourceExhausted, match=r"'a', 1 rows.*memory"):
        started.run()


@pytest.mark.parametrize("status", [1, -signal.SIGTERM])
def test_the_server_compiles_what_a_process_fails_to(status: int):
    started = Started()
    started.status = status
    with capture_logs() as logs:
        started.run()
    [line] = logs
    assert line["event"] == "programs_left_to_server"
    assert line["reason"] == f"the process ended with status {status}"


def test_the_server_compiles_what_hangs_in_a_process():
    started = Started(seconds_max=0.01)
    started.status = None
    with capture_logs() as logs:
        started.run()
    assert started.children[0].is_ended
    assert "took more than 0.01 s" in logs[0]["reason"]


@pytest.mark.parametrize("status", [UNABLE, -signal.SIGSEGV])
def test_a_process_without_a_compiler_is_given_up(status: int):
    started = Started()
    started.status, started.begun = status, 0
    with capture_logs() as logs:
        started.run()
        assert started.runs.may_compile(ACCELERATOR), "it may have been short of something"
        started.run()
    assert not started.runs.may_compile(ACCELERATOR)
    left = "programs_left_to_server"
    assert [line["event"] for line in logs] == [left, "compile_process_given_up", left]


def test_a_process_that_hangs_at_once_is_given_up():
    started = Started(seconds_max=0.01)
    started.status, started.begun = None, 0
    with capture_logs():
        started.run()
        started.run()
    assert not started.runs.may_compile(ACCELERATOR), "each load would wait as long"


def test_a_hang_in_a_program_gives_nothing_up():
    started = Started(seconds_max=0.01)
    started.status = None
    with capture_logs():
        for _ in range(3):
            started.run()
    assert started.runs.may_compile(ACCELERATOR)


def test_a_compiler_that_comes_back_is_not_given_up():
    started = Started()
    with capture_logs():
        for status in (UNABLE, 0, UNABLE):
            started.status = status
            started.begun = 0 if status else 2
            started.run()
    assert started.runs.may_compile(ACCELERATOR)


def test_a_cancelled_load_ends_its_process():
    started, cancellation, errors = Started(), Cancellation(), []

    def run() -> None:
        try:
            started.run(cancellation)
        except Cancelled as error:
            errors.append(error)

    started.status = None
    with capture_logs() as logs:
        thread = threading.Thread(target=run)
        thread.start()
        assert started.come.acquire(timeout=30)
        cancellation.cancel()
        thread.join(30)
    assert started.children[0].is_ended
    assert len(errors) == 1
    assert logs == [], "a cancelled load says nothing"


def test_loads_compile_one_after_the_other():
    started, cancellation = Started(), Cancellation()
    started.status = None
    with capture_logs():
        threads = [threading.Thread(target=started.run) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert started.come.acquire(timeout=30)
        cancellation.cancel()
        with pytest.raises(Cancelled):  # a load that waits for its turn can be cancelled
            started.run(cancellation)
        assert len(started.children) == 1
        started.children[0].end(0)
        assert started.come.acquire(timeout=30)
        started.children[1].end(0)
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)

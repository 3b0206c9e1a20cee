"""The process that autotunes: its ends, and what it gets and may take."""

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from serving.core.cancellation import Cancellation
from serving.core.servable import ServableId
from serving.loading.child_process import Child
from serving.loading.program_process import Arguments
from serving.loading.trial_process import (
    TrialRuns,
    Trials,
    trial_memory_share,
    visible_device,
)
from tests.unit.fakes.children import FEW_CORES, FakeChild, Immortal, program_runs

ARGUMENTS = Arguments("/p.so", "/cache", memory_share=0.05)
TRIALS = Trials(ServableId("m", 7), "0", [b"first", b"second"])


def all_of_them() -> Sequence[bytes]:
    """The programs that are not in the cache after a run that finished none."""
    return TRIALS.programs


class Started:
    """Runs of trials with fake processes."""

    def __init__(self, seconds_max: float = 30) -> None:
        self.children: list[FakeChild] = []
        self.arguments: list[Arguments] = []
        self.programs: list[Sequence[bytes]] = []
        self.runs = TrialRuns(ARGUMENTS, program_runs(self._spawn, seconds_max))
        self.come = threading.Semaphore(0)
        self.on_spawn: Callable[[FakeChild, int], None] = lambda child, stderr: None

    def run(self, trials: Trials = TRIALS, *unfinished: bytes) -> str:
        return self.runs.run(trials, Cancellation(), lambda: unfinished or trials.programs)

    def _spawn(self, arguments: Arguments, programs: Sequence[bytes], stderr: int) -> Child:
        child = FakeChild()
        self.arguments.append(arguments)
        self.programs.append(programs)
        self.on_spawn(child, stderr)
        self.children.append(child)
        self.come.release()
        return child


def _end(status: int | None, child: FakeChild, stderr: int) -> None:
    """Ends a process at once; not if there is no status."""
    if status is not None:
        child.end(status)


def test_trials_that_end_well_are_logged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    started = Started()
    started.on_spawn = partial(_end, 0)
    with capture_logs() as logs:
        assert started.run() == ""
    [line] = logs
    assert (line["event"], line["model"], line["version"]) == ("autotuned", "m", 7)
    assert (line["programs"], line["device"]) == (2, "0")
    [arguments] = started.arguments
    assert arguments == ARGUMENTS._replace(cores=FEW_CORES, visible_devices="0")


def test_trials_that_fail_say_what_they_wrote():
    def fail(child: FakeChild, stderr: int) -> None:
        os.write(stderr, b"/cache/1.pjrt cannot be written\n")
        child.end(1)

    started = Started()
    started.on_spawn = fail
    with capture_logs() as logs:
        reason = started.run()
    [line] = logs
    assert reason == line["reason"] == "the process ended with status 1"
    assert line["event"] == "autotuning_failed"
    assert line["stderr"] == "/cache/1.pjrt cannot be written"


def test_trials_that_fail_twice_are_given_up():
    started = Started()
    started.on_spawn = partial(_end, 1)
    with capture_logs() as logs:
        for is_left in True, False, False:
            assert started.run()
            assert bool(started.runs.triable(TRIALS.programs)) == is_left
        assert len(started.children) == 2
        started.on_spawn = partial(_end, 0)
        other = Trials(ServableId("m", 8), "0", [b"first", b"third"])
        assert "failed twice" in started.run(other)
        assert len(started.children) == 3
    assert logs[2]["programs"] == 1, "what has failed is left out"


def test_only_programs_without_an_end_have_failed():
    started = Started()
    started.on_spawn = partial(_end, 1)
    with capture_logs():
        assert started.run(TRIALS, b"second", b"of another signature")
        assert started.run(TRIALS, b"second", b"of another signature")
        assert started.runs.triable(TRIALS.programs) == [b"first"]
        assert started.run(TRIALS)
    assert started.programs[2:] == [[b"first"]]


def test_trials_that_cannot_start_fail():
    def refuse(child: FakeChild, stderr: int) -> None:
        raise PermissionError("no process")

    started = Started()
    started.on_spawn = refuse
    with capture_logs() as logs:
        assert "no process" in started.run()
        started.on_spawn = partial(_end, 0)
        assert started.run() == ""
    assert "no process" in logs[0]["reason"]


def test_trials_that_hang_are_killed():
    started = Started(seconds_max=0.01)
    with capture_logs() as logs:
        reason = started.run()
    assert started.children[0].is_ended
    assert reason == logs[0]["reason"]
    assert "took more than 0.01 s" in reason
    assert "raise --accelerator_autotuning_seconds" in reason


def test_trials_wait_for_a_process_that_remains():
    held = Immortal()
    children: list[FakeChild] = [held]

    runs = TrialRuns(ARGUMENTS, program_runs(lambda *_: children.pop(), seconds_max=0.01))
    with capture_logs():
        assert "was killed" in runs.run(TRIALS, Cancellation(), all_of_them)
        for _ in range(3):
            assert "has not ended yet" in runs.run(TRIALS, Cancellation(), all_of_them)
        held.end(-9)
        children.append(FakeChild())
        children[0].end(0)
        assert runs.run(TRIALS, Cancellation(), all_of_them) == "", (
            "only a process of its own is a failure"
        )


def test_trials_that_are_cancelled_end_their_process():
    started, cancellation = Started(), Cancellation()
    with capture_logs() as logs:
        run = threading.Thread(target=started.runs.run, args=(TRIALS, cancellation, all_of_them))
        run.start()
        assert started.come.acquire(timeout=30)
        cancellation.cancel()
        run.join(30)
    assert not run.is_alive()
    assert started.children[0].is_ended
    assert logs == []


def test_a_cancel_waits_ten_seconds_at_most():
    cancellation = Cancellation()
    held = Immortal(cancellation.cancel)
    runs = TrialRuns(ARGUMENTS, program_runs(lambda *_: held, seconds_max=900))
    assert runs.run(TRIALS, cancellation, all_of_them)
    assert held.waits == [1, 10]
    assert "has not ended yet" in runs.run(TRIALS, cancellation, all_of_them)


@given(st.lists(st.sampled_from(["well", "badly", "never", "cancelled"]), max_size=8))
def test_trials_end_every_process(ends: Sequence[str]):
    statuses = {"well": 0, "badly": 1}
    started = Started(seconds_max=0.02)
    with capture_logs():
        for index, end in enumerate(ends):
            cancellation = Cancellation()
            if end == "cancelled":
                cancellation.cancel()
            started.on_spawn = partial(_end, statuses.get(end))
            trials = Trials(ServableId("m", 1), "0", [bytes([index])])
            assert (started.runs.run(trials, cancellation, list) == "") == (end == "well")
    assert all(child.is_ended and child.waited.is_set() for child in started.children)


@given(st.floats(0, 1))
def test_autotuning_never_takes_memory_of_the_server(fraction: float):
    share = trial_memory_share(fraction)
    assert share >= 0
    assert fraction + share <= 1
    assert (share > 0) == (fraction <= 0.98)


def test_autotuning_share_is_half_of_what_is_left():
    assert trial_memory_share(0.9) == pytest.approx(0.05)
    assert trial_memory_share(1.0) == 0


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [("1", None, "1"), ("1", "4, 6", "6"), ("0", "GPU-a", "GPU-a"), ("2", "4,6", None)],
)
def test_autotuning_sees_the_device_of_the_version(
    device: str, visible: str | None, expected: str | None
):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_device(device, environment) == expected

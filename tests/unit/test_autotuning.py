"""Programs of versions that serve, replaced by autotuned ones in the background."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from serving.base.clock import Clock, SystemClock
from serving.base.errors import StatusCode
from serving.base.protos import get_model_metadata_pb2, predict_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.core.model_settings import GateSettings
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    UNLOADING,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.data_plane.servables import AcceleratedSignature
from serving.gates.answer_watch import Answer
from serving.gates.tensor_compare import read_outputs
from serving.loading.autotuning import Autotuning, Tuning, TuningState, UntunedVersion
from serving.loading.program_process import Arguments
from serving.loading.trial_process import TrialRuns
from tests.unit.fakes.children import program_runs
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.servables import FakeServable
from tests.unit.signatures import FLOAT, signature_def

ARGUMENTS = Arguments("/p.so", "/cache", memory_share=0.05)
WAITING, DONE = Tuning(TuningState.WAITING), Tuning(TuningState.DONE)


def answer(value: float) -> bytes:
    message = predict_pb2.PredictResponse()
    message.outputs["y"].CopyFrom(to_tensor_proto(np.array([value], np.float32)))
    serialized: bytes = message.SerializeToString()
    return serialized


def recorded(value: float) -> Answer:
    outputs = read_outputs("Predict", answer(value))
    assert outputs is not None
    return Answer(method="Predict", request=b"request", outputs=outputs)


def untuned_servable(number: int, rows: tuple[int, ...] = (1, 8)) -> FakeServable:
    """A version that answers 2.0, whose programs are untuned, and of which the cache has tuned ones after trials."""
    servable = FakeServable(ServableId("m", number))
    definitions = get_model_metadata_pb2.SignatureDefMap()
    definitions.signature_def["s"].CopyFrom(
        signature_def({"x": (FLOAT, (-1,))}, {"y": (FLOAT, (-1,))})
    )
    servable.signatures = definitions.SerializeToString()
    servable.respond = lambda request: answer(2.0)
    servable.untuned = [b"%d of %d" % (count, number) for count in rows]
    servable.accelerated = [AcceleratedSignature("s", rows, "", (), (), untuned_rows=rows)]
    return servable


class FakeProcess:
    """A process of trials that fills the cache of a servable when it ends well."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._ended = threading.Event()
        self._status = -9

    def end(self, status: int) -> None:
        if status == 0:
            self._on_end()
        self._status = status
        self._ended.set()

    def wait(self, timeout_seconds: float) -> int | None:
        return self._status if self._ended.wait(timeout_seconds) else None

    def kill(self) -> None:
        self._ended.set()

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()


class Tuned:
    """Autotuning with fake processes, which `on_spawn` may end at once."""

    def __init__(self, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        trials = TrialRuns(ARGUMENTS, program_runs(self._spawn, clock=clock))
        self.autotuning = Autotuning(trials, StatusError, clock)
        self.servables: dict[ServableId, FakeServable] = {}
        self.processes: list[FakeProcess] = []
        self.programs: list[Sequence[bytes]] = []
        self.logs: Sequence[Mapping[str, object]] = ()
        self.spawned = threading.Semaphore(0)
        self.on_spawn: Callable[[FakeProcess], None] = lambda process: None

    def _spawn(self, arguments: Arguments, programs: Sequence[bytes], stderr: int) -> FakeProcess:
        servable = self.servables[ServableId("m", int(programs[0].split()[-1]))]
        rows = tuple(int(program.split()[0]) for program in programs)

        def fill() -> None:
            servable.tuned_rows = list(rows)
            servable.untuned = []

        process = FakeProcess(fill)
        self.programs.append(programs)
        self.processes.append(process)
        self.on_spawn(process)
        self.spawned.release()
        return process

    def add(self, servable: FakeServable, *answers: Answer) -> None:
        self.servables[servable.id] = servable
        self.autotuning.add(
            UntunedVersion(
                servable_id=servable.id,
                servable=servable,
                device="0",
                answers=answers,
                gates=GateSettings(),
            )
        )

    def moves(self, servable: FakeServable, state: ServableState) -> None:
        self.autotuning.on_status(ServableStatus(id=servable.id, state=state))

    def serve(self, servable: FakeServable, *answers: Answer) -> None:
        self.add(servable, *answers)
        self.moves(servable, AVAILABLE)

    @property
    def breaks(self) -> Sequence[Mapping[str, object]]:
        """The errors that nothing was made for, as a failed assertion of a fake on the thread."""
        return [line for line in self.logs if line["event"] == "autotuning_broken"]

    def ended(self, servable: FakeServable) -> Tuning:
        """Waits for the end of a version's autotuning."""
        never = threading.Event()
        for _ in range(3_000):
            tuning = self.autotuning.tuning(servable.id)
            assert tuning is not None
            if tuning.state in (TuningState.DONE, TuningState.FAILED):
                return tuning
            never.wait(0.01)
        raise AssertionError(f"the autotuning of {servable.id} does not end")


class PauseClock(FakeClock):
    """Pauses take no time and call `on_pause`. A wait without a limit lasts until it is notified."""

    on_pause: Callable[[], object] = staticmethod(lambda: None)

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        if timeout_seconds is None:
            return condition.wait(30)
        self.on_pause()
        return super().wait(condition, timeout_seconds)


@contextmanager
def tuned(clock: Clock | None = None) -> Iterator[Tuned]:
    with capture_logs() as logs:
        made = Tuned(clock)
        made.logs = logs
        made.autotuning.start()
        try:
            yield made
        finally:
            assert made.autotuning.stop(30)


def test_programs_are_tuned_once_their_version_serves():
    servable = untuned_servable(7)
    with tuned() as it:
        it.add(servable, recorded(2.0))
        it.moves(servable, LOADING)
        assert it.autotuning.tunings() == {servable.id: WAITING}
        assert it.processes == []
        it.moves(servable, AVAILABLE)
        assert it.spawned.acquire(timeout=30)
        assert it.autotuning.tuning(servable.id) == Tuning(TuningState.RUNNING)
        assert servable.used_rows == []
        it.processes[0].end(0)
        assert it.ended(servable) == DONE
        it.moves(servable, AVAILABLE)  # as a change of its health does
        assert it.autotuning.tuning(servable.id) == DONE
    assert servable.used_rows == [1, 8]
    assert servable.offered_rows == []
    assert len(it.processes) == 1


def test_programs_in_the_cache_need_no_process():
    servable = untuned_servable(7)
    servable.untuned, servable.tuned_rows = [], [1, 8]
    with tuned() as it:
        it.serve(servable, recorded(2.0))
        assert it.ended(servable) == DONE
    assert it.processes == []
    assert servable.used_rows == [1, 8]


@pytest.mark.parametrize("answers", [(), (2.0,)])
def test_tuned_programs_that_differ_are_not_used(answers: tuple[float, ...]):
    servable = untuned_servable(7)
    servable.respond_tuned = lambda rows, request: answer(2.0 if rows == 1 else 2.01)
    with tuned() as it, capture_logs() as logs:
        it.on_spawn = lambda process: process.end(0)
        it.serve(servable, *map(recorded, answers))
        tuning = it.ended(servable)
    assert servable.used_rows == [1]
    assert servable.offered_rows == []
    assert tuning.state is TuningState.FAILED
    assert "programs of 8 rows: output 'y' value 0 is 2.01, was 2" in tuning.reason
    assert [line["event"] for line in logs][-2:] == ["programs_tuned", "tuned_programs_differ"]


def test_recorded_answers_rule():
    servable = untuned_servable(7)
    with tuned() as it:
        it.on_spawn = lambda process: process.end(0)
        it.serve(servable, recorded(3.0))
        assert it.ended(servable).state is TuningState.FAILED
    assert servable.used_rows == []


def test_a_try_that_fails_changes_nothing():
    servable = untuned_servable(7, rows=(1,))

    def refuse(rows: int, request: bytes) -> bytes:
        raise StatusError(13, "the device is gone")

    servable.respond_tuned = refuse
    with tuned() as it:
        it.on_spawn = lambda process: process.end(0)
        it.serve(servable, recorded(2.0))
        tuning = it.ended(servable)
    assert servable.used_rows == []
    assert "the device is gone" in tuning.reason


def first_fail(servable: FakeServable, error: StatusError, count: int) -> None:
    """Makes the first `count` runs of tuned programs fail."""
    left = [error] * count

    def respond(rows: int, request: bytes) -> bytes:
        if left:
            raise left.pop()
        return servable.respond(request)

    servable.respond_tuned = respond


@pytest.mark.parametrize(
    "code",
    [
        StatusCode.UNAVAILABLE,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.ABORTED,
        StatusCode.DEADLINE_EXCEEDED,
    ],
)
def test_a_shortage_that_passes_is_waited_for(code: StatusCode):
    servable, clock = untuned_servable(7), PauseClock()
    first_fail(servable, StatusError(code, "short now"), 2)
    seen: list[Tuning | None] = []
    with tuned(clock) as it, capture_logs() as logs:
        clock.on_pause = lambda: seen.append(it.autotuning.tuning(servable.id))
        it.on_spawn = lambda process: process.end(0)
        it.serve(servable, recorded(2.0))
        assert it.ended(servable) == DONE
    assert seen == [Tuning(TuningState.WAITING, "short now")] * 2
    assert clock.waits == [10, 20]
    assert servable.used_rows == [1, 8]
    assert [line["event"] for line in logs if "reason" in line] == ["autotuning_waits"] * 2


def test_programs_without_memory_are_offered_again():
    servable, clock = untuned_servable(7), PauseClock()
    servable.untuned, servable.tuned_rows = [], [1]
    servable.tuned_shortage = "8 rows have no memory"

    def free() -> None:
        servable.tuned_rows, servable.tuned_shortage = [1, 8], ""

    clock.on_pause = free
    with tuned(clock) as it:
        it.serve(servable, recorded(2.0))
        assert it.ended(servable) == DONE
    assert clock.waits == [10]
    assert servable.used_rows == [1, 8]


def test_damaged_programs_fail_at_the_first_try():
    servable, clock = untuned_servable(7), PauseClock()
    servable.untuned, servable.tuned_rows = [], [1]
    servable.tuned_damage = "a program of 8 rows: bad magic"
    with tuned(clock) as it, capture_logs() as logs:
        it.serve(servable, recorded(2.0))
        assert it.ended(servable) == Tuning(TuningState.FAILED, servable.tuned_damage)
    assert clock.waits == []
    assert servable.used_rows == [1]
    (line,) = [line for line in logs if line["event"] == "tuned_programs_damaged"]
    assert line["reason"] == servable.tuned_damage


def test_programs_of_exact_rows_are_tried_with_these():
    servable = untuned_servable(7, rows=(4, 8))
    [signature] = servable.accelerated
    servable.accelerated = [replace(signature, needs_exact_rows=True)]

    def respond(rows: int, request: bytes) -> bytes:
        x = predict_pb2.PredictRequest.FromString(request).inputs["x"]
        if x.tensor_shape.dim[0].size != rows:
            raise StatusError(StatusCode.NOT_FOUND, "the rows do not fill it")
        tried.append(rows)
        return answer(2.0)

    tried: list[int] = []
    servable.respond_tuned = respond
    with tuned() as it:
        it.on_spawn = lambda process: process.end(0)
        it.serve(servable)
        assert it.ended(servable) == DONE
    assert tried == servable.used_rows == [4, 8]


def test_a_shortage_of_the_programs_that_serve_passes():
    servable, clock = untuned_servable(7), PauseClock()
    answers = iter([StatusError(StatusCode.RESOURCE_EXHAUSTED, "short now")])

    def respond(request: bytes) -> bytes:
        for error in answers:
            raise error
        return answer(2.0)

    servable.respond = respond
    with tuned(clock) as it:
        it.on_spawn = lambda process: process.end(0)
        it.serve(servable)
        assert it.ended(servable) == DONE
    assert clock.waits == [10]


def test_a_shortage_that_lasts_is_given_up():
    servable, clock = untuned_servable(7), PauseClock()
    first_fail(servable, StatusError(StatusCode.UNAVAILABLE, "away"), 100)
    with tuned(clock) as it:
        it.on_spawn = lambda process: process.end(0)
        it.serve(servable, recorded(2.0))
        assert it.ended(servable) == Tuning(TuningState.FAILED, "away")
    assert clock.waits == [10 * 2**number for number in range(9)]
    assert servable.used_rows == servable.offered_rows == []


def test_a_version_that_waits_holds_up_no_other():
    first, second, clock = untuned_servable(7), untuned_servable(8), PauseClock()
    first_fail(first, StatusError(StatusCode.UNAVAILABLE, "away"), 1)
    has_paused = threading.Event()
    with tuned(clock) as it:

        def pause() -> None:
            it.moves(first, UNLOADING)
            has_paused.set()

        clock.on_pause = pause
        it.serve(first, recorded(2.0))
        it.serve(second, recorded(2.0))
        for process in 0, 1:
            assert it.spawned.acquire(timeout=30)
            it.processes[process].end(0)
        assert it.ended(second) == DONE
        assert has_paused.wait(30)
        assert it.autotuning.tunings() == {second.id: DONE}
    assert (first.used_rows, second.used_rows) == ([], [1, 8])


def test_a_process_that_fails_leaves_what_it_made():
    servable, clock = untuned_servable(7), PauseClock()

    def fail(process: FakeProcess) -> None:
        servable.tuned_rows, servable.untuned = [1], [b"8 of 7"]
        process.end(3)

    with tuned(clock) as it:
        it.on_spawn = fail
        it.serve(servable, recorded(2.0))
        tuning = it.ended(servable)
    assert tuning == Tuning(TuningState.FAILED, "the process ended with status 3")
    assert servable.used_rows == [1]
    assert it.programs == [[b"1 of 7", b"8 of 7"], [b"8 of 7"]]
    assert clock.waits == [10]


def test_a_process_that_fails_once_has_a_second():
    servable, clock = untuned_servable(7), PauseClock()
    statuses = iter([1, 0])
    with tuned(clock) as it:
        it.on_spawn = lambda process: process.end(next(statuses))
        it.serve(servable, recorded(2.0))
        assert it.ended(servable) == DONE
    assert len(it.processes) == 2
    assert servable.used_rows == [1, 8]


def test_programs_that_no_request_tries_have_a_remedy():
    servable = untuned_servable(7)
    servable.signatures = get_model_metadata_pb2.SignatureDefMap().SerializeToString()
    first_fail(servable, StatusError(StatusCode.NOT_FOUND, "not its rows"), 2)
    with tuned() as it:
        it.on_spawn = lambda process: process.end(0)
        it.serve(servable, recorded(2.0))
        tuning = it.ended(servable)
    assert tuning.state is TuningState.FAILED
    assert "give the version a warm-up file" in tuning.reason
    assert servable.used_rows == []


@pytest.mark.parametrize("state", [UNLOADING, END])
def test_a_version_that_is_retired_ends_its_process(state: ServableState):
    first, second = untuned_servable(7), untuned_servable(8)
    with tuned() as it:
        it.serve(first, recorded(2.0))
        it.serve(second, recorded(2.0))
        assert it.spawned.acquire(timeout=30)
        it.moves(first, state)
        assert it.processes[0].is_ended
        assert it.spawned.acquire(timeout=30)
        it.processes[1].end(0)
        assert it.ended(second) == DONE
        assert it.autotuning.tunings() == {second.id: DONE}
    assert first.used_rows == []


def test_a_version_that_is_retired_in_time_is_skipped():
    first, second, third = (untuned_servable(number) for number in (7, 8, 9))
    with tuned() as it:
        for servable in (first, second, third):
            it.serve(servable, recorded(2.0))
        assert it.spawned.acquire(timeout=30)
        it.moves(second, UNLOADING)
        it.on_spawn = lambda process: process.end(0)
        it.processes[0].end(0)
        assert it.ended(third) == DONE
    assert len(it.processes) == 2
    assert second.used_rows == []


@pytest.mark.parametrize("is_destroyed", [False, True])
def test_a_version_that_is_retired_ends_its_check(is_destroyed: bool):
    first, second = untuned_servable(7), untuned_servable(8)
    tries: list[int] = []

    def respond(rows: int, request: bytes) -> bytes:
        tries.append(rows)
        it.moves(first, UNLOADING)
        first.is_destroyed = is_destroyed
        return answer(2.0)

    first.respond_tuned = respond
    with tuned() as it:
        it.on_spawn = lambda process: process.end(0)
        it.serve(first, recorded(2.0), recorded(2.0))
        it.serve(second, recorded(2.0))
        assert it.ended(second) == DONE
        assert it.autotuning.tunings() == {second.id: DONE}
    assert tries == [1]
    assert first.used_rows == []
    assert is_destroyed or first.offered_rows == []
    assert it.breaks == []


def test_a_version_that_is_destroyed_is_left():
    servable = untuned_servable(7)
    with tuned() as it:
        it.serve(servable, recorded(2.0))
        assert it.spawned.acquire(timeout=30)
        servable.is_destroyed = True
        it.processes[0].end(0)
        assert it.ended(servable).state is TuningState.FAILED
    assert servable.used_rows == []
    assert len(it.breaks) == 1


def test_a_server_that_stops_ends_the_process():
    first, second = untuned_servable(7), untuned_servable(8)
    with tuned() as it:
        it.serve(first)
        it.serve(second)
        assert it.spawned.acquire(timeout=30)
        assert it.autotuning.stop(30)
        assert it.processes[0].is_ended
    assert len(it.processes) == 1
    assert first.used_rows == second.used_rows == []


def test_autotuning_that_was_not_started_stops():
    made = Tuned()
    made.serve(untuned_servable(7))
    assert made.autotuning.stop(0)


def test_other_versions_are_no_business_of_autotuning():
    with tuned() as it:
        it.moves(untuned_servable(7), AVAILABLE)
        assert it.autotuning.tunings() == {}


EVENT = st.tuples(st.integers(0, 3), st.sampled_from(["serve", "retire", "end well", "end badly"]))


@given(st.lists(EVENT, max_size=12))
def test_processes_come_one_by_one_for_what_serves(
    events: list[tuple[int, str]],
):
    with tuned() as it:
        servables = {number: untuned_servable(number) for number in range(4)}
        retired: set[int] = set()
        for number, event in events:
            servable = servables[number]
            if event == "serve" and number not in retired:
                if servable.id not in it.servables:
                    it.serve(servable, recorded(2.0))
            elif event == "retire":
                it.moves(servable, UNLOADING)
                retired.add(number)
                servable.is_destroyed = True
            elif it.processes and not it.processes[-1].is_ended:
                it.processes[-1].end(0 if event == "end well" else 1)
            assert sum(not process.is_ended for process in it.processes) <= 1
            left = {identity.version for identity in it.autotuning.tunings()}
            assert left == {one.version for one in it.servables} - retired
    assert all(process.is_ended for process in it.processes)
    assert it.breaks == []
    for number in servables.keys() - retired:
        assert servables[number].offered_rows == []

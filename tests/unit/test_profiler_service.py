"""Traces run one at a time, and each has an end."""

from collections.abc import Callable
from typing import Any

import pytest

from serving.base.clock import NS_PER_SECOND
from serving.base.compiled_protos import message_class
from serving.base.errors import ResourceExhausted, StatusCode
from serving.rpc.profiler_service import MONITOR, PROFILE, TERMINATE, ProfilerService
from serving.rpc.rare_calls import answer
from tests.unit.fakes.clocks import FakeClock, HeldClock
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.servers import FakeRareCall
from tests.unit.fakes.tracing import FakeTracer

FREE_BYTES = 1_000_000


class Bench:
    """A service over a fake tracer."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.tracer = FakeTracer()
        self.free_bytes: Callable[[], int] = lambda: FREE_BYTES
        plane = FakePlane()
        plane.start_trace = self.tracer.start
        self.service = ProfilerService(
            plane,
            available_bytes=lambda: self.free_bytes(),
            xspace_bytes_max=500,
            clock=self.clock,
        )

    def begin(
        self, method: str = PROFILE, call: FakeRareCall | None = None, **fields: Any
    ) -> FakeRareCall:
        name = f"{method.rpartition('/')[2]}Request"
        data = message_class(f"tensorflow.{name}")(
            **({"duration_ms": 2000} | fields)
        ).SerializeToString()
        call = call or FakeRareCall(method)
        call.request = data
        answer(call, self.service.handlers)
        return call

    def ask(self, method: str = PROFILE, **fields: Any) -> FakeRareCall:
        call = self.begin(method, **fields)
        assert call.is_answered.wait(30)
        assert self.service.join(30)
        return call

    def terminate(self, session_id: str) -> FakeRareCall:
        call = FakeRareCall(
            TERMINATE,
            message_class("tensorflow.TerminateRequest")(session_id=session_id).SerializeToString(),
        )
        answer(call, self.service.handlers)
        return call


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def held() -> Bench:
    """Its traces last until something ends them."""
    return Bench(HeldClock())


def profiled(call: FakeRareCall) -> Any:
    (response,) = call.answers
    assert isinstance(response, bytes), response
    return message_class("tensorflow.ProfileResponse").FromString(response)


def failure(call: FakeRareCall) -> tuple[StatusCode, str]:
    (failed,) = call.answers
    assert isinstance(failed, tuple), failed
    return StatusCode(failed[0]), failed[1]


def start_held(held: Bench, **fields: Any) -> FakeRareCall:
    call = held.begin(**fields)
    assert isinstance(held.clock, HeldClock)
    assert held.clock.is_waiting.wait(30)
    return call


def test_trace_lasts_for_requested_time(bench: Bench):
    start_ns = bench.clock.now_ns()
    call = bench.ask(duration_ms=2000)
    assert bench.clock.now_ns() - start_ns == 2 * NS_PER_SECOND
    assert profiled(call).tool_data[0].data == bench.tracer.xspace
    assert bench.tracer.log == ["start 2 True", "collect '' 500", "drop"]


def test_trace_begins_at_the_clients_instant(bench: Bench):
    start_ns = bench.clock.wall_ns() + NS_PER_SECOND
    bench.ask(opts={"start_timestamp_ns": start_ns, "duration_ms": 500})
    assert bench.clock.wall_ns() - start_ns == NS_PER_SECOND // 2


def test_trace_without_events_is_empty(bench: Bench):
    bench.tracer.event_count = 0
    assert profiled(bench.ask()).empty_trace


def test_traces_follow_one_another(bench: Bench):
    for _ in range(2):
        assert profiled(bench.ask()).tool_data


def test_second_trace_is_refused_while_one_runs(held: Bench):
    first = start_held(held)
    assert failure(held.begin()) == (
        StatusCode.ALREADY_EXISTS,
        "a trace of 2000 ms runs; try again when it is over",
    )
    held.service.stop()
    assert first.is_answered.wait(30)
    assert held.service.join(30)


def test_terminated_trace_returns_its_part(held: Bench):
    call = start_held(held, session_id="s")
    assert held.terminate("other").answers == [b""]
    assert not call.is_answered.is_set()
    assert held.terminate("s").answers == [b""]
    assert call.is_answered.wait(30)
    assert profiled(call).tool_data
    assert held.service.join(30)


def test_stop_ends_a_trace_and_refuses_the_next(held: Bench):
    call = start_held(held)
    held.service.stop()
    assert call.is_answered.wait(30)
    assert profiled(call).tool_data
    assert held.service.join(30)
    code, message = failure(held.begin())
    assert code == StatusCode.UNAVAILABLE
    assert message == "the server is shutting down; use another server"


def test_client_that_is_gone_ends_its_trace(bench: Bench):
    call = FakeRareCall(PROFILE)
    call.is_wanted = False
    bench.begin(call=call)
    assert call.is_answered.wait(30)
    assert failure(call)[0] == StatusCode.CANCELLED
    assert bench.tracer.log == []
    assert bench.service.join(30)


def test_client_that_goes_away_while_recording_ends_it(bench: Bench):
    call = FakeRareCall(PROFILE)

    def leave() -> None:
        call.is_wanted = False

    bench.tracer.on_start = leave
    bench.begin(call=call)
    assert call.is_answered.wait(30)
    assert failure(call)[0] == StatusCode.CANCELLED
    assert bench.tracer.log == ["start 2 True", "drop"]
    assert bench.service.join(30)
    assert profiled(bench.ask()).tool_data


def test_trace_that_takes_too_much_memory_ends_early(bench: Bench):
    free = iter([FREE_BYTES, FREE_BYTES, FREE_BYTES // 2])
    bench.free_bytes = lambda: next(free)
    start_ns = bench.clock.now_ns()
    bench.ask(duration_ms=2000)
    assert bench.clock.now_ns() - start_ns < NS_PER_SECOND
    assert bench.tracer.log[1].startswith("collect 'the trace ended early: ")


def test_error_of_the_data_plane_is_the_answer(bench: Bench):
    bench.tracer.collect_error = ResourceExhausted("the trace takes 9 bytes")
    assert failure(bench.ask()) == (StatusCode.RESOURCE_EXHAUSTED, "the trace takes 9 bytes")
    bench.tracer.collect_error = None
    assert profiled(bench.ask()).tool_data


def test_bug_is_answered_as_internal(bench: Bench):
    bench.tracer.collect_error = KeyError("secret")
    code, message = failure(bench.ask())
    assert code == StatusCode.INTERNAL
    assert "secret" not in message


def test_request_that_is_wrong_starts_nothing(bench: Bench):
    call = bench.begin(duration_ms=0)
    assert failure(call)[0] == StatusCode.INVALID_ARGUMENT
    assert bench.tracer.log == []


def test_monitor_answers_with_a_table_of_events(bench: Bench):
    (response,) = bench.ask(MONITOR, monitoring_level=2, timestamp=True).answers
    assert isinstance(response, bytes)
    text = message_class("tensorflow.MonitorResponse").FromString(response).data
    assert text.splitlines()[0].endswith(" UTC")
    assert "7 events in 2000 ms" in text
    assert "MatMul" in text
    assert bench.tracer.log[0] == "start 3 True"

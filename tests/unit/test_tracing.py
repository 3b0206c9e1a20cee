"""Tracing: the spans that it takes, logs, exports and drops."""

import pytest
from structlog.testing import capture_logs

from serving.base.clock import NS_PER_SECOND, SystemClock
from serving.base.errors import StatusCode
from serving.base.trace_context import CallTrace, new_span_id, new_trace_id
from serving.monitoring.swap_record import SwapRecord, SwapResult
from serving.monitoring.tracing import (
    BATCH_SPANS_MAX,
    FAILURE_LINE_NS,
    LINES_PER_ROUND_MAX,
    PENDING_MAX,
    PERIOD_SECONDS,
    Tracing,
)
from serving.rpc.rare_calls import AnsweredCall
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.tracing import (
    FakeExporter,
    FakeRequestSpan,
    FakeSpanBuffer,
    FakeTraceContext,
    Ids,
)


class World:
    """Tracing over a fake buffer and a fake exporter, without its thread."""

    def __init__(self, slow_seconds: float = 0) -> None:
        self.clock = FakeClock()
        self.buffer = FakeSpanBuffer()
        self.exporter = FakeExporter()
        self.tracing = Tracing(
            self.buffer,
            self.exporter,
            slow_seconds=slow_seconds,
            clock=self.clock,
            new_span_id=Ids(16),
            new_trace_id=Ids(32),
        )

    def look(self, *requests: FakeRequestSpan) -> list[dict[str, object]]:
        """Runs a round over these requests and returns its logs."""
        self.buffer.requests.extend(requests)
        with capture_logs() as logs:
            self.tracing.look_now()
        return [dict(log) for log in logs]


@pytest.fixture
def world() -> World:
    return World()


def answered(is_sampled: bool = True) -> AnsweredCall:
    return AnsweredCall(
        trace=CallTrace(FakeTraceContext(is_sampled=is_sampled), "a" * 16),
        method="/s/M",
        code=StatusCode.OK,
        taken_ns=1,
        ended_ns=2,
    )


def swap() -> SwapRecord:
    return SwapRecord(
        id="m-2",
        model="m",
        version=2,
        previous_version=None,
        began_at_ns=0,
        wall_offset_ns=5,
        result=SwapResult.PUBLISHED,
    )


# --- Exports --------------------------------------------------------------------------------------


def test_round_exports_requests_calls_and_swaps(world: World):
    world.tracing.add_swap(swap())
    world.tracing.add_call(answered())
    assert world.look(FakeRequestSpan()) == []
    names = [span.name for span in world.exporter.spans]
    assert names == [
        *("swap m/2", "s/M", "tensorflow.serving.PredictionService/Predict"),
        *("queue", "decode", "run", "encode"),
    ]
    request = world.exporter.spans[2]
    assert request.began_at_ns == FakeRequestSpan().received_ns + FakeClock.START_WALL_NS
    world.look()
    assert len(world.exporter.spans) == 7


def test_round_with_nothing_posts_nothing(world: World):
    world.look()
    assert world.exporter.batches == []


def test_unsampled_call_has_no_span(world: World):
    world.tracing.add_call(answered(is_sampled=False))
    world.look()
    assert world.exporter.batches == []


def test_round_exports_all_in_bounded_batches(world: World):
    world.look(*[FakeRequestSpan()] * 1_000)
    assert len(world.exporter.spans) == 5_000
    assert max(map(len, world.exporter.batches)) <= BATCH_SPANS_MAX


def test_swaps_and_requests_have_ids_of_their_own(world: World):
    world.tracing.add_swap(swap())
    world.tracing.add_swap(swap())
    world.look(FakeRequestSpan(), FakeRequestSpan())
    assert len({span.span_id for span in world.exporter.spans}) == len(world.exporter.spans)
    assert len({span.trace_id for span in world.exporter.spans}) == 3


def test_new_ids_are_hexadecimal_and_never_the_same():
    assert [len(new_trace_id()), len(new_span_id())] == [32, 16]
    assert int(new_trace_id(), 16) != int(new_trace_id(), 16)


# --- Drops ----------------------------------------------------------------------------------------


def test_refused_spans_are_counted_and_logged_sparsely(world: World):
    world.exporter.refusal = "connection refused"
    (line,) = world.look(FakeRequestSpan())
    assert line["event"] == "spans_not_exported"
    assert line["reason"] == "connection refused"
    assert world.look(FakeRequestSpan()) == []
    world.clock.advance(FAILURE_LINE_NS / NS_PER_SECOND)
    (line,) = world.look(FakeRequestSpan())
    assert line["dropped_since_start"] == 15
    assert world.tracing.dropped_counts()["export"] == 15
    world.exporter.refusal = None
    world.look(FakeRequestSpan())
    assert len(world.exporter.spans) == 5


def test_waiting_spans_are_bounded(world: World):
    for _ in range(PENDING_MAX + 3):
        world.tracing.add_swap(swap())
    assert world.tracing.dropped_counts()["full"] == 3
    world.look()
    assert len(world.exporter.spans) == PENDING_MAX
    world.tracing.add_swap(swap())
    assert world.tracing.dropped_counts()["full"] == 3


def test_dropped_counts_have_the_data_planes_too(world: World):
    assert world.tracing.dropped_counts() == {"over_rate": 0, "full": 0, "export": 0}
    world.buffer.dropped_counts = {"over_rate": 4, "full": 2}
    for _ in range(PENDING_MAX + 1):
        world.tracing.add_call(answered())
    assert world.tracing.dropped_counts() == {"over_rate": 4, "full": 3, "export": 0}


# --- Logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", list(StatusCode))
def test_request_failed_by_server_is_logged(world: World, code: StatusCode):
    lines = world.look(FakeRequestSpan(code=int(code), message="why"))
    if code not in (StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.DATA_LOSS):
        assert lines == []
        return
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("request_failed", "warning")
    assert (line["trace_id"], line["span_id"]) == (
        FakeTraceContext().trace_id,
        world.exporter.spans[0].span_id,
    )
    assert (line["model"], line["version"], line["method"]) == ("m", 7, "Predict")
    assert (line["code"], line["reason"]) == (code.name, "why")
    assert (line["seconds"], line["run_seconds"]) == (0.01, 0.006)


def test_slow_request_is_logged():
    world = World(slow_seconds=0.01)
    (line,) = world.look(FakeRequestSpan(total_ns=10_000_000), FakeRequestSpan(total_ns=9_999_999))
    assert (line["event"], line["log_level"], line["code"]) == ("request_slow", "info", "OK")


def test_lines_of_a_round_have_a_bound(world: World):
    failed = FakeRequestSpan(code=int(StatusCode.INTERNAL))
    lines = world.look(*[failed] * (LINES_PER_ROUND_MAX + 5))
    assert [line["event"] for line in lines] == [
        *["request_failed"] * LINES_PER_ROUND_MAX,
        "request_lines_left_out",
    ]
    assert lines[-1]["count"] == 5
    assert [line["event"] for line in world.look(failed)] == ["request_failed"]
    assert len(world.exporter.spans) == 5 * (LINES_PER_ROUND_MAX + 6)


# --- The thread -----------------------------------------------------------------------------------


def test_stop_exports_waiting_spans():
    buffer, exporter = FakeSpanBuffer(), FakeExporter()
    tracing = Tracing(buffer, exporter, slow_seconds=0, clock=SystemClock())
    tracing.start()
    buffer.requests.append(FakeRequestSpan())
    tracing.add_swap(swap())
    assert tracing.stop(timeout_seconds=30)
    assert exporter.spans[0].name == "swap m/2"
    assert len(exporter.spans) == 6
    assert exporter.is_stopped.is_set()


def test_stop_waits_limited_time_for_collector():
    buffer, exporter = FakeSpanBuffer(), FakeExporter()
    exporter.is_hanging = True
    tracing = Tracing(buffer, exporter, slow_seconds=0, clock=SystemClock())
    tracing.start()
    tracing.add_swap(swap())
    assert not tracing.stop(timeout_seconds=0.05)
    # The exporter's end releases the thread.
    assert tracing._thread.join(30)


def test_stop_without_a_start_is_one():
    assert World().tracing.stop(0)


def test_thread_goes_on_after_a_bug():
    clock, exporter = FakeClock(), FakeExporter()

    class Broken(FakeSpanBuffer):
        def take(self, count_max: int) -> list[FakeRequestSpan]:  # type: ignore[override]
            if clock.waits[-1:] and len(clock.waits) < 3:
                raise KeyError("bug")
            tracing._thread.stop()
            return []

    tracing = Tracing(Broken(), exporter, slow_seconds=0, clock=clock)
    with capture_logs() as logs:
        tracing.start()
        assert tracing._thread.join(30)
    assert [log["event"] for log in logs][:2] == ["tracing_failed"] * 2
    assert clock.waits == [PERIOD_SECONDS] * len(clock.waits)

"""The spans of requests, calls and swaps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.base.trace_context import CallTrace
from serving.core.servable import GateVerdict
from serving.monitoring.spans import call_span, request_spans, swap_spans
from serving.monitoring.swap_record import SpanLatency, StageSpan, SwapRecord, SwapResult
from serving.rpc.rare_calls import AnsweredCall
from tests.unit.fakes.tracing import RECEIVED_NS, FakeRequestSpan, FakeTraceContext, Ids

WALL_OFFSET_NS = 1_700_000_000 * NS_PER_SECOND


def spans_of(request: FakeRequestSpan):
    return request_spans(request, "5" * 16, WALL_OFFSET_NS, Ids(16))


def test_request_is_a_server_span_below_its_clients():
    context = FakeTraceContext(state="vendor=1")
    root, *_ = spans_of(FakeRequestSpan(context=context))
    assert root.name == "tensorflow.serving.PredictionService/Predict"
    assert (root.trace_id, root.span_id) == (context.trace_id, "5" * 16)
    assert (root.parent_id, root.is_parent_remote) == (context.parent_id, True)
    assert (root.is_of_server, root.trace_state) == (True, "vendor=1")
    assert root.began_at_ns == RECEIVED_NS + WALL_OFFSET_NS
    assert root.ended_at_ns - root.began_at_ns == 10_000_000
    assert root.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "tensorflow.serving.PredictionService/Predict",
        "rpc.response.status_code": "OK",
        "millpond.model": "m",
        "millpond.version": 7,
        "millpond.request_bytes": 100,
        "millpond.response_bytes": 50,
    }
    assert root.error is None


def test_request_phases_are_child_spans_in_order():
    root, *phases = spans_of(FakeRequestSpan())
    assert [phase.name for phase in phases] == ["queue", "decode", "run", "encode"]
    assert {phase.parent_id for phase in phases} == {root.span_id}
    assert {phase.trace_id for phase in phases} == {root.trace_id}
    assert len({phase.span_id for phase in [root, *phases]}) == 5
    assert not any(phase.is_parent_remote or phase.is_of_server for phase in phases)
    assert phases[0].began_at_ns == root.began_at_ns
    assert phases[-1].ended_at_ns == root.ended_at_ns


PHASES = ["queue", "decode", "batch", "run", "encode"]


@given(st.dictionaries(st.sampled_from(PHASES), st.integers(0, 10**12)))
def test_request_phases_follow_one_another_and_add_up(phase_ns: dict[str, int]):
    total_ns = sum(phase_ns.values())
    root, *phases = spans_of(FakeRequestSpan(phase_ns=phase_ns, total_ns=total_ns))
    assert [phase.name for phase in phases] == sorted(phase_ns, key=PHASES.index)
    ends = [root.began_at_ns, *(phase.ended_at_ns for phase in phases)]
    assert [phase.began_at_ns for phase in phases] == ends[:-1]
    assert ends[-1] == root.ended_at_ns


def test_request_that_reached_no_version_has_none():
    root, *_ = spans_of(FakeRequestSpan(model="nobody", version=None, code=5, message="no model"))
    assert root.attributes["millpond.model"] == "nobody"
    assert "millpond.version" not in root.attributes


@pytest.mark.parametrize(
    ("code", "is_servers_fault"),
    [
        *((0, False), (1, False), (3, False), (5, False), (8, False), (9, False)),
        *((2, True), (4, True), (12, True), (13, True), (14, True), (15, True)),
    ],
)
def test_request_is_error_only_if_server_is_at_fault(code: int, is_servers_fault: bool):
    root, *phases = spans_of(FakeRequestSpan(code=code, message="why"))
    assert root.error == ("why" if is_servers_fault else None)
    assert root.attributes["rpc.response.status_code"] == StatusCode(code).name
    assert ("error.type" in root.attributes) == is_servers_fault
    assert all(phase.error is None for phase in phases)


def test_call_is_a_server_span_from_when_it_was_taken():
    context = FakeTraceContext()
    call = AnsweredCall(
        trace=CallTrace(context, "a" * 16),
        method="/millpond.v1.Admin/Rollback",
        code=StatusCode.INTERNAL,
        taken_ns=10,
        ended_ns=30,
    )
    span = call_span(call, WALL_OFFSET_NS)
    assert span.name == "millpond.v1.Admin/Rollback"
    assert (span.trace_id, span.parent_id, span.span_id) == (
        *(context.trace_id, context.parent_id),
        "a" * 16,
    )
    assert (span.began_at_ns, span.ended_at_ns) == (10 + WALL_OFFSET_NS, 30 + WALL_OFFSET_NS)
    assert span.attributes["rpc.method"] == "millpond.v1.Admin/Rollback"
    assert span.error == "INTERNAL"


def stage(name: str, began_at_ns: int, ended_at_ns: int, task: str = "load") -> StageSpan:
    return StageSpan(
        name=name, task=task, version=2, began_at_ns=began_at_ns, ended_at_ns=ended_at_ns
    )


def swap(result: SwapResult, **changes: object) -> SwapRecord:
    values: dict[str, object] = {
        "id": "m-2-1",
        "model": "m",
        "version": 2,
        "previous_version": 1,
        "began_at_ns": 100,
        "wall_offset_ns": WALL_OFFSET_NS,
        "published_at_ns": 400,
        "ended_at_ns": 900,
        "result": result,
        "stages": (stage("restore", 200, 350), stage("destroy", 500, 800, "unload")),
        "figures": {"slab_bytes": 64.0},
        "verdicts": (GateVerdict(gate="signatures", mode="enforce", is_passed=True, reason=""),),
    }
    return SwapRecord(**{**values, **changes})  # type: ignore[arg-type]


def test_swap_is_a_trace_of_its_stages():
    root, restore, destroy = swap_spans(swap(SwapResult.PUBLISHED), "7" * 32, Ids(16))
    assert (root.name, root.trace_id, root.parent_id) == ("swap m/2", "7" * 32, None)
    assert (root.began_at_ns, root.ended_at_ns) == (100 + WALL_OFFSET_NS, 900 + WALL_OFFSET_NS)
    assert (restore.name, restore.parent_id, restore.trace_id) == (
        *("restore", root.span_id),
        root.trace_id,
    )
    assert (restore.began_at_ns - root.began_at_ns, restore.ended_at_ns - restore.began_at_ns) == (
        *(100,),
        150,
    )
    assert destroy.attributes == {"millpond.task": "unload", "millpond.version": 2}
    assert root.error is None
    assert root.attributes["millpond.result"] == "published"
    assert root.attributes["millpond.previous_version"] == 1
    assert root.attributes["millpond.slab_bytes"] == 64.0
    assert root.attributes["millpond.gate.signatures"] == "passed"


def test_swap_has_the_latencies_of_its_requests():
    latency = SpanLatency(
        span_seconds=10,
        request_count=5,
        p50_seconds=0.1,
        p99_seconds=0.2,
        p999_seconds=0.3,
        max_seconds=0.4,
    )
    root, *_ = swap_spans(swap(SwapResult.PUBLISHED, during=latency), "7" * 32, Ids(16))
    assert root.attributes["millpond.request_count_during"] == 5
    assert root.attributes["millpond.latency_seconds_p999_during"] == 0.3
    assert "millpond.request_count_before" not in root.attributes
    idle = swap(SwapResult.PUBLISHED, during=replace(latency, request_count=0))
    root, *_ = swap_spans(idle, "7" * 32, Ids(16))
    assert root.attributes["millpond.request_count_during"] == 0
    assert "millpond.latency_seconds_p999_during" not in root.attributes


@pytest.mark.parametrize("result", list(SwapResult))
def test_swap_is_error_if_load_failed_or_was_refused(result: SwapResult):
    root, *_ = swap_spans(swap(result, reason="bad checksum"), "7" * 32, Ids(16))
    is_failed = result in (SwapResult.LOAD_FAILED, SwapResult.REFUSED)
    assert root.error == ("bad checksum" if is_failed else None)


def test_swap_without_end_lasts_as_long_as_stages():
    record = swap(SwapResult.LOAD_FAILED, ended_at_ns=None, published_at_ns=None)
    root, *_ = swap_spans(record, "7" * 32, Ids(16))
    assert root.ended_at_ns == 800 + WALL_OFFSET_NS

"""Makes the spans of requests, calls and swaps. Values and pure functions only.

Attributes have the names of OpenTelemetry's semantic conventions, and otherwise `millpond.*`. The
conventions for RPC are the newer ones, in which `rpc.method` includes the service.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from serving.base.errors import StatusCode
from serving.base.trace_context import CallTrace
from serving.data_plane.request_statistics import PHASES
from serving.data_plane.requests import RequestSpan
from serving.monitoring.swap_record import StageSpan, SwapRecord, SwapResult
from serving.rpc.rare_calls import AnsweredCall

NewId = Callable[[], str]

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"

# The phases of a request, one after the other (native/metrics/request_recorder.h).
_PHASES = tuple(phase for phase in PHASES if phase != "total")

SERVER_FAULT_CODES = frozenset(
    {
        StatusCode.UNKNOWN,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.UNIMPLEMENTED,
        StatusCode.INTERNAL,
        StatusCode.UNAVAILABLE,
        StatusCode.DATA_LOSS,
    }
)
"""The codes that mark a server's span as an error. Other codes are the client's errors (OpenTelemetry)."""

_FAILED_SWAPS = frozenset({SwapResult.LOAD_FAILED, SwapResult.REFUSED})


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span as it is exported. Ids are hexadecimal, instants are nanoseconds of Unix time."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None = None
    is_parent_remote: bool = False
    trace_state: str = ""
    is_of_server: bool = False
    began_at_ns: int
    ended_at_ns: int
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)
    error: str | None = None
    """The reason of a failure; None if there was no failure."""


def request_spans(
    request: RequestSpan, span_id: str, wall_offset_ns: int, new_id: NewId
) -> tuple[Span, ...]:
    """Returns the server's span, with the id `span_id`, and a span below it for each phase reached."""
    method = f"{PREDICTION_SERVICE}/{request.method}"
    began_at_ns = request.received_ns + wall_offset_ns
    attributes: dict[str, str | int | float] = {
        **_rpc_attributes(method, request.code),
        "millpond.model": request.model,
        "millpond.request_bytes": request.request_bytes,
        "millpond.response_bytes": request.response_bytes,
    }
    if request.version is not None:
        attributes["millpond.version"] = request.version
    root = _server_span(
        CallTrace(request.context, span_id),
        method,
        began_at_ns,
        began_at_ns + request.total_ns,
        attributes,
        error_of(request.code, request.message),
    )
    return (root, *_phase_spans(root, request, new_id))


def call_span(call: AnsweredCall, wall_offset_ns: int) -> Span:
    """Returns the server's span of a call that Python answered."""
    method = call.method.removeprefix("/")
    return _server_span(
        call.trace,
        method,
        call.taken_ns + wall_offset_ns,
        call.ended_ns + wall_offset_ns,
        _rpc_attributes(method, call.code),
        error_of(call.code, call.code.name),
    )


def error_of(code: int, message: str) -> str | None:
    """Returns the error of a server's span; None if the client caused it."""
    return message if code in SERVER_FAULT_CODES else None


def swap_spans(record: SwapRecord, trace_id: str, new_id: NewId) -> tuple[Span, ...]:
    """Returns a new trace: a span of the swap, and below it a span for each of its stages."""
    root = Span(
        name=f"swap {record.model}/{record.version}",
        trace_id=trace_id,
        span_id=new_id(),
        began_at_ns=record.began_at_ns + record.wall_offset_ns,
        ended_at_ns=_end_ns(record) + record.wall_offset_ns,
        attributes=_swap_attributes(record),
        error=(record.reason or record.result.value) if record.result in _FAILED_SWAPS else None,
    )
    return (root, *(_stage_span(root, stage, record, new_id()) for stage in record.stages))


def _rpc_attributes(method: str, code: int) -> dict[str, str | int | float]:
    name = StatusCode(code).name
    attributes: dict[str, str | int | float] = {
        "rpc.system.name": "grpc",
        "rpc.method": method,
        "rpc.response.status_code": name,
    }
    if code in SERVER_FAULT_CODES:
        attributes["error.type"] = name
    return attributes


def _server_span(
    trace: CallTrace,
    name: str,
    began_at_ns: int,
    ended_at_ns: int,
    attributes: Mapping[str, str | int | float],
    error: str | None,
) -> Span:
    return Span(
        name=name,
        trace_id=trace.context.trace_id,
        span_id=trace.span_id,
        parent_id=trace.context.parent_id,
        is_parent_remote=True,
        trace_state=trace.context.state,
        is_of_server=True,
        began_at_ns=began_at_ns,
        ended_at_ns=ended_at_ns,
        attributes=attributes,
        error=error,
    )


def _phase_spans(root: Span, request: RequestSpan, new_id: NewId) -> Iterator[Span]:
    began_at_ns = root.began_at_ns
    for phase, phase_ns in _phases_in_order(request):
        ended_at_ns = began_at_ns + phase_ns
        yield _child(root, phase, new_id(), began_at_ns, ended_at_ns, {})
        began_at_ns = ended_at_ns


def _phases_in_order(request: RequestSpan) -> Iterator[tuple[str, int]]:
    """Yields the phases that the request reached, with their times.

    All of `batch` comes before `run`, although a little of it was after the run, while the replies to
    other requests of the batch were encoded.
    """
    for phase in _PHASES:
        if phase in request.phase_ns:
            yield phase, request.phase_ns[phase]


def _child(
    parent: Span,
    name: str,
    span_id: str,
    began_at_ns: int,
    ended_at_ns: int,
    attributes: Mapping[str, str | int | float],
) -> Span:
    return Span(
        name=name,
        trace_id=parent.trace_id,
        span_id=span_id,
        parent_id=parent.span_id,
        trace_state=parent.trace_state,
        began_at_ns=began_at_ns,
        ended_at_ns=ended_at_ns,
        attributes=attributes,
    )


def _stage_span(root: Span, stage: StageSpan, record: SwapRecord, span_id: str) -> Span:
    return _child(
        root,
        stage.name,
        span_id,
        stage.began_at_ns + record.wall_offset_ns,
        stage.ended_at_ns + record.wall_offset_ns,
        {"millpond.task": stage.task, "millpond.version": stage.version},
    )


def _end_ns(record: SwapRecord) -> int:
    """Returns the monotonic end of the swap and of all its stages."""
    ends = [stage.ended_at_ns for stage in record.stages]
    return max([record.began_at_ns, *ends, *_known([record.published_at_ns, record.ended_at_ns])])


def _known(instants_ns: Sequence[int | None]) -> Iterator[int]:
    return (instant_ns for instant_ns in instants_ns if instant_ns is not None)


def _swap_attributes(record: SwapRecord) -> dict[str, str | int | float]:
    attributes: dict[str, str | int | float] = {
        "millpond.model": record.model,
        "millpond.version": record.version,
        "millpond.swap": record.id,
        "millpond.result": record.result.value if record.result else "",
        **{f"millpond.{name}": value for name, value in record.figures.items()},
    }
    if record.previous_version is not None:
        attributes["millpond.previous_version"] = record.previous_version
    for verdict in record.verdicts:
        attributes[f"millpond.gate.{verdict.gate}"] = (
            "passed" if verdict.is_passed else verdict.reason
        )
    for part in ("before", "during", "after"):
        latency = getattr(record, part)
        if latency is not None:
            attributes[f"millpond.request_count_{part}"] = latency.request_count
        if latency is not None and latency.request_count:
            attributes[f"millpond.latency_seconds_p99_{part}"] = latency.p99_seconds
            attributes[f"millpond.latency_seconds_p999_{part}"] = latency.p999_seconds
    return attributes

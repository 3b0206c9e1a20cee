"""SwapRecord: the parts of one swap and its effect on requests. Values and pure functions only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict, LoadStage, ServableStatus, UnloadStage
from serving.data_plane.request_statistics import HistoryPoint, LatencyFigures


class SwapResult(Enum):
    """The result of a change of the versions that answer a model's requests."""

    PUBLISHED = "published"
    LOAD_FAILED = "load_failed"
    # The version failed a gate in mode "enforce".
    REFUSED = "refused"
    # The version was not aspired any more before it was published.
    CANCELLED = "cancelled"
    # `version` answers again instead of `previous_version`, which was rolled back.
    ROLLED_BACK = "rolled_back"
    # `version` was a canary, and answers all requests now.
    PROMOTED = "promoted"
    # A version was unloaded without a swap: it had been kept for a while, or is not aspired any more.
    UNLOADED = "unloaded"


@dataclass(frozen=True, kw_only=True)
class StageSpan:
    """One stage of a swap: of the load of its version, or of the unload of the previous version.

    `task` is `source`, `load` or `unload`. Instants are monotonic.
    """

    name: str
    task: str
    version: int
    began_at_ns: int
    ended_at_ns: int

    @property
    def seconds(self) -> float:
        """The duration of the stage."""
        return (self.ended_at_ns - self.began_at_ns) / NS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class SpanLatency:
    """The latency of the model's requests within a part of a swap, failed requests included.

    `failed_count` is the number of requests that did not end with OK, which includes requests that
    reached no version. `unmatched_count` is the number of further requests, which named no configured
    model. Both counts cover whole seconds. If there was no request, the quantiles are 0; documents,
    logs and metrics then omit them.
    """

    span_seconds: float
    request_count: int
    failed_count: int = 0
    unmatched_count: int = 0
    p50_seconds: float
    p99_seconds: float
    p999_seconds: float
    max_seconds: float

    @classmethod
    def of(
        cls, figures: LatencyFigures, span_ns: int, *, failed_count: int, unmatched_count: int
    ) -> "SpanLatency":
        """`figures` as the latency over `span_ns`."""
        return cls(
            span_seconds=span_ns / NS_PER_SECOND,
            request_count=figures.count,
            failed_count=failed_count,
            unmatched_count=unmatched_count,
            p50_seconds=figures.p50_ns / NS_PER_SECOND,
            p99_seconds=figures.p99_ns / NS_PER_SECOND,
            p999_seconds=figures.p999_ns / NS_PER_SECOND,
            max_seconds=figures.max_ns / NS_PER_SECOND,
        )


@dataclass(frozen=True, kw_only=True)
class SwapRecord:
    """One swap of `model`. It is under way while `result` or `after` is None.

    Instants are monotonic; added to `wall_offset_ns` they are Unix time. `began_at_ns` is when the
    version's directory was first seen, or when the change was requested. `previous_version` is the
    version that answered before the swap. It is None if no version answered, or if the swap only
    unloads.
    The names of `figures` have their unit: `parameter_bytes`, `slab_bytes`, `prefaulted_bytes`, for a
    version with tables `restored_bytes` (read), `kept_bytes` (in memory already), `copied_bytes` (of these,
    copied from a table that another version holds) and `changed_row_count`, for a version on accelerators
    `uploaded_bytes`, `accelerator_kept_bytes` (there already) and `upload_seconds`,
    `load_cpu_seconds`, `load_page_fault_count`, the same of `unload`, and `page_fault_count` of the
    whole process during the swap.
    """

    id: str
    model: str
    version: int
    previous_version: int | None
    began_at_ns: int
    wall_offset_ns: int
    load_started_at_ns: int | None = None
    published_at_ns: int | None = None
    ended_at_ns: int | None = None
    result: SwapResult | None = None
    reason: str = ""
    stages: tuple[StageSpan, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    verdicts: tuple[GateVerdict, ...] = ()
    before: SpanLatency | None = None
    during: SpanLatency | None = None
    after: SpanLatency | None = None
    history: tuple[HistoryPoint, ...] = ()

    def wall_seconds(self, instant_ns: int | None) -> float | None:
        """A monotonic instant as Unix time in seconds; None for None."""
        if instant_ns is None:
            return None
        return round((instant_ns + self.wall_offset_ns) / NS_PER_SECOND, 6)


def load_stages(status: ServableStatus, load_started_at_ns: int | None) -> tuple[StageSpan, ...]:
    """The stages so far, from the first sight of a version's files to its publish.

    The stage `wait` ends when a loader thread begins to work on the load.
    """
    version = status.id.version
    stages = []
    if status.found_at_ns > status.detected_at_ns > 0:
        stages.append(_source_span("settle", version, status.detected_at_ns, status.found_at_ns))
    waited_until_ns = status.work_began_at_ns or load_started_at_ns
    if waited_until_ns is not None and waited_until_ns > status.found_at_ns > 0:
        stages.append(_source_span("wait", version, status.found_at_ns, waited_until_ns))
    return (*stages, *_spans_of(status, LoadStage, "load"))


def unload_stages(status: ServableStatus) -> tuple[StageSpan, ...]:
    """The stages of a version's unload so far."""
    return tuple(_spans_of(status, UnloadStage, "unload"))


def _source_span(name: str, version: int, began_at_ns: int, ended_at_ns: int) -> StageSpan:
    return StageSpan(
        name=name,
        task="source",
        version=version,
        began_at_ns=began_at_ns,
        ended_at_ns=ended_at_ns,
    )


def _spans_of(
    status: ServableStatus, kind: type[LoadStage] | type[UnloadStage], task: str
) -> Iterator[StageSpan]:
    for stage, seconds in status.stage_seconds.items():
        if isinstance(stage, kind):
            ended_at_ns = status.stage_ended_at_ns[stage]
            yield StageSpan(
                name=stage.value,
                task=task,
                version=status.id.version,
                began_at_ns=ended_at_ns - round(seconds * NS_PER_SECOND),
                ended_at_ns=ended_at_ns,
            )


def failure_of(status: ServableStatus) -> SwapResult:
    """The result for a version that went from LOADING to END."""
    if status.health.code is StatusCode.CANCELLED:
        return SwapResult.CANCELLED
    is_refused = any(
        not verdict.is_passed and verdict.mode == GateMode.ENFORCE.value
        for verdict in status.verdicts
    )
    return SwapResult.REFUSED if is_refused else SwapResult.LOAD_FAILED


def problem_of(record: SwapRecord) -> str:
    """The problem that a published version had, such as a failed gate; "" if it had none."""
    if record.result not in (SwapResult.PUBLISHED, SwapResult.PROMOTED):
        return ""
    failed_count = round(record.figures.get("self_warm_up_failed_count", 0))
    request_count = round(record.figures.get("self_warm_up_request_count", 0))
    replay = f"{failed_count} of {request_count} replayed live requests failed"
    unrepeatable_count = round(record.figures.get("unrepeatable_count", 0))
    partly = (
        f"{unrepeatable_count} live requests warmed the version up only in part: "
        f"{record.notes.get('unrepeatable_reason', '')}"
    )
    writes = "a request may change a variable, so no gate compared its answers"
    gates = [
        f"gate {verdict.gate!r} ({verdict.mode}): {verdict.reason}"
        for verdict in record.verdicts
        if not verdict.is_passed
    ]
    changes_variables = bool(record.figures.get("changes_variables", 0))
    return "; ".join(
        [
            *([replay] if failed_count else []),
            *([partly] if unrepeatable_count else []),
            *([writes] if changes_variables else []),
            *gates,
        ]
    )


# --- As JSON ------------------------------------------------------------------------------------------

_NAMED_FIGURES = ("parameter_bytes", "slab_bytes", "restored_bytes", "kept_bytes")


def record_document(record: SwapRecord) -> dict[str, Any]:
    """The record for `GET /v1/swaps`. All instants are Unix time in seconds."""
    return {
        "id": record.id,
        "model": record.model,
        "version": record.version,
        "previous_version": record.previous_version,
        "result": record.result.value if record.result else None,
        "reason": record.reason,
        "problem": problem_of(record),
        "began_at": record.wall_seconds(record.began_at_ns),
        "load_started_at": record.wall_seconds(record.load_started_at_ns),
        "published_at": record.wall_seconds(record.published_at_ns),
        "ended_at": record.wall_seconds(record.ended_at_ns),
        "stages": [
            {
                "name": stage.name,
                "task": stage.task,
                "version": stage.version,
                "began_at": record.wall_seconds(stage.began_at_ns),
                "seconds": stage.seconds,
            }
            for stage in record.stages
        ],
        **{name: record.figures.get(name) for name in _NAMED_FIGURES},
        "delta_restored_in_full": record.notes.get("delta_restored_in_full", ""),
        "delta_uploaded_in_full": record.notes.get("delta_uploaded_in_full", ""),
        "page_fault_count": record.figures.get("page_fault_count"),
        "cpu_seconds": sum(
            value for name, value in record.figures.items() if name.endswith("_cpu_seconds")
        ),
        "figures": dict(record.figures),
        "verdicts": [
            {"gate": item.gate, "mode": item.mode, "passed": item.is_passed, "reason": item.reason}
            for item in record.verdicts
        ],
        "latency": {
            part: _latency_document(getattr(record, part)) for part in ("before", "during", "after")
        },
    }


def _latency_document(latency: SpanLatency | None) -> dict[str, float | None] | None:
    """The figures of a part of a swap. Without requests the quantiles are None and not 0."""
    if latency is None:
        return None
    seconds = {
        "p50_seconds": latency.p50_seconds,
        "p99_seconds": latency.p99_seconds,
        "p999_seconds": latency.p999_seconds,
        "max_seconds": latency.max_seconds,
    }
    return {
        "span_seconds": latency.span_seconds,
        "request_count": latency.request_count,
        "failed_count": latency.failed_count,
        "unmatched_count": latency.unmatched_count,
        **(seconds if latency.request_count else dict.fromkeys(seconds)),
    }


def log_fields(record: SwapRecord) -> dict[str, object]:
    """The log fields of a swap that is over.

    Together with the log's own fields they are at most ten. `GET /v1/swaps` has the rest under the id
    in `swap`.
    """
    fields: dict[str, object] = {
        "swap": record.id,
        "model": record.model,
        "version": record.version,
        "result": record.result.value if record.result else None,
    }
    end_ns = record.published_at_ns or record.ended_at_ns
    if end_ns is not None:
        fields["seconds"] = round((end_ns - record.began_at_ns) / NS_PER_SECOND, 3)
    if record.during is not None:
        fields["failed_count_during"] = record.during.failed_count
    is_logged = record.result in (SwapResult.LOAD_FAILED, SwapResult.REFUSED)  # by `load_failed`
    reason = "; ".join(filter(None, ["" if is_logged else record.reason, problem_of(record)]))
    if reason:
        fields["reason"] = reason
    elif record.during is not None and record.during.request_count:
        fields["latency_seconds_p999_during"] = round(record.during.p999_seconds, 6)
    return fields


# --- As a trace ---------------------------------------------------------------------------------------

_THREADS = {"source": 1, "load": 2, "unload": 3}
_US_PER_SECOND = 1_000_000


def trace_document(record: SwapRecord) -> dict[str, Any]:
    """The record as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

    The format is the "Trace Event Format" of Chromium's tracing documentation. Stages are complete
    events (X), the requests of each second are counters (C), the publish is an instant (i).
    """
    return {
        "displayTimeUnit": "ms",
        "otherData": {"swap": record.id, "model": record.model},
        "traceEvents": [
            *_thread_names(record),
            *(_stage_event(record, stage) for stage in record.stages),
            *_publish_event(record),
            *(event for point in record.history for event in _counter_events(record, point)),
        ],
    }


def _us(record: SwapRecord, instant_ns: int) -> float:
    return (instant_ns - record.began_at_ns) / 1_000


def _thread_names(record: SwapRecord) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": f"swap {record.id}"}}
    for task, thread in _THREADS.items():
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": task}}


def _stage_event(record: SwapRecord, stage: StageSpan) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": stage.name,
        "cat": stage.task,
        "pid": 1,
        "tid": _THREADS[stage.task],
        "ts": _us(record, stage.began_at_ns),
        "dur": stage.seconds * _US_PER_SECOND,
        "args": {"version": stage.version},
    }


def _publish_event(record: SwapRecord) -> Sequence[dict[str, Any]]:
    if record.published_at_ns is None:
        return ()
    ts = _us(record, record.published_at_ns)
    name = f"{record.model}/{record.version} published"
    return [{"ph": "i", "s": "g", "name": name, "pid": 1, "tid": 2, "ts": ts}]


def _counter_events(record: SwapRecord, point: HistoryPoint) -> Iterator[dict[str, Any]]:
    ts = _us(record, point.at_ns)
    if point.latency.count:
        latency = {
            "p50": point.latency.p50_ns / 1_000_000,
            "p99": point.latency.p99_ns / 1_000_000,
            "p999": point.latency.p999_ns / 1_000_000,
        }
        yield {"ph": "C", "name": "latency over 10 s (ms)", "pid": 1, "ts": ts, "args": latency}
    requests = {"ok": point.count - point.failed_count, "failed": point.failed_count}
    yield {"ph": "C", "name": "requests a second", "pid": 1, "ts": ts, "args": requests}

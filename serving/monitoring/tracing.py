"""Tracing: takes requests, calls and swaps, logs failed and slow requests, and exports spans."""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import MillpondError, StatusCode
from serving.base.periodic_thread import PeriodicThread
from serving.base.trace_context import new_span_id, new_trace_id
from serving.data_plane.requests import RequestSpan, SpanBuffer
from serving.monitoring.spans import Span, call_span, request_spans, swap_spans
from serving.monitoring.swap_record import SwapRecord
from serving.rpc.rare_calls import AnsweredCall

PERIOD_SECONDS = 1.0
"""The time between two rounds. Traces are not needed sooner, and a round may find nothing."""

REQUESTS_PER_SECOND_MAX = 200
"""The requests that get spans: five spans and 0.1 ms of Python each, so at most 2 % of a core.
If clients sample more requests, some of them get no spans."""

BUFFERED_REQUESTS_MAX = 1024
"""The requests of five seconds at that rate: an export may take so long."""

BATCH_SPANS_MAX = 512
"""The spans of one POST, some 100 kB. It is OpenTelemetry's default."""

PENDING_MAX = 256
"""The swaps and the calls answered by Python that wait while the collector does not respond."""

LINES_PER_ROUND_MAX = 10
"""The log lines of requests in a round. If all requests fail, more lines add no information."""

FAILURE_LINE_NS = 60 * NS_PER_SECOND
"""The time between two log lines about lost spans."""

TRACING_NICE = 10
"""The niceness of HTTP's threads: below requests, but high enough to release the GIL soon."""

DROP_REASONS = ("over_rate", "full", "export")

# The codes of faults of the server or its files. Other codes depend on the request or on the load.
LOGGED_CODES = frozenset({StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.DATA_LOSS})

_log = structlog.get_logger(__name__)


class SpanExporter(Protocol):
    """Sends spans to a collector (`otlp.OtlpExporter`)."""

    def export(self, spans: Sequence[Span]) -> None:
        """Sends the spans, within seconds. Raises MillpondError if they are lost."""
        ...

    def stop(self) -> None:
        """Ends an `export` under way. Any thread."""
        ...


class NoExporter:
    """The exporter if spans are only logged."""

    def export(self, spans: Sequence[Span]) -> None:
        """Drops the spans."""

    def stop(self) -> None:
        """Does nothing."""


class Tracing:
    """A thread `tracing` that takes spans every PERIOD_SECONDS, logs and exports them.

    If spans arrive faster than they can be exported, the rest is dropped and counted. No caller waits,
    and memory is bounded by the limits above. `add_swap` and `add_call` run on any thread.
    """

    def __init__(
        self,
        requests: SpanBuffer,
        exporter: SpanExporter,
        *,
        slow_seconds: float,
        clock: Clock,
        new_span_id: Callable[[], str] = new_span_id,
        new_trace_id: Callable[[], str] = new_trace_id,
    ) -> None:
        """Requests that take `slow_seconds` or longer are logged; 0 logs no slow requests."""
        self._requests = requests
        self._exporter = exporter
        self._lines = RequestLines(slow_seconds)
        self._clock = clock
        self._new_span_id = new_span_id
        self._new_trace_id = new_trace_id
        # Guards the pending items and the drop counts.
        self._lock = threading.Lock()
        self._pending: deque[SwapRecord | AnsweredCall] = deque()
        self._dropped: Counter[str] = Counter()
        self._failure_logged_ns: int | None = None
        self._thread = PeriodicThread(
            "tracing",
            self.look_now,
            wait_seconds=PERIOD_SECONDS,
            failure_event="tracing_failed",
            at_start=_lower_priority,
            at_end=self.look_now,
            clock=clock,
        )

    @property
    def requests(self) -> SpanBuffer:
        """The buffer that the data plane fills with requests."""
        return self._requests

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Exports the last spans and ends the thread. Returns False if the collector takes longer."""
        self._thread.stop()
        is_over = self._thread.join(timeout_seconds)
        self._exporter.stop()
        return is_over

    def add_swap(self, record: SwapRecord) -> None:
        """Takes a swap that is over. Does not wait."""
        self._add(record)

    def add_call(self, call: AnsweredCall) -> None:
        """Takes a call that Python has answered, if its trace is sampled. Does not wait."""
        if call.trace.context.is_sampled:
            self._add(call)

    def dropped_counts(self) -> Mapping[str, int]:
        """The number of lost spans by reason. Any thread.

        The reasons: `over_rate`, more requests than REQUESTS_PER_SECOND_MAX; `full`, a full buffer;
        `export`, not accepted by the collector. For `over_rate` and `full` a whole request
        counts as one span.
        """
        of_requests = self._requests.dropped_counts
        with self._lock:
            return {
                reason: of_requests.get(reason, 0) + self._dropped[reason]
                for reason in DROP_REASONS
            }

    def look_now(self) -> None:
        """Does one round on the calling thread. One round runs at a time."""
        wall_offset_ns = self._clock.wall_ns() - self._clock.now_ns()
        self._export(self._pending_spans(wall_offset_ns))
        while requests := self._requests.take(BATCH_SPANS_MAX):
            self._export(self._spans_of(requests, wall_offset_ns))
        self._lines.end_round()

    def _add(self, item: SwapRecord | AnsweredCall) -> None:
        with self._lock:
            if len(self._pending) >= PENDING_MAX:
                self._dropped["full"] += 1
            else:
                self._pending.append(item)

    def _pending_spans(self, wall_offset_ns: int) -> list[Span]:
        with self._lock:
            pending = list(self._pending)
            self._pending.clear()
        spans: list[Span] = []
        for item in pending:
            if isinstance(item, SwapRecord):
                spans.extend(swap_spans(item, self._new_trace_id(), self._new_span_id))
            else:
                spans.append(call_span(item, wall_offset_ns))
        return spans

    def _spans_of(self, requests: Sequence[RequestSpan], wall_offset_ns: int) -> list[Span]:
        spans: list[Span] = []
        for request in requests:
            span_id = self._new_span_id()
            self._lines.log(request, span_id)
            spans.extend(request_spans(request, span_id, wall_offset_ns, self._new_span_id))
        return spans

    def _export(self, spans: Sequence[Span]) -> None:
        for begin in range(0, len(spans), BATCH_SPANS_MAX):
            batch = spans[begin : begin + BATCH_SPANS_MAX]
            try:
                self._exporter.export(batch)
            except MillpondError as error:
                self._log_loss(len(batch), error.message)

    def _log_loss(self, count: int, reason: str) -> None:
        with self._lock:
            self._dropped["export"] += count
            dropped = self._dropped["export"]
        now_ns = self._clock.now_ns()
        logged_ns = self._failure_logged_ns
        if logged_ns is None or now_ns - logged_ns >= FAILURE_LINE_NS:
            self._failure_logged_ns = now_ns
            _log.warning(
                "spans_not_exported",
                reason=reason,
                dropped_since_start=dropped,
                remedy="check that the collector of --otlp_endpoint responds",
            )


class NoTracing:
    """Tracing that is off: it has no buffer and no thread."""

    requests: None = None

    def start(self) -> None:
        """Does nothing."""

    def stop(self, timeout_seconds: float) -> bool:
        """Does nothing, so it always succeeds."""
        del timeout_seconds
        return True

    def add_swap(self, record: SwapRecord) -> None:
        """Ignores the swap."""

    def add_call(self, call: AnsweredCall) -> None:
        """Ignores the call."""

    def dropped_counts(self) -> Mapping[str, int]:
        """No spans are lost."""
        return {}


class RequestLines:
    """Logs traced requests that fail or are slow, with the ids under which their trace is found."""

    def __init__(self, slow_seconds: float) -> None:
        """`slow_seconds` 0 means that no request is slow."""
        self._slow_seconds = slow_seconds
        self._line_count = 0

    def log(self, request: RequestSpan, span_id: str) -> None:
        """Logs a request that failed by the server's fault or was slow, up to LINES_PER_ROUND_MAX."""
        is_failed = request.code in LOGGED_CODES
        if not is_failed and not self._is_slow(request):
            return
        self._line_count += 1
        if self._line_count <= LINES_PER_ROUND_MAX:
            fields = line_fields(request, span_id)
            if is_failed:
                _log.warning("request_failed", **fields)
            else:
                _log.info("request_slow", **fields)

    def end_round(self) -> None:
        """Ends the round, and logs how many lines it left out."""
        left_out = self._line_count - LINES_PER_ROUND_MAX
        if left_out > 0:
            _log.warning("request_lines_left_out", count=left_out)
        self._line_count = 0

    def _is_slow(self, request: RequestSpan) -> bool:
        return 0 < self._slow_seconds * NS_PER_SECOND <= request.total_ns


def line_fields(request: RequestSpan, span_id: str) -> dict[str, object]:
    """The log fields of one request. Pure."""
    fields: dict[str, object] = {
        "trace_id": request.context.trace_id,
        "span_id": span_id,
        "model": request.model,
        "version": request.version,
        "method": request.method,
        "code": StatusCode(request.code).name,
        "seconds": request.total_ns / NS_PER_SECOND,
    }
    for phase, phase_ns in request.phase_ns.items():
        fields[f"{phase}_seconds"] = phase_ns / NS_PER_SECOND
    if request.message:
        fields["reason"] = request.message
    return fields


def _lower_priority() -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), TRACING_NICE)
    except OSError as error:
        # Traces are worth having even if a sandbox refuses the lower priority.
        _log.warning("tracing_priority_refused", requested=TRACING_NICE, reason=error.strerror)

"""Tracing: takes the spans of requests, calls and swaps, logs what is worth it, and exports them."""

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
"""Between two rounds: nobody looks at a trace sooner, and a round may find nothing."""

REQUESTS_PER_SECOND_MAX = 200
"""Requests of which spans are made: five each and 0.1 ms of Python, so at the most a fiftieth of a core.
Clients that sample all of many requests get some of them."""

BUFFERED_REQUESTS_MAX = 1024
"""What the data plane keeps for five seconds at that rate, as long as one export may take."""

BATCH_SPANS_MAX = 512
"""Of one POST: some 100 kB. OpenTelemetry's default."""

PENDING_MAX = 256
"""Swaps, and calls that Python answered, that wait for a collector that does not answer."""

LINES_PER_ROUND_MAX = 10
"""Log lines of requests in a round: where all fail, one says as much as the next."""

FAILURE_LINE_NS = 60 * NS_PER_SECOND
"""Between two lines that say that spans are lost."""

TRACING_NICE = 10
"""As HTTP's threads: behind requests, and not so far that it keeps Python from others for long."""

DROP_REASONS = ("over_rate", "full", "export")

# What is the server's or its files' fault, and not the request's or the moment's.
LOGGED_CODES = frozenset({StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.DATA_LOSS})

_log = structlog.get_logger(__name__)


class SpanExporter(Protocol):
    """Where spans go (`otlp.OtlpExporter`)."""

    def export(self, spans: Sequence[Span]) -> None:
        """Waits for seconds at the most. Raises MillpondError where they are lost."""
        ...

    def stop(self) -> None:
        """Ends an `export` under way. Any thread."""
        ...


class NoExporter:
    """Where spans are only logged."""

    def export(self, spans: Sequence[Span]) -> None:
        """Nowhere."""

    def stop(self) -> None:
        """Nothing is under way."""


class Tracing:
    """A thread `tracing` that takes spans every PERIOD_SECONDS, logs and exports them.

    What comes faster than it goes is dropped and counted: nobody waits for it, and it grows to no
    more than the limits above. `add_swap` and `add_call` on any thread, at once.
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
        """Requests that take `slow_seconds` or longer are logged; 0: none is slow."""
        self._requests = requests
        self._exporter = exporter
        self._lines = RequestLines(slow_seconds)
        self._clock = clock
        self._new_span_id = new_span_id
        self._new_trace_id = new_trace_id
        # Guards what waits and what was lost.
        self._lock = threading.Lock()
        self._pending: deque[SwapRecord | AnsweredCall] = deque()
        self._dropped: Counter[str] = Counter()
        self._failure_told_ns: int | None = None
        self._thread = PeriodicThread(
            "tracing",
            self.look_now,
            wait_seconds=lambda: PERIOD_SECONDS,
            failure_event="tracing_failed",
            at_start=_lower_priority,
            at_end=self.look_now,
            clock=clock,
        )

    @property
    def requests(self) -> SpanBuffer:
        """Where the data plane puts requests."""
        return self._requests

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Exports what is there and ends the thread; False where the collector takes longer."""
        self._thread.stop()
        is_over = self._thread.join(timeout_seconds)
        self._exporter.stop()
        return is_over

    def add_swap(self, record: SwapRecord) -> None:
        """A swap that is over. Waits for nothing."""
        self._add(record)

    def add_call(self, call: AnsweredCall) -> None:
        """A call that Python has answered. Waits for nothing; dropped where nobody samples its trace."""
        if call.trace.context.is_sampled:
            self._add(call)

    def dropped_counts(self) -> Mapping[str, int]:
        """Spans, or what would have been some, that were lost, by reason. Any thread.

        `over_rate`: REQUESTS_PER_SECOND_MAX; `full`: nobody took them in time; `export`: the collector
        did not. Of the first two a request counts as one.
        """
        of_requests = self._requests.dropped_counts
        with self._lock:
            return {
                reason: of_requests.get(reason, 0) + self._dropped[reason]
                for reason in DROP_REASONS
            }

    def look_now(self) -> None:
        """One round, on the calling thread; one at a time."""
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
            self._lines.tell(request, span_id)
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
        told_ns = self._failure_told_ns
        if told_ns is None or now_ns - told_ns >= FAILURE_LINE_NS:
            self._failure_told_ns = now_ns
            _log.warning(
                "spans_not_exported",
                reason=reason,
                dropped_since_start=dropped,
                remedy="look whether the collector of --otlp_endpoint answers",
            )


class NoTracing:
    """Where nothing is traced: nobody is asked for a trace, and there is no thread."""

    requests: None = None

    def start(self) -> None:
        """There is no thread."""

    def stop(self, timeout_seconds: float) -> bool:
        """Nothing to end."""
        del timeout_seconds
        return True

    def add_swap(self, record: SwapRecord) -> None:
        """Nobody wants it."""

    def add_call(self, call: AnsweredCall) -> None:
        """Nobody wants it."""

    def dropped_counts(self) -> Mapping[str, int]:
        """None."""
        return {}


class RequestLines:
    """Log lines of traced requests: whoever has a trace of one finds it in the log, and the reverse."""

    def __init__(self, slow_seconds: float) -> None:
        """0: no request is slow."""
        self._slow_seconds = slow_seconds
        self._line_count = 0

    def tell(self, request: RequestSpan, span_id: str) -> None:
        """One line, where it failed by the server's fault, or was slow, and the round has room."""
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
        """The next one has room again; this one says how many lines it left out."""
        left_out = self._line_count - LINES_PER_ROUND_MAX
        if left_out > 0:
            _log.warning("request_lines_left_out", count=left_out)
        self._line_count = 0

    def _is_slow(self, request: RequestSpan) -> bool:
        return 0 < self._slow_seconds * NS_PER_SECOND <= request.total_ns


def line_fields(request: RequestSpan, span_id: str) -> dict[str, object]:
    """What the log says of one request. Pure."""
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
        # A sandbox that refuses is no reason to trace nothing.
        _log.warning("tracing_priority_refused", asked=TRACING_NICE, reason=error.strerror)

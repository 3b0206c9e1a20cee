"""Traced requests, the exporter of their spans, and profiling sessions."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import Unavailable
from serving.base.trace_context import TraceContext
from serving.data_plane.requests import RequestSpan
from serving.data_plane.traces import EventTotal, Trace
from serving.monitoring.spans import Span


@dataclass(frozen=True)
class FakeTraceContext(TraceContext):
    """The example of the W3C's recommendation."""

    trace_id: str = "4bf92f3577b34da6a3ce929d0e0e4736"
    parent_id: str = "00f067aa0ba902b7"
    is_sampled: bool = True
    state: str = ""


class FakeSpanBuffer:
    """`_native.SpanBuffer`: returns the spans that a test has added."""

    def __init__(self, *, capacity: int = 0, per_second_max: int = 0) -> None:
        self.limits = (capacity, per_second_max)
        self.requests: deque[RequestSpan] = deque()
        self.dropped_counts: dict[str, int] = {"full": 0, "over_rate": 0}

    def take(self, count_max: int) -> list[RequestSpan]:
        return [self.requests.popleft() for _ in range(min(count_max, len(self.requests)))]


class FakeTracer:
    """Starts sessions that always record the same; `log` has the calls to them."""

    xspace = b"planes"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.event_count = 7
        self.collect_error: Exception | None = None
        self.on_start: Callable[[], None] = lambda: None

    def start(self, *, host_level: int, includes_dataset_ops: bool) -> "FakeTraceSession":
        self.log.append(f"start {host_level} {includes_dataset_ops}")
        self.on_start()
        return FakeTraceSession(self)


class FakeTraceSession:
    """See `FakeTracer`."""

    def __init__(self, tracer: FakeTracer) -> None:
        self._tracer = tracer

    def collect(
        self, *, has_xspace: bool, total_count_max: int, warning: str, xspace_bytes_max: int
    ) -> Trace:
        self._tracer.log.append(f"collect {warning!r} {xspace_bytes_max}")
        if self._tracer.collect_error is not None:
            raise self._tracer.collect_error
        totals = [EventTotal("MatMul", 4, 2_000_000)][:total_count_max]
        xspace = self._tracer.xspace if has_xspace else b""
        return Trace(self._tracer.event_count, totals, xspace)

    def drop(self) -> None:
        self._tracer.log.append("drop")


RECEIVED_NS = 900 * NS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class FakeRequestSpan(RequestSpan):
    """A request that took 10 ms."""

    context: TraceContext = field(default_factory=FakeTraceContext)
    method: str = "Predict"
    model: str = "m"
    version: int | None = 7
    code: int = 0
    message: str = ""
    received_ns: int = RECEIVED_NS
    phase_ns: Mapping[str, int] = field(
        # The phases by name, as the data plane returns them.
        default_factory=lambda: {
            "decode": 2_000_000,
            "encode": 1_000_000,
            "queue": 1_000_000,
            "run": 6_000_000,
        }
    )
    total_ns: int = 10_000_000
    request_bytes: int = 100
    response_bytes: int = 50


class FakeExporter:
    """Keeps the batches that it receives; refuses them, or holds them, if a test sets that."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Span]] = []
        self.refusal: str | None = None
        self.is_hanging = False
        self.is_stopped = threading.Event()

    @property
    def spans(self) -> list[Span]:
        return [span for batch in self.batches for span in batch]

    def export(self, spans: Sequence[Span]) -> None:
        if self.is_hanging:
            assert self.is_stopped.wait(30)
        if self.refusal is not None:
            raise Unavailable(self.refusal)
        self.batches.append(list(spans))

    def stop(self) -> None:
        self.is_stopped.set()


class Ids:
    """New ids, one after the other."""

    def __init__(self, digits: int) -> None:
        self._digits = digits
        self._numbers = count(1)

    def __call__(self) -> str:
        return f"{next(self._numbers):0{self._digits}x}"

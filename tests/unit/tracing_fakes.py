"""Fakes of what is traced, and of where spans go."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import Unavailable
from serving.monitoring.spans import Span
from tests.unit.fakes import FakeTraceContext

RECEIVED_NS = 900 * NS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class FakeRequestSpan:
    """`_native.RequestSpan` of a request that took 10 ms."""

    context: FakeTraceContext = field(default_factory=FakeTraceContext)
    method: str = "Predict"
    model: str = "m"
    version: int | None = 7
    code: int = 0
    message: str = ""
    received_ns: int = RECEIVED_NS
    phase_ns: Mapping[str, int] = field(
        # As the data plane has them: by name.
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
    """Keeps the batches that it is given; refuses them, or holds them, as a test says."""

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

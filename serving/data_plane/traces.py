"""TensorFlow's profiler, as the control plane sees it."""

from collections.abc import Sequence
from typing import Protocol


class EventTotal(Protocol):
    """`_native.EventTotal`: the number of events of one name, and their total time."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def total_ns(self) -> int: ...


class Trace(Protocol):
    """`_native.Trace`."""

    @property
    def event_count(self) -> int: ...
    @property
    def totals(self) -> Sequence[EventTotal]: ...
    @property
    def xspace(self) -> bytes: ...


class TraceSession(Protocol):
    """`_native.TraceSession`."""

    def collect(
        self, *, has_xspace: bool, total_count_max: int, warning: str, xspace_bytes_max: int
    ) -> Trace: ...
    def drop(self) -> None: ...


class StartTrace(Protocol):
    """`_native.start_trace`."""

    def __call__(self, *, host_level: int, includes_dataset_ops: bool) -> TraceSession: ...

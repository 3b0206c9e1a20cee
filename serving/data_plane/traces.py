"""The seam's recordings of TensorFlow's profiler (see `plane`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class EventTotal:
    """The number of recorded events of one name, and their total time."""

    name: str
    count: int
    total_ns: int


@dataclass(frozen=True)
class Trace:
    """The recording of a `TraceSession`."""

    event_count: int
    totals: Sequence[EventTotal]
    """The totals, the longest first."""

    xspace: bytes
    """A serialized `tensorflow.profiler.XSpace`; empty unless it was requested."""


class TraceSession(Protocol):
    """A recording of what TensorFlow runs in this process. `start_trace` makes it; it ends when it is dropped.

    Thread: one at a time.
    """

    def collect(
        self, *, has_xspace: bool, total_count_max: int, warning: str, xspace_bytes_max: int
    ) -> Trace:
        """Ends the recording and returns it, which takes up to seconds. Call it once.

        The trace has `total_count_max` totals at most. A `warning` other than "" is added to its warnings.
        Raises RESOURCE_EXHAUSTED if its XSpace is larger than `xspace_bytes_max`, and FAILED_PRECONDITION if the
        recording has been collected or dropped.
        """

    def drop(self) -> None:
        """Ends the recording if it has not ended, and discards it."""

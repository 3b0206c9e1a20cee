"""The data plane's records of requests, as the control plane reads them.

These are Protocols of `_native.RequestStatistics` and its values, so that their readers can be tested
without TensorFlow. All times are monotonic nanoseconds, all latencies nanoseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

PHASES = ("queue", "decode", "batch", "run", "encode", "total")
"""The phases of a request. `batch` is the time that a request gives to the others of its batch. `total`
lasts from the read of the request to the bytes of its reply."""

WINDOWS_SECONDS = (1, 10, 60)
"""The windows that are kept, beside the time since start."""


class LatencyFigures(Protocol):
    """The latencies of some requests.

    Quantiles are by the nearest rank, within 0.8 %. All figures are 0 if there were no requests.
    """

    @property
    def count(self) -> int: ...
    @property
    def sum_ns(self) -> int: ...
    @property
    def p50_ns(self) -> int: ...
    @property
    def p90_ns(self) -> int: ...
    @property
    def p99_ns(self) -> int: ...
    @property
    def p999_ns(self) -> int: ...
    @property
    def max_ns(self) -> int: ...


class MethodStatistics(Protocol):
    """The requests to one method of one version, at one moment. A value.

    `model` is "" and `version` 0 for requests that found no version, and for methods without one.
    `code` is the number of a gRPC status code.
    """

    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def method(self) -> str:
        """`Predict`, `GetModelMetadata`, `GetModelStatus` …"""
        ...

    @property
    def in_flight_count(self) -> int:
        """The requests that hold the version now: the sum over its methods, the same for each."""
        ...

    @property
    def row_count(self) -> int:
        """The rows of input of its OK requests; a request whose inputs have no rows counts as one."""
        ...

    @property
    def ended_seconds(self) -> float | None:
        """The seconds since its version ended; None while the version is live."""
        ...

    @property
    def count_by_code(self) -> Mapping[int, int]:
        """The number of requests by code; only codes that occurred."""
        ...

    def latency(self, code: int) -> LatencyFigures:
        """Returns the latencies of the requests that ended with `code` since the version was loaded."""
        ...

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> Sequence[int]:
        """Returns how many requests with `code` took at most each of the ascending edges."""
        ...

    def phase(self, phase: str, window_seconds: int | None = None) -> LatencyFigures:
        """Returns the times of one of PHASES, of all codes, over one of WINDOWS_SECONDS.

        With None: since the version was loaded.
        """
        ...

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> Sequence[int]:
        """Returns for how many requests one of PHASES took at most each of the ascending edges.

        Counts since the version was loaded.
        """
        ...


class HistoryPoint(Protocol):
    """One second of a model's requests, of all its versions and codes."""

    @property
    def at_ns(self) -> int:
        """The end of the second (monotonic)."""
        ...

    @property
    def count(self) -> int:
        """The requests that ended in this second."""
        ...

    @property
    def failed_count(self) -> int:
        """The requests that ended in this second with another code than OK."""
        ...

    @property
    def latency(self) -> LatencyFigures:
        """The latencies over the 10 seconds before `at_ns`: one second is too short for a p999."""
        ...


class RequestStatistics(Protocol):
    """The records of live versions, and of the last 32 versions that ended in the last 10 minutes."""

    def methods(self) -> Sequence[MethodStatistics]:
        """Returns the statistics by version and method, also of methods without a request so far."""
        ...

    def model_methods(self) -> Sequence[MethodStatistics]:
        """Returns the statistics by model and method (`version` 0), over all versions since the start.

        These counts never decrease.
        """
        ...

    def history(self, model: str | None, since_ns: int = 0) -> Sequence[HistoryPoint]:
        """Returns the points after `since_ns`, ascending, of one model (None: of all models).

        At most the last 900 s.
        """
        ...

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        """Returns the latencies of one model's requests that ended between two instants.

        The instants are at most 900 s ago. They are rounded to seconds, except the instants of `cut`.
        """
        ...

    def cut(self) -> int:
        """Returns the present instant, at which `between` can then begin or end exactly."""
        ...

"""What the data plane has recorded of requests, as the control plane reads it.

Protocols of `_native.RequestStatistics` and its values, so that who shows them can be tested without
TensorFlow. All times are monotonic nanoseconds, all latencies nanoseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

PHASES = ("queue", "decode", "run", "encode", "total")
"""What a request's time is made of. `total` is from gRPC's notice of the request to its reply's bytes."""

WINDOWS_SECONDS = (1, 10, 60)
"""The windows that are kept, beside the time since start."""


class LatencyFigures(Protocol):
    """How long some requests took. Quantiles by the nearest rank, within 0.8 %; 0 where there were none."""

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

    `model` "" and `version` 0: requests that found no version, and methods that have none.
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
        """Requests that hold the version at the moment: of all its methods, the same for each."""
        ...

    @property
    def ended_seconds(self) -> float | None:
        """How long its version has been gone; None while it is there."""
        ...

    @property
    def count_by_code(self) -> Mapping[int, int]:
        """Only codes that occurred."""
        ...

    def latency(self, code: int) -> LatencyFigures:
        """Since the version was loaded, of the requests that ended with `code`."""
        ...

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> Sequence[int]:
        """Of those, how many took at most each of the ascending edges."""
        ...

    def phase(self, phase: str, window_seconds: int | None = None) -> LatencyFigures:
        """One of PHASES, of all codes, over one of WINDOWS_SECONDS; None: since it was loaded."""
        ...

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> Sequence[int]:
        """Of one of PHASES, since it was loaded, how many took at most each of the ascending edges."""
        ...


class HistoryPoint(Protocol):
    """One second of a model's requests, of all its versions and codes."""

    @property
    def at_ns(self) -> int:
        """The end of the second (monotonic)."""
        ...

    @property
    def count(self) -> int:
        """Requests that ended in this second."""
        ...

    @property
    def failed_count(self) -> int:
        """Of those, the ones that did not end OK."""
        ...

    @property
    def latency(self) -> LatencyFigures:
        """Over the 10 seconds before `at_ns`: one second has too few requests for a p999."""
        ...


class RequestStatistics(Protocol):
    """All that is recorded, of live versions and of the last 32 that ended in the last 10 minutes."""

    def methods(self) -> Sequence[MethodStatistics]:
        """By version and method, also those that had no request yet."""
        ...

    def model_methods(self) -> Sequence[MethodStatistics]:
        """By model and method (`version` 0), over all versions that ever were: these never go down."""
        ...

    def history(self, model: str | None, since_ns: int = 0) -> Sequence[HistoryPoint]:
        """At most the last 900 s, ascending, of one model (None: of all); points after `since_ns`."""
        ...

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        """Of one model's requests that ended in between, at most 900 s ago, to the second; to the
        instant where `cut` was called at it.
        """
        ...

    def cut(self) -> int:
        """Lets `between` begin or end here, within the running second; returns the instant."""
        ...

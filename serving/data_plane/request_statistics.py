"""The seam's records of requests (see `plane`). All instants are monotonic, all times are in nanoseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

PHASES = ("queue", "decode", "batch", "run", "encode", "total")
"""The phases of a request. `batch` is the time that a request gives to the others of its batch. `total`
lasts from the read of the request to the bytes of its reply."""

VERSION_METHODS = (
    "Predict",
    "GetModelMetadata",
    "Classify",
    "Regress",
    "MultiInference",
    "SessionRun",
    "ModelInfer",
    "RestPredict",
    "RestClassify",
    "RestRegress",
    "RestModelInfer",
)
"""The methods that a version answers itself. The methods over HTTP have "Rest" before their name."""


@dataclass(frozen=True)
class LatencyFigures:
    """The latencies of a set of requests; 0 if the set is empty.

    Quantiles are by the nearest rank, within 0.8 % (above 1 µs). Check `count` before you rely on a
    quantile.
    """

    count: int = 0
    sum_ns: int = 0
    p50_ns: int = 0
    p90_ns: int = 0
    p99_ns: int = 0
    p999_ns: int = 0
    max_ns: int = 0
    """The largest latency. It is exact since the start. In a window it is within the
    histogram's error if a larger latency came before the window.
    """


class MethodStatistics(Protocol):
    """The requests to one method of one version, at one moment. A value.

    `model` "" and `version` 0 stand for requests that found no version, and for methods that Python
    answers.
    """

    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def method(self) -> str:
        """The method's name: `Predict`, `GetModelMetadata`, `GetModelStatus` …"""

    @property
    def in_flight_count(self) -> int:
        """The requests of all methods that hold the version now; 0 without a version."""

    @property
    def row_count(self) -> int:
        """The rows of input of the requests that ended with OK since the version was loaded. A
        request whose inputs have no rows counts as one.
        """

    @property
    def is_ended(self) -> bool:
        """True if the version has ended. It is reported for 600 s then."""

    @property
    def count_by_code(self) -> Mapping[int, int]:
        """The number of requests by gRPC status code, for the codes that occurred. The numbers add
        up to phase("total").count.
        """

    def latency(self, code: int) -> LatencyFigures:
        """The latencies of the requests that ended with `code`, a gRPC status code, since the version was loaded."""

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> Sequence[int]:
        """Counts, for each edge, the requests that ended with `code` and took at most that long.

        The edges ascend. The counts have the error of the histogram.
        """

    def phase(self, phase: str, window_seconds: int | None = None) -> LatencyFigures:
        """The times that requests of all codes spent in a phase, one of `PHASES`.

        The times are since the version was loaded, or over the last 1 to 60 whole seconds if `window_seconds`
        is given. A failed request has the phases that it reached. Raises INVALID_ARGUMENT for another window.

        `queue` and `total` begin when a request thread has read the call's message. While all
        request threads are in runs, a message waits in its socket before that. Only its client
        sees this wait. GetModelMetadata and the methods that Python answers have queue, run and
        total.
        """

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> Sequence[int]:
        """Counts for each of the ascending edges how many requests spent at most that long in the phase.

        The counts are since the version was loaded.
        """


@dataclass(frozen=True)
class HistoryPoint:
    """One second of a model's requests, of all its versions and codes. It is longer than a second
    if the server was too busy to end it in time.
    """

    at_ns: int
    """The end of the second, of the monotonic clock."""

    count: int = 0
    """The number of requests that ended in this second."""

    failed_count: int = 0
    """The number of these requests that did not end with OK."""

    latency: LatencyFigures = LatencyFigures()
    """The latencies of the 10 seconds before `at_ns`."""


class RequestStatistics(Protocol):
    """The recorded requests of the versions that were finished with this object, and of the servers made with it.

    A background thread of its own closes one sample each second. A request is recorded just before its answer is
    sent, so a client that has the answer finds it counted. Health checks and unknown methods are not counted.

    Thread: any, at once. Request threads never wait for it.
    """

    def add_models(self, models: Sequence[str]) -> None:
        """Counts requests to these models that reach no version under the model's name and version -1.

        That holds from now on. Such requests to other models have model "" and version 0.
        """

    def methods(self) -> Sequence[MethodStatistics]:
        """Lists the statistics by version and method.

        They are of live versions, also without requests, and of versions that ended in the last 600 s (at most
        32 of them).
        """

    def model_methods(self) -> Sequence[MethodStatistics]:
        """Lists the statistics by model and method (`version` 0), over all versions since the start.

        The counts never decrease.
        """

    def history(self, model: str | None, since_ns: int = 0) -> Sequence[HistoryPoint]:
        """Lists the seconds that ended after `since_ns`, ascending, at most the last 900.

        With `model` None they are of all models and of the requests that found no model, without the methods
        that Python answers.
        """

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        """The latencies of one model's requests that ended between the two instants, at most 900 s ago.

        The bounds are accurate to the second, or exact if `cut` was called at them.
        """

    def cut(self) -> int:
        """Ends the current second early, so that `between` can begin or end here; returns the instant."""

    def stop(self) -> None:
        """Ends the thread, so that no further second ends. A second call does nothing."""

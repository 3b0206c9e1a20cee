"""Statistics, reservoirs and limits of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from serving.base.protos import predict_pb2
from serving.data_plane.request_statistics import (
    HistoryPoint,
    LatencyFigures,
    MethodStatistics,
)
from serving.data_plane.servables import RequestReservoirStatistics


@dataclass(frozen=True)
class FakeStatistics:
    """Figures that a test can find again in a log line."""

    request_count: int = 7
    failed_count: int = 2
    latency_ns_p50: int = 1_000_000
    latency_ns_p99: int = 2_000_000
    latency_ns_p999: int = 3_000_000

    def latency_ns_at(self, quantile: float) -> int:
        """Returns p999 for each quantile above p99: the tail begins there."""
        if quantile <= 0.5:
            return self.latency_ns_p50
        return self.latency_ns_p99 if quantile <= 0.99 else self.latency_ns_p999

    def since(self, earlier: "FakeStatistics") -> "FakeStatistics":
        return replace(
            self,
            request_count=self.request_count - earlier.request_count,
            failed_count=self.failed_count - earlier.failed_count,
        )


@dataclass
class FakeRequestStatistics:
    """`RequestStatistics`. `points` are by model, None for all; `questions` are the calls of `history`."""

    points: dict[str | None, list[HistoryPoint]] = field(default_factory=dict)
    by_version: list[MethodStatistics] = field(default_factory=list)
    by_model: list[MethodStatistics] = field(default_factory=list)
    questions: list[tuple[str | None, int]] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    is_stopped: bool = False

    def methods(self) -> Sequence[MethodStatistics]:
        return self.by_version

    def model_methods(self) -> Sequence[MethodStatistics]:
        return self.by_model

    def history(self, model: str | None, since_ns: int = 0) -> Sequence[HistoryPoint]:
        self.questions.append((model, since_ns))
        return [point for point in self.points.get(model, []) if point.at_ns > since_ns]

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        del model, from_ns, to_ns
        return LatencyFigures()

    def cut(self) -> int:
        return 0

    def add_models(self, models: Sequence[str]) -> None:
        self.models.extend(models)

    def stop(self) -> None:
        self.is_stopped = True


class FakeAdmission:
    """Like `_native.Admission`, with a fixed count in flight."""

    def __init__(
        self, total_limit: int, *, in_flight_count: int = 0, refused_count: int = 0
    ) -> None:
        self.total_limit = total_limit
        self.model_limits: dict[str, int] = {}
        self.in_flight_count = in_flight_count
        self.refused_count = refused_count

    def set_model_limits(self, limits: Mapping[str, int]) -> None:
        self.model_limits = dict(limits)


@dataclass
class FakeByteBudget:
    """`_native.ByteBudget`: counts, and refuses beyond its limit and the reserve of a use."""

    limit_bytes: int
    reserve_bytes: int = 0
    in_use_bytes: int = 0
    refused_count: int = 0


@dataclass
class FakeReservoir:
    """`_native.RequestReservoir`; tests fill `kept`."""

    bounds: Mapping[str, float] = field(default_factory=dict)
    kept: list[bytes] = field(default_factory=list)

    kept_jointly: list[bytes] = field(default_factory=list)

    def requests(self) -> list[bytes]:
        return self.kept

    def joint_requests(self) -> list[bytes]:
        return self.kept_jointly

    def statistics(self) -> RequestReservoirStatistics:
        return RequestReservoirStatistics(len(self.kept), sum(map(len, self.kept)))


def request_for(output: str) -> bytes:
    data: bytes = predict_pb2.PredictRequest(output_filter=[output]).SerializeToString()
    return data

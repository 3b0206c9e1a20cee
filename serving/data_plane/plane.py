"""The data plane as the server sees it: `serving.data_plane._native`, or a test's replacement."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from serving.data_plane.loads import SavedModelPlane, SlabPool
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import (
    Admission,
    ByteBudget,
    RareCall,
    RestWorkers,
    ServerCertificates,
    SpanBuffer,
)
from serving.data_plane.servables import RequestReservoir, ServingMap
from serving.data_plane.traces import StartTrace


class GrpcServer(Protocol):
    """`_native.GrpcServer`."""

    @property
    def port(self) -> int: ...
    @property
    def connection_count(self) -> int: ...
    @property
    def limit_counts(self) -> Mapping[str, int]: ...
    def start(self) -> None: ...
    def take_rare_call(self, timeout_seconds: float) -> RareCall | None: ...
    def set_health(self, service: str, is_serving: bool) -> None: ...
    def remove_health(self, service: str) -> None: ...
    def share_batches_with(self, others: Any) -> None: ...
    def pin_request_threads(self, is_pinned: bool) -> bool: ...
    def shutdown(self, drain_seconds: float) -> bool: ...


class RequestMemoryStatistics(Protocol):
    """Bytes that TensorFlow's allocator holds (`_native.RequestMemoryStatistics`)."""

    @property
    def in_use_bytes(self) -> int: ...
    @property
    def in_use_bytes_peak(self) -> int: ...
    @property
    def allocation_count(self) -> int: ...


class SampledRequestStatistics(RequestStatistics, Protocol):
    """`_native.RequestStatistics`, with the thread that ends each second of its history."""

    def add_models(self, models: Sequence[str]) -> None:
        """Counts requests to these models that reach no version under the model, with version -1."""
        ...

    def stop(self) -> None:
        """Ends the thread. A second call does nothing."""
        ...


class DataPlane(SavedModelPlane, Protocol):
    """The parts of `serving.data_plane._native` that a server uses; tests replace it."""

    @property
    def ServingMap(self) -> Callable[[], ServingMap]: ...  # noqa: N802 (the module's name for it)
    @property
    def Admission(self) -> Callable[[int], Admission]: ...  # noqa: N802
    @property
    def ByteBudget(self) -> Callable[[int], ByteBudget]: ...  # noqa: N802
    @property
    def GrpcServer(self) -> Callable[..., GrpcServer]: ...  # noqa: N802
    @property
    def RestWorkers(self) -> Callable[..., RestWorkers]: ...  # noqa: N802
    @property
    def SlabPool(self) -> Callable[..., SlabPool]: ...  # noqa: N802
    @property
    def RequestReservoir(self) -> Callable[..., RequestReservoir]: ...  # noqa: N802
    @property
    def RequestStatistics(self) -> Callable[[], SampledRequestStatistics]: ...  # noqa: N802
    @property
    def SpanBuffer(self) -> Callable[..., SpanBuffer]: ...  # noqa: N802
    @property
    def ServerCertificates(self) -> Callable[..., ServerCertificates]: ...  # noqa: N802
    @property
    def ReflectionTable(self) -> Callable[..., object]: ...  # noqa: N802
    @property
    def start_trace(self) -> StartTrace: ...
    def build_info(self) -> Mapping[str, str]: ...
    def request_memory_statistics(self) -> RequestMemoryStatistics: ...
    def open_crash_page(self, descriptor: int) -> None: ...
    def set_run_memory_bytes(
        self,
        bytes: int,  # noqa: A002 (the module's name for it)
        all_runs_bytes: int,
    ) -> None: ...
    def set_replay_seconds(self, seconds: float) -> None: ...
    def runs_ended_by_memory(self) -> int: ...
    def initialize(
        self,
        *,
        intra_op_thread_count: int,
        inter_op_thread_count: int,
        is_stock: bool,
        has_load_pool: bool,
        checks_method_names: bool,
        serves_session_run: bool,
    ) -> None: ...
    def enter_background_thread(self, priority: str) -> None: ...


def native_module() -> DataPlane:
    """Returns the native data plane."""
    # Imported here because it maps TensorFlow (0.4 s), and tests use a data plane of their own.
    from serving.data_plane import _native

    return _native

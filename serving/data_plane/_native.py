"""Loads the data plane. `_native.pyi` beside this file is its contract.

The order of loading matters. `_data_plane` links Debian's gRPC and TensorFlow, and both bring
incompatible symbols of re2, OpenSSL, zlib and gRPC itself. If they were loaded as one group, each
would search the other's libraries, and the second would call into the first (TensorFlow's RestoreV2
then waits for ever in Debian's re2). So TensorFlow is loaded first, in a scope of its own, which it
searches first. The group of `_data_plane` names gRPC's needs before TensorFlow.
"""

import ctypes
import importlib.util
from pathlib import Path


def _load_tensorflow() -> None:
    """Maps TensorFlow's libraries without importing its Python package, which would take 5 s."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("tensorflow is not installed: pip install 'tensorflow>=2.21,<2.22'")
    directory = Path(next(iter(spec.submodule_search_locations)))
    ctypes.CDLL(str(directory / "libtensorflow_cc.so.2"), mode=ctypes.RTLD_LOCAL)


_load_tensorflow()

from serving.data_plane._data_plane import (  # noqa: E402  TensorFlow comes first, see above
    Admission,
    ArenaRemains,
    ArenaStatistics,
    ByteBudget,
    EndedRestRequest,
    EventTotal,
    GrpcServer,
    HistoryPoint,
    LatencyFigures,
    MemoryPlan,
    MethodStatistics,
    RareCall,
    ReflectionTable,
    RequestMemoryStatistics,
    RequestReservoir,
    RequestReservoirStatistics,
    RequestSpan,
    RequestStatistics,
    RestWorkers,
    SavedModelLoad,
    Servable,
    ServableStatistics,
    ServerCertificates,
    ServingMap,
    SlabPool,
    SlabPoolStatistics,
    SpanBuffer,
    StatusError,
    Trace,
    TraceContext,
    TraceSession,
    build_info,
    check_saved_model,
    enter_background_thread,
    initialize,
    load_op_library,
    mark_request_memory_peak,
    request_memory_peak_rise_bytes,
    request_memory_statistics,
    runs_ended_by_memory,
    set_replay_seconds,
    set_run_memory_bytes,
    start_trace,
)

__all__ = [
    "Admission",
    "ArenaRemains",
    "ArenaStatistics",
    "ByteBudget",
    "EndedRestRequest",
    "EventTotal",
    "GrpcServer",
    "HistoryPoint",
    "LatencyFigures",
    "MemoryPlan",
    "MethodStatistics",
    "RareCall",
    "ReflectionTable",
    "RequestMemoryStatistics",
    "RequestReservoir",
    "RequestReservoirStatistics",
    "RequestSpan",
    "RequestStatistics",
    "RestWorkers",
    "SavedModelLoad",
    "Servable",
    "ServableStatistics",
    "ServerCertificates",
    "ServingMap",
    "SlabPool",
    "SlabPoolStatistics",
    "SpanBuffer",
    "StatusError",
    "Trace",
    "TraceContext",
    "TraceSession",
    "build_info",
    "check_saved_model",
    "enter_background_thread",
    "initialize",
    "load_op_library",
    "mark_request_memory_peak",
    "request_memory_peak_rise_bytes",
    "request_memory_statistics",
    "runs_ended_by_memory",
    "set_replay_seconds",
    "set_run_memory_bytes",
    "start_trace",
]

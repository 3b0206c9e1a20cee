"""Loads the data plane. `_native.pyi` beside this file is its contract."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from serving.base.tensorflow_package import installed_version, mismatch

if _mismatch := mismatch(installed_version()):
    raise ImportError(_mismatch)


@contextmanager
def _lazy_binding() -> Iterator[None]:
    """Lets functions of TensorFlow's libraries be looked up at their first call.

    There are 230,000 of them. A server calls few, and looking up all takes 0.15 s at its start.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


with _lazy_binding():
    from serving.data_plane._data_plane import (
        Admission,
        ArenaRemains,
        ArenaStatistics,
        BatchFigures,
        BatchSettings,
        BatchSlots,
        ByteBudget,
        EndedRestRequest,
        EventTotal,
        GrpcServer,
        HistoryPoint,
        LatencyFigures,
        MemoryPlan,
        MethodStatistics,
        PaddingCounts,
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
        SignatureBatching,
        SlabPool,
        SlabPoolStatistics,
        SpanBuffer,
        StatusError,
        Trace,
        TraceContext,
        TraceSession,
        WaitingRequests,
        build_info,
        check_saved_model,
        enter_background_thread,
        initialize,
        load_op_library,
        mark_request_memory_peak,
        open_crash_page,
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
    "BatchFigures",
    "BatchSettings",
    "BatchSlots",
    "ByteBudget",
    "EndedRestRequest",
    "EventTotal",
    "GrpcServer",
    "HistoryPoint",
    "LatencyFigures",
    "MemoryPlan",
    "MethodStatistics",
    "PaddingCounts",
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
    "SignatureBatching",
    "SlabPool",
    "SlabPoolStatistics",
    "SpanBuffer",
    "StatusError",
    "Trace",
    "TraceContext",
    "TraceSession",
    "WaitingRequests",
    "build_info",
    "check_saved_model",
    "enter_background_thread",
    "initialize",
    "load_op_library",
    "mark_request_memory_peak",
    "open_crash_page",
    "request_memory_peak_rise_bytes",
    "request_memory_statistics",
    "runs_ended_by_memory",
    "set_replay_seconds",
    "set_run_memory_bytes",
    "start_trace",
]

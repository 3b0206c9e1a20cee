"""Makes the parts of the data plane that requests of every protocol use."""

from dataclasses import dataclass

import structlog

from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.requests import Admission, SpanBuffer
from serving.data_plane.servables import ServingMap
from serving.loading.memory_fit import available_bytes
from serving.rpc.request_memory import RequestMemory, request_memory_limits
from serving.server.foundation import Foundation

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class RequestParts:
    """The map of the versions that answer, the limits of requests, and their statistics.

    `spans` is None if no request is traced.
    """

    serving_map: ServingMap
    statistics: RequestStatistics
    admission: Admission
    memory: RequestMemory
    spans: SpanBuffer | None


def make_request_parts(foundation: Foundation, *, spans: SpanBuffer | None) -> RequestParts:
    """Makes the parts. The data plane starts its thread for the statistics here."""
    plane = foundation.data_plane
    return RequestParts(
        serving_map=plane.ServingMap(),
        statistics=plane.RequestStatistics(),
        admission=plane.Admission(foundation.config.max_in_flight_requests),
        memory=make_request_memory(foundation),
        spans=spans,
    )


def make_request_memory(foundation: Foundation) -> RequestMemory:
    """Makes the memory budget of requests. Also sets the memory limits of one run, and of all runs together."""
    limits = request_memory_limits(foundation.config, available_bytes())
    foundation.data_plane.set_run_memory_bytes(limits.run_bytes, limits.all_runs_bytes)
    _log.info(
        "memory_limits",
        request_bytes=limits.budget_bytes,
        run_bytes=limits.run_bytes,
        all_runs_bytes=limits.all_runs_bytes,
    )
    return RequestMemory(
        limits=limits, budget=foundation.data_plane.ByteBudget(limits.budget_bytes)
    )

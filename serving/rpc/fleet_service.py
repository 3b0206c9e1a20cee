"""The two calls by which a fleet's coordinator works with a server (--fleet_member). JSON (UTF-8)."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.base.errors import InvalidArgument, NotFound
from serving.base.json_requests import parse_object
from serving.base.name_text import listed
from serving.core.granted_versions import GrantedVersion
from serving.core.model_settings import GateMode
from serving.core.operator_api import FLEET_REPORT, GRANT
from serving.core.servable import END, HEALTHY, START, GateVerdict, ServableStatus
from serving.data_plane.request_statistics import MethodStatistics, RequestStatistics
from serving.data_plane.servables import Servable
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.reload.grants import Grants
from serving.reload.served_models import ServedModels
from serving.rpc.health import HealthReporter
from serving.rpc.rare_calls import Handler

EDGE_COUNT_MAX = 1_000
"""The most edges of a report: a coordinator asks for about a hundred."""

FOUND_COUNT_MAX = 1_000
"""The newest versions on the disk that a report has. A coordinator refuses a report with many more."""

TEXT_LENGTH_MAX = 4_000
"""The most characters of a reason in a report."""

_WITHOUT_A_RUN = frozenset({"GetModelMetadata", "GetModelStatus"})


@dataclass(frozen=True, kw_only=True)
class FleetSources:
    """The parts that a report is read from. `free_bytes` is the memory that the server may still take.

    `drain_reported` is called with each report that shows the drain.
    """

    served: ServedModels
    monitor: StateMonitor
    streams: Streams
    requests: RequestStatistics
    health: HealthReporter
    drain_reported: Callable[[], None]
    free_bytes: Callable[[], int]
    incarnation: int


class FleetService:
    """Answers on the threads of the rare calls. Keeps nothing from one call to the next."""

    def __init__(self, sources: FleetSources, grants: Grants) -> None:
        self._sources = sources
        self._grants = grants

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers, by the full name of the method."""
        return {FLEET_REPORT: self.report, GRANT: self.grant}

    def report(self, request: bytes) -> bytes:
        """Replies with everything that a coordinator decides by.

        Takes `{"latency_edges_ns": [...]}`, ascending. Each version that requests have reached has
        `latency_counts`: the requests up to each edge and above the one before it, and last those
        above all edges. They count since the version was loaded.
        """
        edges = _edges(parse_object(request).get("latency_edges_ns", []))
        sources = self._sources
        counts = _latency_counts(sources.requests.methods(), edges)
        statuses = sources.monitor.statuses()
        is_draining = sources.health.view().is_draining
        reply = {
            "incarnation": sources.incarnation,
            "is_draining": is_draining,
            "free_bytes": sources.free_bytes(),
            "models": {
                name: self._model(name, statuses.get(name, ()), counts)
                for name in sorted(sources.served.names)
            },
        }
        if is_draining:
            sources.drain_reported()
        return json.dumps(reply).encode()

    def grant(self, request: bytes) -> bytes:
        """Takes `{"model", "version", "order"}`; returns `{"version", "order"}`, the grant in effect.

        A version of null withdraws the last grant.
        Raises NotFound for a model that is not configured.
        """
        parsed = parse_object(request)
        name, version, order = parsed.get("model"), parsed.get("version"), parsed.get("order")
        is_version = "version" in parsed and (version is None or type(version) is int)
        if not is_version or type(order) is not int:
            raise InvalidArgument(f"version {version!r} or order {order!r} is not a number")
        names = self._sources.served.names
        if name not in names:
            raise NotFound(f"no model {name!r}; models: {listed(sorted(names))}")
        taken = self._grants.grant(str(name), version, order)
        return json.dumps({"version": taken.version, "order": taken.order}).encode()

    def _model(
        self,
        name: str,
        statuses: Sequence[ServableStatus],
        counts: Mapping[tuple[str, int], Sequence[int]],
    ) -> dict[str, Any]:
        stream = self._sources.streams.status(name)
        granted = self._grants.granted(name)
        return {
            "granted": granted.version if granted else None,
            "order": granted.order if granted else 0,
            "default_version": stream.default_version if stream else None,
            "found": sorted(self._sources.served.found_versions(name))[-FOUND_COUNT_MAX:],
            "blocked": {
                row["version"]: row["reason"][:TEXT_LENGTH_MAX]
                for row in _latest(stream.blocked_versions if stream else ())
            },
            "versions": {
                status.id.version: self._version(
                    status, counts.get((name, status.id.version)), granted
                )
                for status in statuses
            },
        }

    def _version(
        self,
        status: ServableStatus,
        counts: Sequence[int] | None,
        granted: GrantedVersion | None,
    ) -> dict[str, Any]:
        servable = self._sources.streams.servable(status.id)
        # It ended before it was granted, so it is about to be loaded again.
        is_awaited = status.state is END and _ended_before(status, granted)
        health = HEALTHY if is_awaited else status.health
        return {
            "state": (START if is_awaited else status.state).name,
            "error_code": int(health.code),
            "error_message": health.message[:TEXT_LENGTH_MAX],
            "warned": {
                verdict.gate: verdict.reason[:TEXT_LENGTH_MAX]
                for verdict in warnings(status.verdicts)
            },
            "warned_alone": [
                verdict.gate for verdict in warnings(status.verdicts) if not verdict.has_predecessor
            ],
            "excused": [verdict.gate for verdict in status.verdicts if _is_excused(verdict)],
            "latency_counts": list(counts or ()),
            **(_request_counts(servable) if servable else {}),
        }


def warnings(verdicts: Iterable[GateVerdict]) -> Iterator[GateVerdict]:
    """Yields the verdicts of gates that were not passed and only warn."""
    return (row for row in verdicts if not row.is_passed and row.mode == GateMode.WARN.value)


def _is_excused(verdict: GateVerdict) -> bool:
    """True if answers were suspicious, and the predecessor's were as suspicious."""
    is_compared = verdict.has_predecessor and verdict.figures.get("suspect_count", 0) > 0
    return verdict.is_passed and is_compared


def _latest(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newest of the blocked versions."""
    return sorted(rows, key=lambda row: int(row["version"]))[-FOUND_COUNT_MAX:]


def _ended_before(status: ServableStatus, granted: GrantedVersion | None) -> bool:
    """True if a version ended before the present grant of it.

    Compares monotonic times, because the wall clock may be set back between the two.
    """
    if granted is None or granted.version != status.id.version:
        return False
    return status.state_changed_ns < granted.since_ns


def _edges(given: object) -> list[int]:
    is_list = isinstance(given, list) and len(given) <= EDGE_COUNT_MAX
    if not is_list or not all(type(edge) is int for edge in given):  # type: ignore[attr-defined]
        raise InvalidArgument(f"latency_edges_ns is a list of at most {EDGE_COUNT_MAX} numbers")
    edges: list[int] = given  # type: ignore[assignment]
    if edges != sorted(edges):
        raise InvalidArgument("latency_edges_ns must ascend")
    return edges


def _latency_counts(
    methods: Iterable[MethodStatistics], edges: Sequence[int]
) -> dict[tuple[str, int], list[int]]:
    """The requests of each bucket, by model and version, over the methods that run a model."""
    by_version: dict[tuple[str, int], list[int]] = {}
    if not edges:
        return by_version
    for statistics in methods:
        if statistics.method in _WITHOUT_A_RUN or not statistics.model:
            continue
        total = sum(statistics.count_by_code.values())
        if not total:
            continue
        cumulative = [*statistics.phase_cumulative_counts("total", edges), total]
        counts = by_version.setdefault(
            (statistics.model, statistics.version), [0] * (len(edges) + 1)
        )
        before = 0
        for index, upto in enumerate(cumulative):
            # The counts are read one after the other while requests go on, so a difference may be negative.
            counts[index] += max(0, upto - before)
            before = max(before, upto)
    return by_version


def _request_counts(servable: Servable) -> dict[str, int]:
    try:
        statistics = servable.statistics()
    except Exception:  # noqa: BLE001 (it may be in destruction)
        return {}
    return {
        "request_count": statistics.request_count,
        "failed_count": statistics.failed_count,
    }

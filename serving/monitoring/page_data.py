"""What the live page hears at each of its polls: only what it asks for, and only what is new to it.

Nothing is computed or kept between two polls, so a page that nobody looks at costs nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import StatusCode
from serving.core.servable import AVAILABLE, Routing, ServableId, ServableStatus
from serving.data_plane.request_statistics import MethodStatistics, RequestStatistics
from serving.data_plane.servables import ArenaStatistics
from serving.manager.state_monitor import Statuses
from serving.monitoring.metric_sources import MetricSources
from serving.monitoring.page_points import latency_json, points_json
from serving.monitoring.swap_record import SwapRecord, SwapResult, record_document

WINDOW_SECONDS = 10
"""Of the quantiles of a version, as of the charts."""

LISTED_SWAP_COUNT_MAX = 20
"""With their stages; the charts mark all that are known."""

MARKED_NS = 960 * NS_PER_SECOND
"""Swaps older than this are not on the charts, which show 15 minutes."""


VERSION_METHODS = frozenset(
    {
        *("Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata", "SessionRun"),
        *("RestPredict", "RestClassify", "RestRegress", "ModelInfer", "RestModelInfer"),
    }
)
"""Whatever else is asked for without a model (states, reloads) is of the server, and no model's request."""

WAITING_MODEL_COUNT_MAX = 100
"""A server of thousands of wrong base paths does not send thousands of reasons at each poll."""

Reasons = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class PageSources:
    """Where the page's facts come from. Each is asked at each poll, and must answer at once.

    `arena` as in MetricSources. `default_version`: who answers a request that names none, a canary
    aside. `swaps`: newest first. `reasons`: for each configured model why it has no version that is
    AVAILABLE, None if it has one. `base_path`: None for a model that is not configured.
    """

    requests: RequestStatistics
    statuses: Callable[[], Statuses]
    arena: Callable[[ServableId], ArenaStatistics | None]
    routing: Callable[[str], Routing]
    default_version: Callable[[str], int | None]
    swaps: Callable[[], Sequence[SwapRecord]]
    reasons: Callable[[], Reasons] = dict
    base_path: Callable[[str], str | None] = lambda name: None
    stuck_sources: Callable[[], Collection[str]] = frozenset


def page_sources(
    metrics: MetricSources,
    swaps: Callable[[], Sequence[SwapRecord]],
    reasons: Callable[[], Reasons],
) -> PageSources:
    """Takes the facts of the page from the metrics' sources, `SwapTimeline.records` and `reasons`."""
    return PageSources(
        requests=metrics.requests,
        statuses=metrics.statuses,
        arena=metrics.arena,
        routing=metrics.routing,
        default_version=metrics.default_version,
        swaps=swaps,
        reasons=reasons,
        base_path=metrics.base_path,
        stuck_sources=metrics.stuck_sources,
    )


@dataclass(frozen=True, kw_only=True)
class PageQuestion:
    """What a page shows and has already. `model` None: all.

    `cursor` and `swaps_tag` are as the last answer had them, "" at first.
    """

    model: str | None = None
    cursor: str = ""
    swaps_tag: str = ""


class PageData:
    """Answers the page's polls. Any thread; one poll costs half a millisecond, a page's first one five."""

    def __init__(
        self,
        sources: PageSources,
        clock: Clock,
        server_version: str,
        *,
        started_wall_ns: int | None = None,
    ) -> None:
        """`started_wall_ns` None: the server starts now."""
        self._sources = sources
        self._clock = clock
        self._server_version = server_version
        self._started_wall_ns = clock.wall_ns() if started_wall_ns is None else started_wall_ns

    def answer(self, question: PageQuestion) -> dict[str, Any]:
        """JSON-ready. Times are Unix seconds by the server's clock.

        `is_continued`: `points` go on from the cursor; else they are all there are, and what the
        page had is void. `swaps` is missing where the page has them by its tag.
        """
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        since_ns = self._since_ns(question.cursor, now_ns)
        history = self._sources.requests.history(question.model, since_ns)
        points, cursor_ns = points_json(history, since_ns, wall_ns - now_ns)
        statuses, reasons = self._sources.statuses(), self._sources.reasons()
        answer = {
            "server": {
                "version": self._server_version,
                "started_at": _unix_seconds(self._started_wall_ns),
            },
            "now": _unix_seconds(wall_ns),
            "models": sorted({*statuses, *reasons}),
            "cursor": f"{self._started_wall_ns:x}.{cursor_ns}",
            "is_continued": since_ns > 0,
            "points": points,
            "codes": codes_json(self._sources.requests.model_methods(), question.model),
            "versions": self._versions(statuses, question.model),
            "stuck": sorted(self._sources.stuck_sources())[:WAITING_MODEL_COUNT_MAX],
            **waiting_json(reasons, self._sources.base_path, question.model),
        }
        return answer | self._swaps(question, now_ns)

    def _since_ns(self, cursor: str, now_ns: int) -> int:
        """0 for a cursor that is not this process's: another one's clock may be another machine's."""
        started, _, digits = cursor.partition(".")
        if started != f"{self._started_wall_ns:x}" or not (digits.isascii() and digits.isdigit()):
            return 0
        # So long a number is none of ours, and int() would take its time over a longer one.
        since_ns = int(digits) if len(digits) < 20 else 0
        return since_ns if since_ns <= now_ns else 0

    def _versions(self, statuses: Statuses, model: str | None) -> list[dict[str, Any]]:
        methods = _methods_by_version(self._sources.requests.methods())
        return [
            version_json(
                status,
                route_json(status, routing, default_version),
                methods.get(status.id, ()),
                self._sources.arena(status.id) if status.state is AVAILABLE else None,
            )
            for name, routing, default_version in self._routes(statuses, model)
            for status in reversed(statuses[name])
        ]

    def _routes(
        self, statuses: Statuses, model: str | None
    ) -> list[tuple[str, Routing, int | None]]:
        return [
            (name, self._sources.routing(name), self._sources.default_version(name))
            for name in sorted(statuses)
            if model in (None, name)
        ]

    def _swaps(self, question: PageQuestion, now_ns: int) -> dict[str, Any]:
        swaps = [swap for swap in self._sources.swaps() if question.model in (None, swap.model)]
        tag = swaps_tag(question.model, swaps)
        if tag == question.swaps_tag:
            return {"swaps_tag": tag}
        return {
            "swaps_tag": tag,
            "swaps": [record_document(swap) for swap in swaps[:LISTED_SWAP_COUNT_MAX]],
            "marks": marks_json(swaps, now_ns - MARKED_NS),
        }


def waiting_json(
    reasons: Reasons, base_path: Callable[[str], str | None], model: str | None
) -> dict[str, Any]:
    """Returns the configured models without an AVAILABLE version, with the reason, and their count."""
    waiting = [
        (name, reason)
        for name, reason in sorted(reasons.items())
        if reason is not None and model in (None, name)
    ]
    return {
        "waiting_count": len(waiting),
        "waiting": [
            {"model": name, "reason": reason, "base_path": base_path(name)}
            for name, reason in waiting[:WAITING_MODEL_COUNT_MAX]
        ],
    }


def codes_json(methods: Sequence[MethodStatistics], model: str | None) -> dict[str, int]:
    """Requests since the server started by the name of their code; `model` None: of all models, and
    of those that there are not. As in the charts, what is asked of the server itself does not count.
    """
    counts: dict[int, int] = {}
    for statistics in methods:
        is_of_model = statistics.model != "" or statistics.method in VERSION_METHODS
        if is_of_model and model in (None, statistics.model):
            for code, count in statistics.count_by_code.items():
                counts[code] = counts.get(code, 0) + count
    return {_code_name(code): count for code, count in sorted(counts.items())}


def version_json(
    status: ServableStatus,
    route: Mapping[str, Any],
    methods: Sequence[MethodStatistics],
    arena: ArenaStatistics | None,
) -> dict[str, Any]:
    """One version: its state and why, who reaches it, and what its requests and its memory do."""
    return {
        "model": status.id.name,
        "version": status.id.version,
        "state": status.state.name,
        "stage": status.stage.value if status.stage else None,
        "state_changed_at": _unix_seconds(status.state_changed_wall_ns),
        "health": {"code": status.health.code.name, "message": status.health.message},
        "failed_load_count": status.failed_load_count,
        "failed_gates": [
            {"gate": verdict.gate, "mode": verdict.mode, "reason": verdict.reason}
            for verdict in status.verdicts
            if not verdict.is_passed
        ],
        **route,
        "in_flight_count": max((item.in_flight_count for item in methods), default=None),
        "latency": _busiest_latency(methods),
        "arena_allocated_bytes": arena.allocated_bytes if arena else None,
        "arena_resident_bytes": arena.slab_resident_bytes if arena else None,
    }


def route_json(
    status: ServableStatus, routing: Routing, default_version: int | None
) -> dict[str, Any]:
    """Which requests that do not name its number reach a version."""
    version = status.id.version
    is_canary = version == routing.canary_version and status.state is AVAILABLE
    return {
        "is_default": version == default_version,
        "canary_ratio": routing.canary_weight if is_canary else None,
        "labels": sorted(label for label, held in routing.labels.items() if held == version),
    }


def marks_json(swaps: Sequence[SwapRecord], since_ns: int) -> list[dict[str, Any]]:
    """What the charts need of the swaps since then. A version that only went is no swap to them."""
    return [
        {
            "model": swap.model,
            "version": swap.version,
            "result": swap.result.value if swap.result else None,
            "began_at": swap.wall_seconds(swap.load_started_at_ns or swap.began_at_ns),
            "published_at": swap.wall_seconds(swap.published_at_ns),
            "ended_at": swap.wall_seconds(swap.ended_at_ns),
        }
        for swap in swaps
        if swap.began_at_ns > since_ns and swap.result is not SwapResult.UNLOADED
    ]


def swaps_tag(model: str | None, swaps: Sequence[SwapRecord]) -> str:
    """Changes when anything does that the page shows of them; cheaper than making their JSON."""
    marked = [(swap.id, swap.result, swap.published_at_ns, swap.ended_at_ns) for swap in swaps]
    listed = [
        (swap.load_started_at_ns, len(swap.stages), swap.reason, swap.during, swap.after)
        for swap in swaps[:LISTED_SWAP_COUNT_MAX]
    ]
    return f"{crc32(repr((model, marked, listed)).encode()):08x}"


def _methods_by_version(
    methods: Sequence[MethodStatistics],
) -> dict[ServableId, list[MethodStatistics]]:
    by_version: dict[ServableId, list[MethodStatistics]] = {}
    for statistics in methods:
        if statistics.ended_seconds is None:
            servable_id = ServableId(statistics.model, statistics.version)
            by_version.setdefault(servable_id, []).append(statistics)
    return by_version


def _busiest_latency(methods: Sequence[MethodStatistics]) -> dict[str, Any] | None:
    """Over the last 10 s, of the method with the most requests: quantiles of two do not add up."""
    figures = [(item.phase("total", WINDOW_SECONDS), item.method) for item in methods]
    if not figures:
        return None
    busiest, method = max(figures, key=lambda pair: (pair[0].count, pair[1]))
    latency = latency_json(busiest)
    return None if latency is None else {"method": method, **latency}


def _code_name(code: int) -> str:
    return StatusCode(code).name if code in StatusCode.__members__.values() else f"CODE_{code}"


def _unix_seconds(wall_ns: int) -> float:
    return round(wall_ns / NS_PER_SECOND, 2)

"""What the live page hears at each of its polls: only what it asks for, and only what is new to it.

Nothing is computed or kept between two polls, so a page that nobody looks at costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

from serving.clock import NS_PER_SECOND, Clock
from serving.errors import StatusCode
from serving.monitoring.page_points import latency_json, points_json
from serving.monitoring.request_statistics import MethodStatistics, RequestStatistics
from serving.servable import AVAILABLE, Routing, ServableId, ServableStatus
from serving.state_monitor import Statuses

WINDOW_SECONDS = 10
"""Of the quantiles of a version, as of the charts."""

LISTED_SWAP_COUNT_MAX = 20
"""With their stages; the charts mark all that are known."""

MARKED_SECONDS = 960.0
"""Swaps older than this are not on the charts, which show 15 minutes."""

# A swap as `GET /v1/swaps` has it.
SwapJson = Mapping[str, Any]


class ArenaBytes(Protocol):
    """Where the bytes of one version's arena are (`_native.ArenaStatistics`)."""

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def slab_resident_bytes(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class PageSources:
    """Where the page's facts come from. Each is asked once a poll, and must answer at once.

    `swaps`: newest first. `arenas`: of the versions that have one at the moment.
    """

    statistics: RequestStatistics
    statuses: Callable[[], Statuses]
    routing: Callable[[str], Routing]
    arenas: Callable[[], Mapping[ServableId, ArenaBytes]]
    swaps: Callable[[], Sequence[SwapJson]]


@dataclass(frozen=True, kw_only=True)
class PageQuestion:
    """What a page shows and has already. `model` None: all.

    `cursor` and `swaps_tag` are as the last answer had them, "" at first.
    """

    model: str | None = None
    cursor: str = ""
    swaps_tag: str = ""


class PageData:
    """Answers the page's polls. Any thread; one poll costs about a millisecond."""

    def __init__(self, sources: PageSources, clock: Clock, server_version: str) -> None:
        self._sources = sources
        self._clock = clock
        self._server_version = server_version
        self._started_wall_ns = clock.wall_ns()

    def answer(self, question: PageQuestion) -> dict[str, Any]:
        """JSON-ready. Times are Unix seconds by the server's clock.

        `is_continued`: `points` go on from the cursor; else they are all there are, and what the
        page had is void. `swaps` is missing where the page has them by its tag.
        """
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        since_ns = self._since_ns(question.cursor, now_ns)
        history = self._sources.statistics.history(question.model, since_ns)
        points, cursor_ns = points_json(history, since_ns, wall_ns - now_ns)
        statuses = self._sources.statuses()
        answer = {
            "server": {
                "version": self._server_version,
                "started_at": _unix_seconds(self._started_wall_ns),
            },
            "now": _unix_seconds(wall_ns),
            "models": sorted(statuses),
            "cursor": f"{self._started_wall_ns:x}.{cursor_ns}",
            "is_continued": since_ns > 0,
            "points": points,
            "codes": codes_json(self._sources.statistics.model_methods(), question.model),
            "versions": self._versions(statuses, question.model),
        }
        return answer | self._swaps(question, wall_ns / NS_PER_SECOND)

    def _since_ns(self, cursor: str, now_ns: int) -> int:
        """0 for a cursor that is not this process's: another one's clock may be another machine's."""
        started, _, digits = cursor.partition(".")
        if started != f"{self._started_wall_ns:x}" or not (digits.isascii() and digits.isdigit()):
            return 0
        # So long a number is none of ours, and int() would take its time over a longer one.
        since_ns = int(digits) if len(digits) < 20 else 0
        return since_ns if since_ns <= now_ns else 0

    def _versions(self, statuses: Statuses, model: str | None) -> list[dict[str, Any]]:
        methods = _methods_by_version(self._sources.statistics.methods())
        arenas = self._sources.arenas()
        return [
            version_json(
                status,
                route_json(status.id.version, versions, self._sources.routing(name)),
                methods.get(status.id, ()),
                arenas.get(status.id),
            )
            for name, versions in sorted(statuses.items())
            if model in (None, name)
            for status in reversed(versions)
        ]

    def _swaps(self, question: PageQuestion, now_seconds: float) -> dict[str, Any]:
        swaps = [swap for swap in self._sources.swaps() if question.model in (None, swap["model"])]
        tag = swaps_tag(question.model, swaps)
        if tag == question.swaps_tag:
            return {"swaps_tag": tag}
        since_seconds = now_seconds - MARKED_SECONDS
        return {
            "swaps_tag": tag,
            "swaps": swaps[:LISTED_SWAP_COUNT_MAX],
            "marks": [mark_json(swap) for swap in swaps if swap["began_at"] > since_seconds],
        }


def codes_json(methods: Sequence[MethodStatistics], model: str | None) -> dict[str, int]:
    """Requests since the server started by the name of their code; `model` None: of all models."""
    counts: dict[int, int] = {}
    for statistics in methods:
        if model in (None, statistics.model):
            for code, count in statistics.count_by_code.items():
                counts[code] = counts.get(code, 0) + count
    return {_code_name(code): count for code, count in sorted(counts.items())}


def version_json(
    status: ServableStatus,
    route: Mapping[str, Any],
    methods: Sequence[MethodStatistics],
    arena: ArenaBytes | None,
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
    version: int, versions: Sequence[ServableStatus], routing: Routing
) -> dict[str, Any]:
    """Which requests that name no version reach this one of a model's `versions`."""
    available = [status.id.version for status in versions if status.state is AVAILABLE]
    default = routing.default_version
    if default not in available:
        default = max(available, default=None)
    is_canary = version == routing.canary_version and version in available
    return {
        "is_default": version == default,
        "canary_ratio": routing.canary_weight if is_canary else None,
        "labels": sorted(label for label, held in routing.labels.items() if held == version),
    }


def mark_json(swap: SwapJson) -> dict[str, Any]:
    """What the charts need of a swap."""
    names = ("model", "version", "result", "began_at", "published_at", "ended_at")
    return {name: swap[name] for name in names}


def swaps_tag(model: str | None, swaps: Sequence[SwapJson]) -> str:
    """Changes when anything does that the page shows of them; cheaper than making their JSON."""
    marked = [(swap["id"], swap["result"], swap["ended_at"]) for swap in swaps]
    listed = [
        (len(swap["stages"]), swap["stages"][-1:], swap["latency"])
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

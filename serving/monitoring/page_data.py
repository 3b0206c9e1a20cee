"""Answers each poll of the live page with the data that it asks for and does not have yet.

Nothing is computed or kept between two polls, so the page costs nothing while it is closed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.core.servable import AVAILABLE, Routing, ServableId, ServableStatus
from serving.data_plane.request_statistics import PHASES, VERSION_METHODS, MethodStatistics
from serving.data_plane.servables import (
    AcceleratedSignature,
    AcceleratorRuns,
    ArenaStatistics,
    SignatureBatching,
)
from serving.manager.state_monitor import Statuses
from serving.monitoring.monitored_parts import AcceleratedVersion, MonitoredParts
from serving.monitoring.page_points import latency_json, points_json
from serving.monitoring.request_metrics import WINDOW_SECONDS
from serving.monitoring.side_text import sides_text, untuned_text
from serving.monitoring.swap_record import SwapRecord, SwapResult, record_document
from serving.reload.served_models import ServedModels
from serving.request_log.request_logs import RequestLogFigures, log_document

LISTED_SWAP_COUNT_MAX = 20
"""The number of swaps that are sent with their stages. The charts mark all remembered swaps."""

MARKED_NS = 960 * NS_PER_SECOND
"""The age up to which swaps are sent for the charts, which show 15 minutes."""


WAITING_MODEL_COUNT_MAX = 100
"""The number of reasons in an answer, even if thousands of models have a wrong base path."""

NS_PER_MICROSECOND = 1_000

Reasons = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class PageQuestion:
    """A poll: the model that the page shows (None: all), and the data that it already has.

    `cursor` and `swaps_tag` come from the last answer; they are "" at first.
    """

    model: str | None = None
    cursor: str = ""
    swaps_tag: str = ""


class PageData:
    """Answers the page's polls on any thread. A poll takes 0.5 ms, the first poll of a page 5 ms."""

    def __init__(
        self,
        parts: MonitoredParts,
        *,
        started_wall_ns: int | None = None,
    ) -> None:
        """`started_wall_ns` None means that the server starts now."""
        self._parts = parts
        self._clock = parts.clock
        now_wall_ns = parts.clock.wall_ns()
        self._started_wall_ns = now_wall_ns if started_wall_ns is None else started_wall_ns

    def answer(self, question: PageQuestion) -> dict[str, Any]:
        """Returns an answer that JSON can hold. Times are Unix seconds by the server's clock.

        With `is_continued` the `points` follow the cursor; otherwise they replace all points of the
        page. `swaps` is left out if the page's tag shows that it has them.
        """
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ns()
        since_ns = self._since_ns(question.cursor, now_ns)
        history = self._parts.requests.history(question.model, since_ns)
        points, cursor_ns = points_json(history, since_ns, wall_ns - now_ns)
        statuses, reasons = self._parts.monitor.statuses(), self._parts.reasons()
        answer = {
            "server": {
                "version": self._parts.build_info["millpond"],
                "started_at": _unix_seconds(self._started_wall_ns),
            },
            "now": _unix_seconds(wall_ns),
            "models": sorted({*statuses, *reasons}),
            "cursor": f"{self._started_wall_ns:x}.{cursor_ns}",
            "is_continued": since_ns > 0,
            "points": points,
            "codes": codes_json(self._parts.requests.model_methods(), question.model),
            "versions": self._versions(statuses, question.model),
            "request_logs": logs_json(self._parts.request_logs.figures(), question.model),
            "stuck": sorted(self._parts.pollers.stuck_keys)[:WAITING_MODEL_COUNT_MAX],
            **waiting_json(reasons, self._parts.served, question.model),
        }
        return answer | self._swaps(question, now_ns)

    def _since_ns(self, cursor: str, now_ns: int) -> int:
        """Returns the instant of the cursor; 0 for another process's cursor, whose clock may differ."""
        started, _, digits = cursor.partition(".")
        if started != f"{self._started_wall_ns:x}" or not (digits.isascii() and digits.isdigit()):
            return 0
        # Our cursors are shorter, and int() is slow for a very long number.
        since_ns = int(digits) if len(digits) < 20 else 0
        return since_ns if since_ns <= now_ns else 0

    def _versions(self, statuses: Statuses, model: str | None) -> list[dict[str, Any]]:
        methods = _methods_by_version(self._parts.requests.methods())
        return [
            version_json(
                status,
                route_json(status, routing, default_version, self._canary_progress(name, routing)),
                methods.get(status.id, ()),
                self._parts.arena(status.id) if status.state is AVAILABLE else None,
                self._parts.batches.of(status.id) if status.state is AVAILABLE else (),
                self._parts.accelerated(status.id) if status.state is AVAILABLE else None,
            )
            for name, routing, default_version in self._routes(statuses, model)
            for status in reversed(statuses[name])
        ]

    def _routes(
        self, statuses: Statuses, model: str | None
    ) -> list[tuple[str, Routing, int | None]]:
        return [
            (name, self._parts.streams.routing(name), self._parts.streams.answering(name))
            for name in sorted(statuses)
            if model in (None, name)
        ]

    def _canary_progress(self, name: str, routing: Routing) -> str:
        if routing.canary_version is None:
            return ""
        status = self._parts.streams.status(name)
        return "" if status is None else status.canary_progress

    def _swaps(self, question: PageQuestion, now_ns: int) -> dict[str, Any]:
        swaps = [
            swap for swap in self._parts.swaps.records() if question.model in (None, swap.model)
        ]
        tag = swaps_tag(question.model, swaps)
        if tag == question.swaps_tag:
            return {"swaps_tag": tag}
        return {
            "swaps_tag": tag,
            "swaps": [record_document(swap) for swap in swaps[:LISTED_SWAP_COUNT_MAX]],
            "marks": marks_json(swaps, now_ns - MARKED_NS),
        }


def waiting_json(reasons: Reasons, served: ServedModels, model: str | None) -> dict[str, Any]:
    """Returns the configured models without an AVAILABLE version, with the reason, and their count."""
    waiting = [
        (name, reason)
        for name, reason in sorted(reasons.items())
        if reason is not None and model in (None, name)
    ]
    return {
        "waiting_count": len(waiting),
        "waiting": [
            {"model": name, "reason": reason, "base_path": served.base_path(name)}
            for name, reason in waiting[:WAITING_MODEL_COUNT_MAX]
        ],
    }


def logs_json(logs: Mapping[str, RequestLogFigures], model: str | None) -> list[dict[str, Any]]:
    """Returns the request logs that are or were on, in the order of their models."""
    return [
        {"model": name, **log_document(figures)}
        for name, figures in sorted(logs.items())
        if model in (None, name)
    ]


def codes_json(methods: Sequence[MethodStatistics], model: str | None) -> dict[str, int]:
    """Returns the number of requests since the server started, by the name of their code.

    `model` None counts the requests to all models, to models that are not configured too. As in the
    charts, requests for other methods that name no model (states, reloads) do not count.
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
    batching: Sequence[SignatureBatching] = (),
    accelerated: AcceleratedVersion | None = None,
) -> dict[str, Any]:
    """Returns one version: its state and the reason, its routes, and figures of requests and memory."""
    busiest = _busiest(methods)
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
        "latency": _latency(busiest),
        "phases": _phases(busiest),
        "batching": [batching_json(state) for state in batching],
        "accelerator": [] if accelerated is None else accelerator_json(accelerated),
        "arena_allocated_bytes": arena.allocated_bytes if arena else None,
        "arena_resident_bytes": arena.slab_resident_bytes if arena else None,
    }


def route_json(
    status: ServableStatus,
    routing: Routing,
    default_version: int | None,
    canary_progress: str = "",
) -> dict[str, Any]:
    """Says which requests reach a version without its number: by default, as canary, by label."""
    version = status.id.version
    is_canary = version == routing.canary_version and status.state is AVAILABLE
    return {
        "is_default": version == default_version,
        "canary_ratio": routing.canary_weight if is_canary else None,
        "canary_progress": canary_progress if is_canary else "",
        "labels": sorted(label for label, held in routing.labels.items() if held == version),
    }


def marks_json(swaps: Sequence[SwapRecord], since_ns: int) -> list[dict[str, Any]]:
    """Returns the swaps since `since_ns` for the charts, without plain unloads."""
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
    """Returns a tag that changes when the page would show the swaps differently. Cheaper than their JSON."""
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
        if not statistics.is_ended:
            servable_id = ServableId(statistics.model, statistics.version)
            by_version.setdefault(servable_id, []).append(statistics)
    return by_version


def batching_json(state: SignatureBatching) -> dict[str, Any]:
    """The batching of a signature, with counts since the load, because the page shows their increase."""
    figures = state.figures
    return {
        "signature": state.signature,
        "is_on": state.is_on,
        "refusal": state.refusal,
        "rows": state.rows,
        "rows_reason": state.rows_reason,
        "rows_limit": state.joined_rows_max,
        "run_count": figures.run_count,
        "request_count": figures.request_count,
        "row_count": figures.row_count,
        "wait_us": figures.wait_ns // NS_PER_MICROSECOND,
    }


_NO_RUNS = {
    "device": "",
    "parameter_bytes": 0,
    "run_count": 0,
    "row_count": 0,
    "padding_row_count": 0,
    "run_us": None,
    "cpu_run_count": 0,
    "sides": "",
}


def _cpu_part(signature: AcceleratedSignature) -> str:
    """The part of a signature that runs on the CPU, in words; "" if all of it runs on the accelerator."""
    if signature.reason:
        return f"on the CPU: {signature.reason}"
    parts = [*signature.host_ops, *signature.host_tables]
    return f"on the CPU in part: {', '.join(parts)}" if parts else ""


def accelerator_json(accelerated: AcceleratedVersion) -> list[dict[str, Any]]:
    """The signatures of a version, with counts of the runs on the accelerator since the load."""
    cpu_parts = {signature.name: _cpu_part(signature) for signature in accelerated.signatures}
    tuning = accelerated.tuning
    progress = () if tuning is None else (tuning.state.value, tuning.reason)
    sides = {
        signature.name: "; ".join(
            filter(
                None,
                (
                    sides_text([asdict(size) for size in signature.sizes]),
                    untuned_text(signature.untuned_rows, *progress),
                ),
            )
        )
        for signature in accelerated.signatures
    }
    shown = {runs.signature for runs in accelerated.runs}
    sizes = {upload.device: upload.resident_bytes for upload in accelerated.uploads}
    idle = [
        {**_NO_RUNS, "signature": name, "cpu_part": part}
        for name, part in cpu_parts.items()
        if name not in shown
    ]
    return idle + [
        {
            "signature": runs.signature,
            "device": runs.device if len(sizes) > 1 else "",
            "cpu_part": cpu_parts.get(runs.signature, ""),
            "parameter_bytes": sizes[runs.device],
            "run_count": sum(runs.run_counts),
            "row_count": sum(runs.row_counts),
            "padding_row_count": runs.padding_row_count,
            "run_us": _run_us(runs),
            "cpu_run_count": sum(runs.cpu_run_counts),
            "sides": sides.get(runs.signature, ""),
        }
        for runs in accelerated.runs
    ]


def _run_us(runs: AcceleratorRuns) -> float | None:
    """The mean time of a run there, with its transfers and its wait; None without a timed run."""
    if runs.timed_run_count == 0:
        return None
    return sum(runs.stage_ns) / runs.timed_run_count / NS_PER_MICROSECOND


def _busiest(methods: Sequence[MethodStatistics]) -> MethodStatistics | None:
    """Returns the method with the most requests in the last 10 s; None if there were no requests.

    The quantiles of two methods cannot be combined.
    """
    counts = [(item.phase("total", WINDOW_SECONDS).count, item.method, item) for item in methods]
    count, _, busiest = max(counts, key=lambda row: row[:2], default=(0, "", None))
    return busiest if count > 0 else None


def _latency(method: MethodStatistics | None) -> dict[str, Any] | None:
    if method is None:
        return None
    latency = latency_json(method.phase("total", WINDOW_SECONDS))
    return None if latency is None else {"method": method.method, **latency}


def _phases(method: MethodStatistics | None) -> dict[str, float]:
    """Returns the mean µs of each phase that requests reached in the last 10 s."""
    if method is None:
        return {}
    figures = {phase: method.phase(phase, WINDOW_SECONDS) for phase in PHASES if phase != "total"}
    return {
        phase: round(figure.sum_ns / figure.count / NS_PER_MICROSECOND, 1)
        for phase, figure in figures.items()
        if figure.count > 0
    }


def _code_name(code: int) -> str:
    return StatusCode(code).name if code in StatusCode.__members__.values() else f"CODE_{code}"


def _unix_seconds(wall_ns: int) -> float:
    return round(wall_ns / NS_PER_SECOND, 2)

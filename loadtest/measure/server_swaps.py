"""The swaps by the server's `/v1/swaps`, beside the clients' figures of the same requests.

The server's latency begins when a request thread has the request and ends with the reply's bytes.
The clients' latency also has the wire, their own time and the wait in the socket. Pure, but for
`wait_for_swaps`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.measure.latency import NS_PER_MS, Latencies
from loadtest.measure.server_pages import ServerPages
from loadtest.measure.timeline import LogClock, Span
from loadtest.plan.plan import Outcome
from serving.base.clock import NS_PER_SECOND, Clock, pause

# A swap's figures include the second after the unloaded version's slab is back.
_DURING_TIMEOUT_SECONDS = 10
_POLL_SECONDS = 0.25
_QUANTILES_PER_MILLE = {"p50_ms": 500, "p99_ms": 990, "p999_ms": 999}


@dataclass(frozen=True, kw_only=True)
class ServerSwap:
    """One swap's requests by the server: the count that ended within `span`, and their
    latencies. `figures` are the record's own.
    """

    version: int
    span: Span
    request_count: int
    figures_ms: Mapping[str, float | None]
    figures: Mapping[str, float] = field(default_factory=dict)


def wait_for_swaps(
    pages: ServerPages, model: str, versions: Sequence[int], log_clock: LogClock, clock: Clock
) -> tuple[ServerSwap, ...]:
    """Waits for the swaps to `versions` and returns the swaps that are over after some seconds.

    Raises Unavailable.
    """
    deadline_ns = clock.now_ns() + _DURING_TIMEOUT_SECONDS * NS_PER_SECOND
    while True:
        records = [record for record in pages.swaps(model) if record["version"] in versions]
        over = [record for record in records if record["latency"]["during"] is not None]
        if len(over) >= len(versions) or clock.now_ns() >= deadline_ns:
            return tuple(server_swap(record, log_clock) for record in over)
        pause(clock, _POLL_SECONDS)


def server_swap(record: Mapping[str, Any], log_clock: LogClock) -> ServerSwap:
    """Reads the swap of a record that has figures of the requests during the swap."""
    during = record["latency"]["during"]
    begin_ns = round(record["load_started_at"] * NS_PER_SECOND) - log_clock.offset_ns
    return ServerSwap(
        version=record["version"],
        span=Span(begin_ns, begin_ns + round(during["span_seconds"] * NS_PER_SECOND)),
        request_count=during["request_count"],
        figures_ms={
            key: _ms(during[f"{key.removesuffix('_ms')}_seconds"]) for key in _QUANTILES_PER_MILLE
        },
        figures=record["figures"],
    )


def _ms(seconds: float | None) -> float | None:
    """Converts to milliseconds; None if the server measured no request."""
    return None if seconds is None else round(seconds * 1_000, 3)


def swaps_by_both(outcome: Outcome, swaps: Sequence[ServerSwap]) -> list[dict[str, Any]]:
    """Each swap by the server and by its clients, for requests that ended in the same
    span.

    The requests that were in flight at one of its ends may be counted by one side alone.
    """
    latency_ns = outcome.completed_ns - outcome.scheduled_ns
    return [
        {
            "version": swap.version,
            "server": {"count": swap.request_count, **swap.figures_ms},
            "clients": _clients_figures(latency_ns[_ended_in(outcome, swap.span)]),
            "in_flight_at_ends": _in_flight_at(outcome, swap.span.begin_ns)
            + _in_flight_at(outcome, swap.span.end_ns),
        }
        for swap in swaps
    ]


def medians_by_both(swaps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The count of swaps, of their requests, and the median of each figure over the
    swaps.
    """
    both: dict[str, Any] = {"swap_count": len(swaps)}
    for side in ("server", "clients"):
        shown = [swap[side] for swap in swaps]
        both[side] = {"count": sum(item["count"] for item in shown)}
        for key in _QUANTILES_PER_MILLE:
            values = [item[key] for item in shown if item[key] is not None]
            both[side][key] = round(statistics.median(values), 3) if values else None
    return both


def _ended_in(outcome: Outcome, span: Span) -> npt.NDArray[np.bool_]:
    ended: npt.NDArray[np.bool_] = (outcome.completed_ns > span.begin_ns) & (
        outcome.completed_ns <= span.end_ns
    )
    return ended


def _in_flight_at(outcome: Outcome, instant_ns: int) -> int:
    is_due = outcome.scheduled_ns <= instant_ns
    return int((is_due & (outcome.completed_ns > instant_ns)).sum())


def _clients_figures(latencies_ns: Latencies) -> dict[str, Any]:
    """Quantiles by nearest rank, as the server's are.

    Few requests are enough, because both sides measure the same ones.
    """
    ordered = np.sort(np.asarray(latencies_ns))
    shown: dict[str, Any] = {"count": len(ordered)}
    for key, per_mille in _QUANTILES_PER_MILLE.items():
        rank = math.ceil(len(ordered) * per_mille / 1_000)
        shown[key] = round(float(ordered[rank - 1]) / NS_PER_MS, 3) if rank else None
    return shown

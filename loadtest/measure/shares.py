"""Latencies at shares of the saturation that was found for several servers.

A share's rate is the same for all servers, because latencies at two rates would compare the rates and not
the servers. It can also be a share of each server's own saturation.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadtest.drive.shell_server import ShellServer
from loadtest.measure.saturation import answered_rate
from loadtest.measure.turns import Results, Say, Turn, run_rounds, take_turn
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop, OpenLoop, ShareLoop
from serving.base.clock import NS_PER_SECOND, Clock

LOWEST, OWN = "lowest", "own"
SHARE_OF = (LOWEST, OWN)
"""The saturation that shares refer to: the lowest of all servers, or each server's own."""

# The first requests of each turn connect, and find the server's threads asleep.
_SETTLE_SECONDS = 0.3
# A p999 needs 5,000 requests in all rounds, and a Poisson stream that expects 5,400 rarely has fewer.
_P999_REQUEST_COUNT = 5_400
# The longest turn for the sake of a p999.
_P999_SECONDS_MAX = 8

Saturations = Mapping[int, Mapping[str, float]]
"""The requests per second by rows of a request and server's name."""


def saturations(results: Results) -> Saturations:
    """Finds the highest median rate of each server over all closed loops with that many rows."""
    found: dict[int, dict[str, float]] = {}
    for (loop, name), turns in results.items():
        if not isinstance(loop, ClosedLoop):
            continue
        rate = statistics.median(answered_rate(turn.outcome) for turn in turns)
        of_rows = found.setdefault(loop.rows, {})
        of_rows[name] = max(of_rows.get(name, 0), rate)
    return found


def share_rates(
    found: Saturations, shares: Sequence[float], share_of: str
) -> dict[tuple[ShareLoop, str], float]:
    """The requests per second of each share and server."""
    return {
        (ShareLoop(rows, share), name): share * (min(each.values()) if share_of == LOWEST else own)
        for rows, each in found.items()
        for share in shares
        for name, own in each.items()
    }


def turn_seconds(rate_per_second: float, round_count: int, seconds: float) -> float:
    """The length of a measured turn: `seconds`.

    If all rounds together would then have too few requests for a p999, it is longer, up to 8 s.
    """
    for_p999 = min(_P999_REQUEST_COUNT / round_count / rate_per_second, _P999_SECONDS_MAX)
    return max(seconds, for_p999)


def measure_shares(
    servers: Mapping[str, ShellServer],
    rates: Mapping[tuple[ShareLoop, str], float],
    loads: Mapping[int, CtrLoad],
    round_count: int,
    seconds: float,
    clock: Clock,
    say: Say,
) -> Results:
    """Puts each share's rate on each server, once a round. Raises Unavailable."""
    loops = list(dict.fromkeys(loop for loop, _ in rates))

    def take(loop: ShareLoop, name: str, round_number: int) -> Turn:
        if (loop, name) == (loops[0], next(iter(servers))):
            say(f"round {round_number + 1} of {round_count}, shares of the saturation")
        rate = rates[loop, name]
        took_seconds = _SETTLE_SECONDS + turn_seconds(rate, round_count, seconds)
        turn = take_turn(
            servers[name],
            OpenLoop(loop.rows, rate),
            loads[loop.rows],
            max(round(rate * took_seconds), 1),
            round_number,
            clock,
        )
        return replace(turn, settle_ns=round(_SETTLE_SECONDS * NS_PER_SECOND))

    return run_rounds(round_count, loops, list(servers), take)

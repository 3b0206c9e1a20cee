"""Servers that run at the same time and get load in short turns.

A long run of one server after the other would compare the machine's minutes and not the servers: its
speed changes by more than most differences. The turns of one round are seconds apart, so figures are
compared within a round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from loadtest.drive.generator import Generator
from loadtest.drive.shell_server import ShellServer
from loadtest.measure.outcome_figures import error_messages, latencies_ns
from loadtest.measure.processor_time import CoreShares, core_shares, with_processor_time
from loadtest.measure.saturation import answered_rate
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop, Loop, OpenLoop, PlannedLoop
from loadtest.plan.plan import Outcome
from serving.base.clock import Clock, pause
from serving.base.errors import StatusCode

_PROBE_SECONDS = 0.3
# More than any server answers in a probe.
_PROBE_REQUEST_COUNT = 100_000
_WARM_UP_CHANNELS, _WARM_UP_IN_FLIGHT = 4, 16
# A p99 needs 500 requests, and a Poisson stream that expects 600 rarely has fewer.
_P99_REQUEST_COUNT = 600
# The longest turn of a slow server in a closed loop for the sake of its p99.
_P99_SECONDS_MAX = 5


@dataclass(frozen=True)
class Turn:
    """One turn of one server: its requests, its processor time and the use of the cores."""

    outcome: Outcome
    wrong_count: int
    server_ns: int
    cores: CoreShares
    # Requests that are due before this time after the turn's start are not in its latencies.
    settle_ns: int = 0

    def latencies_ns(self, loop: Loop) -> npt.NDArray[np.int64]:
        """The latencies of answers.

        In an open loop they begin at the due times; in a closed loop at the issue, because its requests
        have no due time.
        """
        return self._latencies_ns(loop, StatusCode.OK)

    def refused_ns(self, loop: Loop) -> npt.NDArray[np.int64]:
        """The times until requests were refused because the server had too many."""
        return self._latencies_ns(loop, StatusCode.RESOURCE_EXHAUSTED)

    def _latencies_ns(self, loop: Loop, code: StatusCode) -> npt.NDArray[np.int64]:
        outcome = self.outcome
        is_closed = isinstance(loop, ClosedLoop)
        all_ns = outcome.completed_ns - outcome.issued_ns if is_closed else latencies_ns(outcome)
        is_settled = outcome.scheduled_ns >= outcome.started_ns + self.settle_ns
        of_code_ns: npt.NDArray[np.int64] = all_ns[(outcome.codes == code) & is_settled]
        return of_code_ns


Results = Mapping[tuple[Loop, str], Sequence[Turn]]
"""The turns by loop and server's name, one a round."""

Say = Callable[[str], None]

_LoopT = TypeVar("_LoopT", bound=Loop)


def prepare(
    servers: Mapping[str, ShellServer], loads: Mapping[int, CtrLoad], clock: Clock, say: Say
) -> None:
    """Waits until all servers answer, and warms them up with the load of each number of rows.

    Raises Unavailable.
    """
    for name, server in servers.items():
        server.wait_until_ready(next(iter(loads.values())).payloads[0])
        say(f"{name} is ready")
    for server in servers.values():
        for rows, load in loads.items():
            warm_up(server, load, rows, clock)


def measure_loops(
    servers: Mapping[str, ShellServer],
    loops: Sequence[PlannedLoop],
    loads: Mapping[int, CtrLoad],
    round_count: int,
    seconds: float,
    clock: Clock,
    say: Say,
) -> Results:
    """Puts each load on each prepared server, once a round, for about `seconds`.

    Raises Unavailable.
    """
    request_counts = {
        (loop, name): turn_request_count(server, loop, loads[loop.rows], seconds, clock)
        for name, server in servers.items()
        for loop in loops
    }

    def take(loop: PlannedLoop, name: str, round_number: int) -> Turn:
        if (loop, name) == (loops[0], next(iter(servers))):
            say(f"round {round_number + 1} of {round_count}")
        count = request_counts[loop, name]
        # In a round all servers get the requests of the same seed. The next round has another seed.
        return take_turn(servers[name], loop, loads[loop.rows], count, round_number, clock)

    return run_rounds(round_count, loops, list(servers), take)


def run_rounds(
    round_count: int,
    loops: Sequence[_LoopT],
    names: Sequence[str],
    take_turn: Callable[[_LoopT, str, int], Turn],
) -> Results:
    """Calls `take_turn` with loop, server's name and round's number, and returns the turns.

    Every second round has the reverse order of servers, so that no server always follows the same one.
    """
    results: dict[tuple[Loop, str], list[Turn]] = {
        (loop, name): [] for loop in loops for name in names
    }
    for number in range(round_count):
        for loop in loops:
            for name in names if number % 2 == 0 else reversed(names):
                results[loop, name].append(take_turn(loop, name, number))
    return results


def take_turn(
    server: ShellServer,
    loop: PlannedLoop,
    load: CtrLoad,
    request_count: int,
    seed: int,
    clock: Clock,
) -> Turn:
    """Puts the loop's load on the server. Raises Unavailable if one of its processes ends
    meanwhile.
    """
    process_ids = server.process_ids()
    try:
        plan = loop.plan(load, request_count, seed)
        with Generator(plan, server.target, server.channel) as generator:
            outcome, before, after = with_processor_time(process_ids, clock, generator.finish)
    except (FileNotFoundError, ProcessLookupError):
        raise server.failure(f"one of its processes ended in its turn of {loop}") from None
    return Turn(
        outcome,
        load.wrong_count(outcome),
        after.process_ns - before.process_ns,
        core_shares(before, after, outcome.cpu_ns),
    )


def warm_up(server: ShellServer, load: CtrLoad, rows: int, clock: Clock) -> None:
    """Puts load on the server that is not measured. Raises Unavailable if it answers nothing."""
    _probed_rate(server, ClosedLoop(rows, _WARM_UP_CHANNELS, _WARM_UP_IN_FLIGHT), load, clock)


def turn_request_count(
    server: ShellServer,
    loop: PlannedLoop,
    load: CtrLoad,
    seconds: float,
    clock: Clock,
) -> int:
    """The number of requests that take `seconds`. For a closed loop a probe measures it.

    A turn has enough requests for a p99 even if they take longer, in a closed loop up to 5 s. Raises
    Unavailable if the server answers nothing.
    """
    if isinstance(loop, OpenLoop):
        return max(round(loop.rate_per_second * seconds), _P99_REQUEST_COUNT)
    rate_per_second = _probed_rate(server, loop, load, clock)
    return closed_loop_request_count(rate_per_second, seconds)


def closed_loop_request_count(rate_per_second: float, seconds: float) -> int:
    """The number of requests of a turn at that rate."""
    for_p99 = min(_P99_REQUEST_COUNT, rate_per_second * _P99_SECONDS_MAX)
    return round(max(rate_per_second * seconds, for_p99, 1))


def _probed_rate(server: ShellServer, loop: ClosedLoop, load: CtrLoad, clock: Clock) -> float:
    plan = loop.plan(load, _PROBE_REQUEST_COUNT, seed=0)
    with Generator(plan, server.target, server.channel) as generator:
        pause(clock, _PROBE_SECONDS)
        outcome = generator.stop()
    rate_per_second = answered_rate(outcome)
    if not rate_per_second:
        reasons = "; ".join(error_messages([outcome]))
        raise server.failure(f"it answered no request of {loop}: {reasons}")
    return rate_per_second

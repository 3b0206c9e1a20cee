"""Rates of requests from several generators at once, for servers that answer more than one generator can send."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from loadtest.drive.generator import Generator
from loadtest.measure.outcome_figures import error_messages
from loadtest.measure.saturation import answered_rate
from loadtest.plan.loops import ClosedLoop
from loadtest.plan.plan import Outcome, Plan, PlanSource
from serving.base.clock import Clock, pause
from serving.base.errors import Unavailable

# More than any server answers to one generator in a turn.
_REQUESTS_PER_SECOND_MAX = 150_000
# At saturation a large model takes seconds for a request, and the rate says so.
_DEADLINE_NS = 60_000_000_000
# The first requests connect, and find the server's threads asleep.
_WARM_UP_SECONDS = 0.5


@dataclass(frozen=True)
class ClosedRate:
    """The answered requests per second of all generators, and their outcomes.

    `core_share_max` is the share of a core that the busiest generator took: near 1, the clients are the limit.
    """

    requests_per_second: float
    core_share_max: float
    outcomes: Sequence[Outcome]


def closed_rate(
    target: str, load: PlanSource, loop: ClosedLoop, generators: int, seconds: float, clock: Clock
) -> ClosedRate:
    """Puts the loop on the server from each of `generators`, after a short warm-up.

    Raises Unavailable if a request fails.
    """
    outcomes_of(target, [_plan(load, loop, 0, _WARM_UP_SECONDS)], _WARM_UP_SECONDS, clock)
    plans = [_plan(load, loop, seed, seconds) for seed in range(1, generators + 1)]
    outcomes = outcomes_of(target, plans, seconds, clock)
    if any(outcome.codes.any() for outcome in outcomes):
        raise Unavailable(f"requests failed: {'; '.join(error_messages(outcomes))}")
    return ClosedRate(
        sum(answered_rate(outcome) for outcome in outcomes),
        max(outcome.cpu_ns for outcome in outcomes) / (seconds * 1e9),
        outcomes,
    )


def outcomes_of(
    target: str, plans: Sequence[Plan], seconds: float, clock: Clock
) -> Sequence[Outcome]:
    """Sends all plans at once for `seconds`. Raises Unavailable if a generator fails."""
    with ExitStack() as stack:
        generators = [stack.enter_context(Generator(plan, target)) for plan in plans]
        pause(clock, seconds)
        return [generator.stop() for generator in generators]


def _plan(load: PlanSource, loop: ClosedLoop, seed: int, seconds: float) -> Plan:
    plan = loop.plan(load, round(_REQUESTS_PER_SECOND_MAX * (seconds + 1)), seed)
    return replace(plan, deadline_ns=_DEADLINE_NS)

"""Saturation: the highest rate of requests that a server answers beside the generator, in closed
loop.

It is measured with the generator and the requests of the load itself. A program that repeats one request
finds its rows in the caches, and a program that takes less of the cores leaves more to the server: Beside
the generator, two cores could not even do 80 % of h2load's figure.
"""

from dataclasses import replace

import numpy as np

from loadtest.drive.demo_model import DemoModel
from loadtest.drive.generator import Generator
from loadtest.measure.outcome_figures import error_messages
from loadtest.measure.scenario import Say, serving
from loadtest.measure.setup import Setup
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome
from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Unavailable

IN_FLIGHT_MAX = 16
# A first, short run gives the count of requests for a run of some seconds.
_PROBE_REQUEST_COUNT = 2_000
_RUN_SECONDS = 3


def saturation_rate(target: str, load: CtrLoad) -> float:
    """Measures requests per second with IN_FLIGHT_MAX in flight.

    Raises FailedPrecondition, Unavailable.
    """
    probe_rate = closed_loop_rate(target, load, _PROBE_REQUEST_COUNT)
    request_count = max(_PROBE_REQUEST_COUNT, round(probe_rate * _RUN_SECONDS))
    return closed_loop_rate(target, load, request_count)


def closed_loop_rate(target: str, load: CtrLoad, request_count: int) -> float:
    """Sends `request_count` requests, IN_FLIGHT_MAX in flight; see `saturation_rate`."""
    plan = replace(
        load.plan(np.zeros(request_count, np.int64), seed=1), in_flight_max=IN_FLIGHT_MAX
    )
    with Generator(plan, target) as generator:
        return rate_of(generator.finish())


def rate_of(outcome: Outcome) -> float:
    """The answered requests per second, from the first issue to the last answer.

    Raises Unavailable if a request failed.
    """
    failed_count = int((outcome.codes != 0).sum())
    if failed_count:
        raise Unavailable(
            f"{failed_count} of {len(outcome.codes)} requests failed at saturation: "
            f"{'; '.join(error_messages([outcome]))}"
        )
    return answered_rate(outcome)


def answered_rate(outcome: Outcome) -> float:
    """The requests per second that were answered with OK, from the first issue to the last
    answer.
    """
    answered_count = int((outcome.codes == 0).sum())
    if not answered_count:
        return 0.0
    took_ns = int(outcome.completed_ns.max() - outcome.issued_ns.min())
    return answered_count * NS_PER_SECOND / took_ns


def at_share_of_saturation(
    setup: Setup, share: float | None, exports: DemoModel, clock: Clock, say: Say
) -> Setup:
    """Sets the rate of `setup` to `share` of its server's highest rate.

    Changes nothing if `share` is None.
    """
    if share is None:
        return setup
    with serving(setup, exports, clock) as running:
        rate_per_second = saturation_rate(running.server.target, setup.load())
    say(
        f"{setup.preset}: saturated at {rate_per_second:,.0f} requests/s; load is {share:.0%} of that"
    )
    return replace(setup, rate_per_second=round(rate_per_second * share, 1))

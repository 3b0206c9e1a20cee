"""How many requests per second a server can answer at most beside the generator, in closed loop.

By the generator and the requests that the load itself comes from. A program that sends one request
over and over finds its rows in the caches, and one that takes less of the cores leaves the server
more: of h2load's figure 80 % were more than this machine's two cores could do.
"""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from loadtest.ctr_load import CtrLoad
from loadtest.demo import DemoModel
from loadtest.generator import ChannelOptions, Generator
from loadtest.plan import Outcome
from loadtest.report import error_messages
from loadtest.scenario import Say, Setup, serving
from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Unavailable

IN_FLIGHT_MAX = 16
# A first, short run says how many requests a run of some seconds takes.
_PROBE_REQUEST_COUNT = 2_000
_RUN_SECONDS = 3


def saturation_rate(target: str, load: CtrLoad) -> float:
    """Requests per second with IN_FLIGHT_MAX under way. Raises FailedPrecondition, Unavailable."""
    probe_rate = closed_loop_rate(target, load, _PROBE_REQUEST_COUNT)
    request_count = max(_PROBE_REQUEST_COUNT, round(probe_rate * _RUN_SECONDS))
    return closed_loop_rate(target, load, request_count)


def closed_loop_rate(
    target: str, load: CtrLoad, request_count: int, channel: ChannelOptions | None = None
) -> float:
    """Sends `request_count` requests, IN_FLIGHT_MAX under way; see `saturation_rate`."""
    plan = replace(
        load.plan(np.zeros(request_count, np.int64), seed=1), in_flight_max=IN_FLIGHT_MAX
    )
    with Generator(plan, target, channel) as generator:
        return rate_of(generator.finish())


def rate_of(outcome: Outcome) -> float:
    """Answered requests per second, from the first issued to the last answered. Raises Unavailable."""
    failed_count = int((outcome.codes != 0).sum())
    if failed_count:
        raise Unavailable(
            f"{failed_count} of {len(outcome.codes)} requests failed at saturation: "
            f"{'; '.join(error_messages([outcome]))}"
        )
    took_ns = int(outcome.completed_ns.max() - outcome.issued_ns.min())
    return len(outcome.codes) * NS_PER_SECOND / took_ns


def at_share_of_saturation(
    setup: Setup, share: float | None, exports: DemoModel, clock: Clock, say: Say
) -> Setup:
    """`setup` with `share` of what a server of its preset can do; as it is where that is None."""
    if share is None:
        return setup
    with ExitStack() as stack:
        running = stack.enter_context(serving(setup, exports, clock))
        rate_per_second = saturation_rate(running.server.target, setup.load())
        running.server.stop()
    say(f"{setup.preset}: saturated at {rate_per_second:,.0f} requests/s, {share:.0%} of it follow")
    return replace(setup, rate_per_second=round(rate_per_second * share, 1))

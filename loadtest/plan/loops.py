"""The loads of a turn, as values: closed loops of some channels, and open loops at a rate."""

from dataclasses import dataclass, replace

import numpy as np

from loadtest.plan.arrivals import poisson
from loadtest.plan.plan import Plan, PlanSource


@dataclass(frozen=True)
class ClosedLoop:
    """Clients that have `in_flight` requests under way, on `channels` channels.

    Each answer lets the next request go.
    """

    rows: int
    channels: int
    in_flight: int

    def __str__(self) -> str:
        return f"{self.rows}:{self.channels}x{self.in_flight}"

    def plan(self, load: PlanSource, request_count: int, seed: int) -> Plan:
        """Plans that many requests, drawn by `seed`."""
        plan = load.plan(np.zeros(request_count, np.int64), seed)
        return replace(plan, channel_count=self.channels, in_flight_max=self.in_flight)


@dataclass(frozen=True)
class OpenLoop:
    """Independent users, whose requests do not wait for earlier answers."""

    rows: int
    rate_per_second: float

    def __str__(self) -> str:
        return f"{self.rows}:{self.rate_per_second:g}/s"

    def plan(self, load: PlanSource, request_count: int, seed: int) -> Plan:
        """Plans about that many requests, drawn by `seed`."""
        seconds = request_count / self.rate_per_second
        return load.plan(poisson(self.rate_per_second, seconds, seed), seed)


@dataclass(frozen=True)
class ShareLoop:
    """An open loop at a share of a saturation, so that its rate is known only in the run."""

    rows: int
    share: float

    def __str__(self) -> str:
        return f"{self.rows}:{self.share:.0%}"


PlannedLoop = ClosedLoop | OpenLoop

Loop = PlannedLoop | ShareLoop

"""Turn: one decision on one stream while it is made. Values only, without a thread, a lock or a clock.

`decision.py` and its parts change the state of a turn step by step, and note what follows from it. Then
the control thread applies the `Decision` as a whole.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.base.clock import Now
from serving.core.servable import END, UNLOADING, Routing, ServableStatus
from serving.data_plane.servables import ServableStatistics
from serving.manager.blocked_state import BlockedState
from serving.manager.harness import LoaderHarness
from serving.manager.routing import decide_routing, end_reason, former_labels
from serving.manager.stream import StreamState


@dataclass(frozen=True)
class Found:
    """The versions on disk that the version policy would select. Only a stream with blocks, and a rollback,
    depend on them. `awaited_base_path` is "" unless they are of a former base path, because no version of this one
    is found yet.
    """

    on_disk: Collection[int] = ()
    awaited_base_path: str = ""


@dataclass(frozen=True)
class Figures:
    """The figures that a decision depends on.

    `statistics` are of the AVAILABLE versions, if one of them began as a canary. `drawn` is a random number
    (0 to 1).
    """

    statistics: Mapping[int, ServableStatistics] = field(default_factory=dict)
    drawn: float = 0.0


# --- Effects: what the control thread begins or stops ---------------------------------------------


@dataclass(frozen=True)
class StartLoad:
    """Start a load, or the next attempt of one."""

    version: int


@dataclass(frozen=True)
class StopLoad:
    """Tell a load under way to stop at its next stage."""

    version: int


@dataclass(frozen=True)
class StartUnload:
    """Start the unload of a version, which the serving map loses in the same decision."""

    version: int


Effect = StartLoad | StopLoad | StartUnload


# --- Notices: what the control thread reports -----------------------------------------------------


@dataclass(frozen=True)
class LogLine:
    """A line of the log. `level` is a method of a logger."""

    level: str
    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class BlocksChanged:
    """The source should leave out other versions, and other blocks hold in the next process too."""

    blocks: BlockedState


@dataclass(frozen=True)
class DefaultChanged:
    """Another version became the default one without a load: `how` is ROLLED_BACK or PROMOTED."""

    version: int
    previous: int | None
    how: str


@dataclass(frozen=True)
class Ended:
    """The last version of the stream is gone, and none is aspired."""


Notice = LogLine | BlocksChanged | DefaultChanged | Ended


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The next state of a stream, and what follows from it.

    `routing` changes at most once in a decision: the serving map gets it, if it differs from the routing
    before, in one snapshot with the version that a `StartUnload` retires. `statuses` are the new statuses of
    versions, in the order of their changes. If the decision `is_rest`, there are no statuses and no effects,
    the routing stays, and nothing follows before `due_ns` (monotonic) or an event.
    """

    state: StreamState
    is_rest: bool
    statuses: tuple[ServableStatus, ...] = ()
    effects: tuple[Effect, ...] = ()
    notices: tuple[Notice, ...] = ()
    due_ns: int | None = None

    @property
    def routing(self) -> Routing:
        return self.state.routing

    @property
    def statuses_before(self) -> tuple[ServableStatus, ...]:
        """The statuses that are recorded before requests see the decision: those of versions that it retires,
        so that no reader finds a version AVAILABLE that does not answer.
        """
        return tuple(status for status in self.statuses if status.state is UNLOADING)

    @property
    def statuses_after(self) -> tuple[ServableStatus, ...]:
        """The statuses that are recorded once requests see the decision, because a client that reads AVAILABLE
        may send a request at once.
        """
        return tuple(status for status in self.statuses if status.state is not UNLOADING)

    @property
    def notices_before(self) -> tuple[Notice, ...]:
        """The notices that are told before a version is seen to END: its block, upon which the source aspires the
        version that replaces it. So whoever waits for the model sees that one is on its way.
        """
        if all(status.state is not END for status in self.statuses):
            return ()
        return tuple(item for item in self.notices if isinstance(item, BlocksChanged))

    @property
    def notices_after(self) -> tuple[Notice, ...]:
        """The other notices, in the order in which they are told."""
        before = self.notices_before
        return tuple(item for item in self.notices if item not in before)

    @property
    def unloaded_version(self) -> int | None:
        """The version that is to be unloaded; None if there is none.

        Then its status is the only one of `statuses`, and its unload the only effect.
        """
        versions = (item.version for item in self.effects if isinstance(item, StartUnload))
        return next(versions, None)


class Turn:
    """The state so far, and the statuses, effects and notices that have followed from it."""

    def __init__(
        self,
        state: StreamState,
        now: Now,
        found: Found | None = None,
        figures: Figures | None = None,
    ) -> None:
        self.before = state
        self.state = state
        self.found = found or Found()
        self.figures = figures or Figures()
        self.now = now
        self.statuses: list[ServableStatus] = []
        self.effects: list[Effect] = []
        self.notices: list[Notice] = []

    @property
    def is_rest(self) -> bool:
        """True if nothing has to be applied so far."""
        has_followed = self.statuses or self.effects
        return not has_followed and self.state.routing == self.before.routing

    def decision(self, due_ns: int | None = None) -> Decision:
        """Makes the decision from the state and all that has followed."""
        return Decision(
            state=self.state,
            is_rest=self.is_rest,
            statuses=tuple(self.statuses),
            effects=tuple(self.effects),
            notices=tuple(self.notices),
            due_ns=due_ns,
        )

    def change(self, **changes: Any) -> None:
        """Changes fields of the state."""
        self.state = self.state.changed(**changes)

    def reroute(self, **changes: Any) -> None:
        """Changes inputs of the routing, and decides the routing anew."""
        state = self.state.changed(**changes) if changes else self.state
        requests = state.routing_requests
        after = decide_routing(state.routing, requests, state.ready_versions)
        if after != state.routing:
            former = former_labels(state.routing, after, state.former_labels)
            before, state = state.routing, state.changed(routing=after, former_labels=former)
            self._log_canary(before, state)
        self.state = state

    def move(self, harness: LoaderHarness) -> None:
        """Replaces the life of a version, whose status has changed."""
        self.state = self.state.with_harness(harness)
        self.statuses.append(harness.status)

    def amend(self, harness: LoaderHarness) -> None:
        """Replaces the life of a version that has moved in this turn: its status of this turn has other figures."""
        self.state = self.state.with_harness(harness)
        self.statuses = [
            harness.status if status.id == harness.id else status for status in self.statuses
        ]

    def log(self, level: str, event: str, **fields: Any) -> None:
        self.notices.append(LogLine(level, event, fields))

    def _log_canary(self, before: Routing, state: StreamState) -> None:
        """Logs a canary that begins or changes, or that ends without a request to end it.

        If a rule ends a canary, the rule has logged that.
        """
        after, canary = state.routing, state.canary
        ended = None if before.canary_version == after.canary_version else before.canary_version
        if ended is not None:
            reason = end_reason(state.routing_requests, state.ready_versions, ended)
            if reason is not None:
                self.log("info", "canary_ended", version=ended, reason=reason)
        if canary is None or after.canary_version is None:
            return
        is_same = after.canary_version == before.canary_version
        names = ("canary_version", "canary_weight", "canary_header")
        if any(getattr(before, name) != getattr(after, name) for name in names):
            self.log(
                "info",
                "canary_changed" if is_same else "canary_started",
                version=after.canary_version,
                beside=after.default_version,
                weight=after.canary_weight,
                header=after.canary_header,
                rule=canary.rule,
            )

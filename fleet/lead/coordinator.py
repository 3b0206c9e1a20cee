"""The coordinator of a fleet: keeps the last report of each server, decides, and acts on each decision.

It is given a store for its state and a way to send grants: a file and sockets, Ray or Kubernetes.

The order of grants. A server ignores a grant whose order is below the order of the last grant that it took. So
the order of the state must not be below the orders of the servers. It is below them if the state was lost, or
restored from a backup. So a coordinator learns the order of each server from the server's *first* report, and
raises the order of its next state above these orders.

A higher order in a later report was sent by another coordinator, which has replaced this one. This coordinator
does not raise its order above that order, because the grants of a replaced coordinator must stay stale. A
coordinator may also be replaced before the first reports of its servers. Then its order rises, but the store
refuses to write the state, and without that write no grant is sent.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Protocol

import structlog

from fleet.lead.observer import FleetObserver
from fleet.rollout.changes import Change, changes
from fleet.rollout.decision import Decision, decide
from fleet.rollout.reports import Grant, ServerReport, Sighting
from fleet.rollout.state import FleetState, fleet_state_from_json
from fleet.rollout.view import is_silent
from fleet.rollout.watch import ModelWatch
from fleet.rollout.wave_settings import WaveSettings
from serving.base.clock import NS_PER_SECOND, Clock, Now, seconds_since
from serving.base.errors import Unavailable

ORDER_FOLLOWED_MAX = 2**62
"""The highest order of a server above which the state's order is raised.

It leaves half of the 64-bit numbers free. Otherwise one server that lies about its order could use all
numbers up, and the other servers would never get a grant again.
"""

MODEL_COUNT_MAX = 5_000
"""The most models of a fleet. With more names, which a server could make up, the state would not fit a ConfigMap."""

_log = structlog.get_logger(__name__)


class StateStore(Protocol):
    """Keeps the state of a fleet beyond the life of a coordinator. One coordinator at a time uses it."""

    def read(self) -> str | None:
        """Reads the text that was written last; None if there is none. Raises OSError."""
        ...

    def write(self, text: str) -> None:
        """Replaces the text as a whole. It is durable when this returns. Raises OSError."""
        ...


@dataclass(frozen=True)
class Decided:
    """The last decision that is durable: the state, and the observations that judge the waves."""

    state: FleetState
    watches: Mapping[str, ModelWatch] = field(default_factory=dict)


class Coordinator:
    """Decides for a fleet. Thread-safe; `step` is called again and again by one thread.

    Decisions and operations come one after the other, each with its write of the state. Readers do not wait
    for a decision under way, because they see the last decision that is durable. Reports do not wait either.

    `send` delivers grants. It may lose a grant, because the next step sends the grant again. If the state
    cannot be written, `step` raises OSError, sends nothing and keeps the last decision.
    """

    def __init__(
        self,
        store: StateStore,
        send: Callable[[Sequence[Grant]], None],
        settings: WaveSettings,
        clock: Clock,
        observer: FleetObserver | None = None,
        on_change: Callable[[Sequence[Change]], None] | None = None,
        order_min: int = 0,
    ) -> None:
        """Takes over the state. Raises OSError, and DataLoss if the state is not readable.

        `on_change` gets the changes of the state once they are durable, and must return at once.
        `order_min` is the lowest order of this coordinator's grants.
        """
        self._observer = observer or FleetObserver()
        self._store = store
        self._send = send
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        # Held while a decision or an operation is made and the state is written. This may take seconds.
        self._deciding = threading.Lock()
        self._is_closed = False
        # The servers that were lost at the last step. Only `step` uses it.
        self._lost: frozenset[str] = frozenset()
        # Guards `_sightings`, `_identities` and `_order_found`. Never held during a write of the state.
        self._lock = threading.Lock()
        self._sightings: dict[str, Sighting] = {}
        self._identities: Mapping[str, str] = {}
        # The highest order in the first reports of all servers.
        self._order_found = 0
        text = store.read()
        earlier = FleetState() if text is None else fleet_state_from_json(text)
        state = earlier.taken_over(order_min)
        self._write(state)
        # Replaced as a whole under `_deciding`, so a reader needs no lock.
        self._decided = Decided(state)

    @property
    def decided(self) -> Decided:
        return self._decided

    @property
    def state(self) -> FleetState:
        return self._decided.state

    @property
    def watches(self) -> Mapping[str, ModelWatch]:
        return self._decided.watches

    @property
    def sightings(self) -> Mapping[str, Sighting]:
        """The servers of the fleet with their last reports, as they are now.

        Leaves out new models for which the fleet has no room (`with_room`). Models that two servers have come
        first, so the choice is made over all reports together.
        """
        with self._lock:
            sightings = dict(self._sightings)
        return with_room(sightings, self.state.models.keys())

    def set_servers(
        self,
        names: Collection[str],
        leaving: Collection[str] = (),
        *,
        ended: Collection[str] = (),
        identities: Mapping[str, str] | None = None,
        models: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """Sets the servers of the fleet. Servers in `leaving` are about to be ended by their engine.

        A new server has `lost_seconds` to report before it is lost. Two servers that have the same name one
        after the other differ in `identities`. Servers in `ended` are not in `names`; if they have reported,
        they count as lost at once. `models` are the models that each server may have; a server that `models`
        lacks may have any model.
        """
        identities, models = identities or {}, models or {}
        now_ns = self._clock.now_ns()
        new = Sighting(None, now_ns)
        lost_at_ns = now_ns - round(self._settings.lost_seconds * NS_PER_SECOND) - 1
        with self._lock:
            before = self._sightings
            # The servers that were there before. Any other name belongs to a new server.
            same = {
                name
                for name in before.keys() & {*names}
                if self._identities.get(name) == identities.get(name)
            }
            self._sightings = {
                name: replace(
                    before[name] if name in same else new,
                    is_leaving=name in leaving,
                    models=models.get(name),
                )
                for name in names
            }
            for name in ended:
                if name in before and before[name].report is not None:
                    seen_at_ns = min(before[name].seen_at_ns, lost_at_ns)
                    self._sightings[name] = replace(before[name], seen_at_ns=seen_at_ns)
            self._identities = identities

    def receive(self, name: str, report: ServerReport) -> None:
        """Takes the report of a server. Ignores a server that is not in the fleet."""
        now_ns = self._clock.now_ns()
        with self._lock:
            before = self._sightings.get(name)
            if before is None:
                return
            if before.report is None:
                orders = (model.order for model in report.models.values())
                followed = (order for order in orders if order <= ORDER_FOLLOWED_MAX)
                self._order_found = max(self._order_found, *followed, 0)
            self._sightings[name] = replace(before, report=report, seen_at_ns=now_ns)

    def step(self) -> Decision:
        """Decides once, writes the state if it has changed, and sends the grants.

        Raises OSError if the state cannot be written, and Unavailable once this coordinator has ended.
        """
        started_ns = self._clock.now_ns()
        with self._deciding:
            self._check_open()
            now = Now.of(self._clock)
            before = self._decided
            state, sightings = self._raised(before.state), self.sightings
            decision = decide(state, before.watches, sightings, self._settings, now)
            self._keep(Decided(decision.state, decision.watches))
        if state is not before.state:
            _log.warning(
                "fleet_orders_raised",
                before=before.state.order,
                order=state.order,
                reason="servers have taken grants that the state does not have: it was lost, or is old",
            )
        self._observer.decided(seconds_since(self._clock, started_ns))
        self._note_lost(sightings, now.ns)
        self._publish(before.state, decision.state)
        if decision.grants:
            self._send(decision.grants)
        return decision

    def _note_lost(self, sightings: Mapping[str, Sighting], now_ns: int) -> None:
        """Logs which servers are lost since the last step, and which have come back."""
        lost = {
            name: round((now_ns - sighting.seen_at_ns) / NS_PER_SECOND, 1)
            for name, sighting in sightings.items()
            if is_silent(sighting, self._settings.lost_seconds, now_ns) and not sighting.is_leaving
        }
        for name in sorted(lost.keys() - self._lost):
            _log.warning("fleet_server_lost", server=name, seconds=lost[name])
        others = self._lost & sightings.keys() - lost.keys()
        back = {name for name in others if sightings[name].report is not None}
        for name in sorted(back):
            _log.info("fleet_server_back", server=name)
        # A server that was lost and has not reported since stays in the set, so that its return is logged.
        self._lost = frozenset(lost.keys() | (others - back))

    def operate(self, change: Callable[[FleetState], FleetState]) -> FleetState:
        """Applies an operator's change, and returns the new state once it is durable.

        Raises Unavailable once this coordinator has ended, OSError if the state cannot be written, and the
        errors of `change`. After an error nothing is changed.
        """
        with self._deciding:
            self._check_open()
            before = self._decided
            after = change(before.state)
            self._keep(replace(before, state=after))
        self._publish(before.state, after)
        return after

    def close(self) -> None:
        """Ends this coordinator. When it returns, no write of the state is under way, and none will begin."""
        with self._deciding:
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("this coordinator has ended; ask again")

    def _raised(self, state: FleetState) -> FleetState:
        """The state with its order raised above the orders in the servers' first reports (see above)."""
        with self._lock:
            found = self._order_found
        return state if found <= state.order else replace(state, order=found + 1)

    def _keep(self, decided: Decided) -> None:
        before, state = self._decided.state, decided.state
        if state != before:
            self._write(state)
            self._observer.state_changed(before, state)
        self._decided = decided

    def _write(self, state: FleetState) -> None:
        try:
            self._store.write(state.as_json())
        except OSError:
            self._observer.state_written(is_ok=False)
            raise
        self._observer.state_written(is_ok=True)

    def _publish(self, before: FleetState, after: FleetState) -> None:
        found = changes(before, after)
        for change in found:
            _log_change(change)
        if found and self._on_change is not None:
            self._on_change(found)


def with_room(
    sightings: Mapping[str, Sighting], known: Collection[str], count_max: int = MODEL_COUNT_MAX
) -> Mapping[str, Sighting]:
    """The sightings without the new models for which the fleet has no room. Pure.

    Models that several servers have are kept first, because one server alone may have made its models up.
    """
    counts = Counter(
        name
        for row in sightings.values()
        if row.report
        for name in row.report.models.keys() - known
    )
    room = max(0, count_max - len(known))
    if len(counts) <= room:
        return sightings
    taken = nsmallest(room, counts, key=lambda name: (counts[name] == 1, name))
    kept = {*known, *taken}
    return {name: _with_models(row, kept) for name, row in sightings.items()}


def _with_models(sighting: Sighting, names: set[str]) -> Sighting:
    if sighting.report is None or sighting.report.models.keys() <= names:
        return sighting
    models = {name: row for name, row in sighting.report.models.items() if name in names}
    return replace(sighting, report=replace(sighting.report, models=models))


def _log_change(change: Change) -> None:
    log = _log.warning if change.is_warning else _log.info
    log(change.event, model=change.model, **change.values)

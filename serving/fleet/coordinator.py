"""The coordinator of a fleet: keeps what servers report, and acts on each decision.

It needs a place for its state and a way to send grants, and knows neither: a file and sockets, Ray or
Kubernetes.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from serving.base.clock import Clock, seconds_since
from serving.fleet.changes import Change, changes
from serving.fleet.decision import Decision, Now, decide
from serving.fleet.observer import FleetObserver
from serving.fleet.reports import Grant, ServerReport, Sighting
from serving.fleet.state import FleetState, fleet_state_from_json
from serving.fleet.trial import ModelWatch
from serving.fleet.wave_settings import WaveSettings

_log = structlog.get_logger(__name__)


class StateStore(Protocol):
    """The place of the state, which outlives the coordinator. Only one coordinator uses it at a time."""

    def read(self) -> str | None:
        """Returns the text that was written last; None if there is none. Raises OSError."""
        ...

    def write(self, text: str) -> None:
        """Replaces the text as a whole. It is durable when this returns. Raises OSError."""
        ...


class Coordinator:
    """Decides for a fleet. Thread-safe; `step` is called again and again by one thread.

    `send` delivers grants, and may lose any of them: the next step sends it again. A state that
    cannot be written raises OSError from `step`, with nothing sent and nothing decided.
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

        `on_change` gets the changes of the state once they are durable. It returns at once. `order_min`
        is the lowest order of this coordinator's grants.
        """
        self._observer = observer or FleetObserver()
        self._store = store
        self._send = send
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        # Guards the members below. Held during a write of the state, not while grants are sent.
        self._lock = threading.Lock()
        text = store.read()
        before = FleetState() if text is None else fleet_state_from_json(text)
        self._state = before.taken_over(order_min)
        self._watches: Mapping[str, ModelWatch] = {}
        self._sightings: dict[str, Sighting] = {}
        store.write(self._state.as_json())

    @property
    def state(self) -> FleetState:
        return self._state

    @property
    def watches(self) -> Mapping[str, ModelWatch]:
        return self._watches

    @property
    def sightings(self) -> Mapping[str, Sighting]:
        """The servers of the fleet with their last reports, as they are now."""
        with self._lock:
            return dict(self._sightings)

    def set_servers(self, names: Collection[str], leaving: Collection[str] = ()) -> None:
        """Sets the servers of the fleet, and those of them that are being ended.

        A new server has the usual time to report before it is lost.
        """
        now_ns = self._clock.now_ns()
        new = Sighting(None, now_ns)
        with self._lock:
            self._sightings = {
                name: replace(self._sightings.get(name, new), is_leaving=name in leaving)
                for name in names
            }

    def receive(self, name: str, report: ServerReport) -> None:
        """Takes the report of a server. Ignores a server that is not in the fleet."""
        now_ns = self._clock.now_ns()
        with self._lock:
            before = self._sightings.get(name)
            if before is not None:
                self._sightings[name] = replace(before, report=report, seen_at_ns=now_ns)

    def step(self) -> Decision:
        """Decides once, writes the state if it has changed, and sends the grants."""
        started_ns = self._clock.now_ns()
        with self._lock:
            now = Now(self._clock.now_ns(), self._clock.wall_ns())
            before = self._state
            decision = decide(before, self._watches, self._sightings, self._settings, now)
            self._keep(decision.state)
            self._watches = decision.watches
        self._observer.decided(seconds_since(self._clock, started_ns))
        self._publish(before, decision.state)
        if decision.grants:
            self._send(decision.grants)
        return decision

    def operate(self, change: Callable[[FleetState], FleetState]) -> FleetState:
        """Applies an operator's change, and returns the state once it is durable.

        Raises OSError with nothing changed, and the errors of `change`.
        """
        with self._lock:
            before = self._state
            self._keep(change(before))
            after = self._state
        self._publish(before, after)
        return after

    def _keep(self, state: FleetState) -> None:
        if state == self._state:
            return
        try:
            self._store.write(state.as_json())
        except OSError:
            self._observer.state_written(is_ok=False)
            raise
        self._observer.state_written(is_ok=True)
        self._observer.state_changed(self._state, state)
        self._state = state

    def _publish(self, before: FleetState, after: FleetState) -> None:
        found = changes(before, after)
        for change in found:
            _log_change(change)
        if found and self._on_change is not None:
            self._on_change(found)


def _log_change(change: Change) -> None:
    log = _log.warning if change.is_warning else _log.info
    log(change.event, model=change.model, **change.values)

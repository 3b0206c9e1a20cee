"""The coordinator of a fleet: keeps what servers report, and acts on each decision.

It needs a place for its state and a way to send grants, and knows neither: a file and sockets, Ray or
Kubernetes.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import structlog

from serving.base.clock import Clock, seconds_since
from serving.fleet.decision import Decision, Now, decide
from serving.fleet.observer import FleetObserver
from serving.fleet.reports import Grant, ServerReport, Sighting
from serving.fleet.state import FleetState, ModelState, fleet_state_from_json
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
    ) -> None:
        """Takes over the state. Raises OSError, and DataLoss if the state is not readable."""
        self._observer = observer or FleetObserver()
        self._store = store
        self._send = send
        self._settings = settings
        self._clock = clock
        # Guards the members below. Held during a write of the state, not while grants are sent.
        self._lock = threading.Lock()
        text = store.read()
        self._state = (FleetState() if text is None else fleet_state_from_json(text)).taken_over()
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

    def set_servers(self, names: Collection[str]) -> None:
        """Sets the servers of the fleet. A new one has the usual time to report before it is lost."""
        now_ns = self._clock.now_ns()
        with self._lock:
            self._sightings = {
                name: self._sightings.get(name) or Sighting(None, now_ns) for name in names
            }

    def receive(self, name: str, report: ServerReport) -> None:
        """Takes the report of a server. Ignores a server that is not in the fleet."""
        now_ns = self._clock.now_ns()
        with self._lock:
            if name in self._sightings:
                self._sightings[name] = Sighting(report, now_ns)

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
        _log_changes(before, decision.state)
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
        _log_changes(before, after)
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


def _log_changes(before: FleetState, after: FleetState) -> None:
    if before is after:
        return
    for name, model in after.models.items():
        _log_model(name, before.models.get(name, ModelState()), model)


def _log_model(name: str, before: ModelState, after: ModelState) -> None:
    if after.verdicts != before.verdicts and after.verdicts:
        verdict = after.verdicts[-1]
        _log.log(
            20 if verdict.is_passed else 30,
            "fleet_verdict",
            model=name,
            gate=verdict.gate,
            is_passed=verdict.is_passed,
            reason=verdict.reason,
        )
    for version in after.blocked.keys() - before.blocked.keys():
        _log.warning(
            "fleet_rolled_back", model=name, version=version, reason=after.blocked[version].reason
        )
    old, new = before.rollout, after.rollout
    if new is not None and (old is None or (old.version, old.wave) != (new.version, new.wave)):
        _log.info("fleet_wave_began", model=name, version=new.version, wave=new.wave + 1)
    if after.stable != before.stable:
        _log.info("fleet_stable_version", model=name, version=after.stable, before=before.stable)

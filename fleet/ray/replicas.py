"""Runs the servers of a fleet on Ray: starts and stops them as `decide_replicas` decides."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from fleet.config.ray_settings import RaySettings
from fleet.lead.coordinator import Coordinator
from fleet.lead.places import LOOK_SECONDS_MAX, Membership
from fleet.lead.server_links import CALL_SECONDS
from fleet.ray.cluster import RayServers
from fleet.ray.key_value_store import KeyValueStore, StoredText
from fleet.ray.leadership import RayLeadership
from fleet.ray.look import Look, look_of
from fleet.replicas.decision import ReplicaDecision, decide_replicas
from fleet.replicas.found_replicas import found_state
from fleet.replicas.replica_problems import replica_problems
from fleet.replicas.replica_step import ReplicaInputs
from fleet.replicas.replicas import UP, Replica, ReplicaState, with_restarts
from fleet.replicas.stored_replicas import replica_state_as_json, replica_state_from_json
from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.errors import DataLoss, NotFound, Unavailable
from serving.base.name_text import listed, natural_order

REPLICAS_KEY = "replicas"
STOPPED_KEY = "stopped"
"""This key is in the store from the time when an operator stops the fleet until it is deployed again."""

# A server answers as long as its last report is not older than this many polls and the deadline of a call.
_FRESH_POLLS = 3
# The time between two looks for orphans: actors of servers that the state does not have.
_ORPHANS_SECONDS = 10.0

_log = structlog.get_logger(__name__)


class RayReplicas:
    """A `ServerPlace` whose servers are actors. One thread calls `act`; any thread calls the other methods.

    Each decision is written in the term of the leadership before its actions begin. An action that failed, or
    that an earlier coordinator has not done, is repeated.
    """

    def __init__(
        self,
        settings: RaySettings,
        servers: RayServers,
        leadership: RayLeadership,
        store: KeyValueStore,
        clock: Clock,
        *,
        poll_seconds: float,
    ) -> None:
        """Reads from the store whether an operator has stopped the fleet. Raises OSError.

        A stop is stored because it must outlive the coordinator that was asked for it.
        """
        self._servers = servers
        self._leadership = leadership
        self._store = store
        self._clock = clock
        # Made once, because it parses the flags of each model.
        self._wanted = settings.wanted()
        self._leave_seconds = settings.leave_seconds
        self._fresh_seconds = _FRESH_POLLS * poll_seconds + CALL_SECONDS
        self._began_ns = clock.now_ns()
        self.is_stopping = store.get(STOPPED_KEY) is not None
        self.has_stopped = False
        """True once an operator's stop has ended every actor of a server."""
        # The time of the last look for orphans; None if the next step must look. Only `act` uses it.
        self._orphans_ended_ns: int | None = None
        # The reason why the cluster does not answer; "" if it answered at the last step.
        self._failure = ""
        # A text for people, if this coordinator could not read the stored state; "" otherwise.
        self._lost = ""
        # Guards the state, and is held while the state is written.
        self._lock = threading.Lock()
        self._text: StoredText | None = None
        # The values from here on are each replaced as a whole, so a reader needs no lock.
        self._decision = ReplicaDecision(state=ReplicaState())
        self._look = Look()
        # By replica, the reason why its last launch has ended by itself.
        self._reasons: Mapping[str, str] = {}
        self._membership: Membership | None = None

    @property
    def state(self) -> ReplicaState:
        return self._decision.state

    def start(self) -> None:
        """See `ServerPlace`."""

    def membership(self) -> Membership | None:
        """See `ServerPlace`."""
        return self._membership

    def act(self, coordinator: Coordinator) -> None:
        """Looks at the cluster, decides and acts once. See `ServerPlace`."""
        with self._lock:
            try:
                self._act(coordinator)
            except Unavailable as error:
                if not self._failure:
                    _log.error("fleet_cluster_unreachable", reason=str(error))
                self._failure = str(error)
                raise
            self._failure = ""

    def stop(self) -> None:
        """See `ServerPlace`. The servers serve on."""

    def shut_down(self) -> None:
        """Lets all servers leave and stop. Returns at once. Raises OSError."""
        self._store.put(STOPPED_KEY, "")
        self.is_stopping = True

    def restart(self, model: str) -> None:
        """Lets the servers of a model restart; if `model` is "", all servers.

        Do not call it on an event loop, because it waits for Ray. Raises NotFound, Unavailable and OSError.
        After an error no server restarts.
        """
        models = sorted(item.name for item in self._wanted)
        if model and model not in models:
            raise NotFound(f"the fleet has no model {model!r}; models: {listed(models)}")
        with self._lock:
            self._keep(replace(self._decision, state=with_restarts(self._taken_over(), model)))
        _log.info("fleet_restart_asked", model=model or "all")

    def problems(self) -> list[str]:
        """Texts for people: which servers should run and do not, and why no decision is made."""
        look, failure = self._look, self._failure
        problems = replica_problems(
            self._wanted, self._decision, look.rooms, look.ready(), self._reasons
        )
        waits = f"no version and no server changes until the cluster answers: {failure}"
        return [*problems, *([self._lost] if self._lost else []), *([waits] if failure else [])]

    def document(self) -> dict[str, Any]:
        """The document that `millpond fleet replicas` prints."""
        decision, look = self._decision, self._look
        restarts, ready = decision.state.restarts, look.ready()
        specs = {model.name: model.spec for model in self._wanted}
        rows = sorted(decision.state.replicas.values(), key=lambda row: natural_order(row.name))
        return {
            "missing": dict(decision.missing),
            "replicas": [
                {
                    "name": row.name,
                    "model": row.model,
                    "node": row.node,
                    "launch": row.launch,
                    "phase": row.phase,
                    "is_ready": row.name in ready,
                    "is_to_restart": row.comes_back
                    or row.name in restarts
                    or row.spec != specs.get(row.model),
                    "process_id": look.answer(row.name).process_id,
                    "grpc": look.answer(row.name).grpc,
                }
                for row in rows
            ],
        }

    def _act(self, coordinator: Coordinator) -> None:
        self._taken_over()
        self._end_orphans()
        replicas = self.state.replicas
        oldest_ns = self._clock.now_ns() - round(self._fresh_seconds * NS_PER_SECOND)
        answers = self._servers.look([*replicas.values()])
        rooms = self._servers.rooms()
        self._look = look_of(rooms, answers, replicas, coordinator.sightings, oldest_ns)
        self._note_reasons()
        self._decide(coordinator)
        for action, rows in (
            (self._servers.end, self._decision.ends),
            (self._servers.start, self._decision.starts),
            (self._servers.stop, self._decision.stops),
        ):
            for row in rows:
                self._do(action, row)
        self._membership = self._members()
        if self.is_stopping and not self.state.replicas:
            self._orphans_ended_ns = None
            self._end_orphans()
            self.has_stopped = True

    def _taken_over(self) -> ReplicaState:
        """The state. The first call takes it over from earlier terms. Raises OSError and Unavailable."""
        if self._text is None:
            text = self._leadership.stored(REPLICAS_KEY)
            kept = text.read()
            try:
                state = ReplicaState() if kept is None else replica_state_from_json(kept)
            except DataLoss as error:
                state = self._found(error)
            # After this write no reader of the state sees a late write of the earlier coordinator.
            text.write(replica_state_as_json(state))
            self._text, self._decision = text, ReplicaDecision(state=state)
        return self.state

    def _found(self, error: DataLoss) -> ReplicaState:
        """Finds the state from the launches on the cluster, because the stored text is unreadable.

        Raises Unavailable.
        """
        state = found_state(self._servers.launches(), self._wanted)
        servers = sorted(state.replicas, key=natural_order)
        # The unreadable text stays in the store, under the number of its term.
        self._lost = (
            f"the stored replicas could not be read: {error}; servers that were found on the cluster: "
            f"{listed(servers)}. They serve on and restart one by one, because their flags are not known"
        )
        _log.error("fleet_replicas_unreadable", reason=str(error), servers=servers)
        return state

    def _keep(self, decision: ReplicaDecision) -> None:
        """Writes the state of a decision if it has changed, and then takes the decision over. Raises OSError."""
        if decision.state != self.state:
            assert self._text is not None
            self._text.write(replica_state_as_json(decision.state))
        self._decision = decision

    def _end_orphans(self) -> None:
        """Ends orphans: servers that the state does not have.

        An orphan is left over if a coordinator dies between a decision and its actions, or if `end` has
        failed.
        """
        since_ns = self._orphans_ended_ns
        if since_ns is not None and seconds_since(self._clock, since_ns) < _ORPHANS_SECONDS:
            return
        orphans = self._servers.orphans([*self.state.replicas.values()])
        if orphans:
            # A later coordinator may have launched some of these servers. Then its term had begun before the
            # list was made, so this check raises, and no server is ended.
            self._leadership.check()
        for actor_name in orphans:
            self._servers.end_orphan(actor_name)
        self._orphans_ended_ns = self._clock.now_ns()

    def _note_reasons(self) -> None:
        """Notes why launches have ended by themselves. Forgets replicas that are no longer in the state."""
        rows = self.state.replicas
        seen = {
            name: answer.reason or "its node or its actor was lost"
            for name, answer in self._look.answers.items()
            if answer.is_gone and name in rows and rows[name].phase == UP
        }
        known = {**self._reasons, **seen}
        self._reasons = {name: reason for name, reason in known.items() if name in rows}

    def _decide(self, coordinator: Coordinator) -> None:
        before = self._decision
        inputs = ReplicaInputs(
            wanted=() if self.is_stopping else self._wanted,
            rooms=self._look.rooms,
            sightings=self._look.sightings,
            swapping=[name for name, model in coordinator.state.models.items() if model.rollout],
            since_ns=before.since_ns,
            leave_seconds=self._leave_seconds,
            now_ns=self._clock.now_ns(),
            wall_ns=self._clock.wall_ns(),
        )
        self._keep(decide_replicas(before.state, inputs))
        self._log_changes(before)

    def _log_changes(self, before: ReplicaDecision) -> None:
        decision = self._decision
        if decision.missing != before.missing and decision.missing:
            missing = dict(decision.missing)
            _log.warning("fleet_replicas_missing", missing=missing, problems=self.problems())
        elif decision.missing != before.missing:
            _log.info("fleet_replicas_placed")
        for name, row in decision.state.replicas.items():
            earlier = before.state.replicas.get(name)
            if row.was_ready and not (earlier and earlier.was_ready):
                _log.info("fleet_server_ready", server=name, grpc=self._look.answer(name).grpc)

    def _do(self, action: Callable[[Replica], None], row: Replica) -> None:
        """Does one action on one replica. Logs a failure, so that the actions on other replicas are done.

        If an `end` fails, the server is an orphan from now on. If a `start` fails, the next look finds its
        launch gone. A `stop` is repeated by the next step.
        """
        try:
            action(row)
        except Unavailable as error:
            _log.warning("fleet_action_failed", server=row.name, reason=str(error))
            self._orphans_ended_ns = None

    def _members(self) -> Membership:
        rows = self.state.replicas
        # After this time each launch has had the time to answer.
        is_late = seconds_since(self._clock, self._began_ns) > LOOK_SECONDS_MAX
        return Membership(
            tuple(self._look.server(row, self._servers.actor_name(row)) for row in rows.values()),
            leaving=frozenset(name for name, row in rows.items() if row.phase != UP),
            # The launch identifies a server, so the report of an earlier launch never counts for this launch.
            identities={name: str(row.launch) for name, row in rows.items()},
            models={name: frozenset({row.model}) for name, row in rows.items()},
            is_whole=is_late or self._look.has_all(rows.values()),
        )

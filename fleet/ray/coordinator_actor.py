"""The actor that decides for a fleet: versions in waves, and which servers run."""

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Protocol

import ray
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleet.config.config import REPLICAS_PATH, FleetConfig, FleetServer, parse_fleet_config
from fleet.config.ray_settings import RaySettings
from fleet.files.registry import registry_document
from fleet.http.api import FleetApi, check_operator
from fleet.http.metrics import FleetMetrics
from fleet.lead.coordinator import Coordinator
from fleet.lead.outputs import registered
from fleet.lead.server_links import CALL_SECONDS, ServerClient, ServerLinks
from fleet.ray.cluster import NAMESPACE, Looked, RayServers
from fleet.ray.coordinator_loop import PAUSE_SECONDS_MAX, CoordinatorLoop
from fleet.ray.event_list import EventList, LoggedEvent
from fleet.ray.front_problems import FrontProblems
from fleet.ray.key_value_store import KeyValueStore, StoredText, Term
from fleet.ray.operator_token import TokenEntry, operator_token
from fleet.ray.priority import take_usual_priority
from fleet.ray.server_actor import node_address
from fleet.replicas.placement import ServerRoom
from fleet.replicas.replica_problems import replica_problems
from fleet.replicas.replicas import (
    UP,
    Replica,
    ReplicaDecision,
    ReplicaInputs,
    ReplicaSighting,
    ReplicaState,
    decide_replicas,
    replica_state_from_json,
    with_restarts,
)
from fleet.service import fleet_http
from fleet.waves.reports import Grant, ServerReport, Sighting
from fleet.waves.view import is_silent
from serving.base.clock import NS_PER_SECOND, Clock, SystemClock, pause, seconds_since
from serving.base.errors import FailedPrecondition, NotFound, Unavailable
from serving.base.json_requests import parse_object
from serving.base.name_text import listed, natural_order
from serving.http.app import json_response
from serving.server.logs import flush_logs, start_logs

CONFIG_KEY = "config"
STATE_KEY = "state"
REPLICAS_KEY = "replicas"
STOPPED_KEY = "stopped"
"""Is there from an operator's stop until the fleet is deployed again."""

# A report is late after so many polls and the deadline of a call.
_FRESH_POLLS = 3
# A coordinator that has begun waits so long for its servers' actors before it publishes a registry.
_LOOK_SECONDS = 15.0
# Between two looks for the actors of servers that no coordinator knows.
_ORPHANS_SECONDS = 10.0

_log = structlog.get_logger(__name__)


class CoordinatorActor:
    """The coordinator of one fleet, which Ray restarts on another node if its own is gone.

    Its configuration and its state lie in the cluster's key-value store. If it cannot go on, it takes the
    fleet over anew, and its servers serve on meanwhile. It ends itself once the fleet was stopped.
    """

    def __init__(self, fleet: str) -> None:
        """Does nothing that fails: Ray would not start the actor again."""
        self._name = fleet
        self._clock = SystemClock()
        self._events = EventList(self._clock)
        self._front_problems = FrontProblems(self._clock)
        self._loop = CoordinatorLoop(self._take_over, self._clock)
        threading.Thread(target=self._run, name="fleet", daemon=True).start()

    def address(self) -> str:
        """Returns the HOST:PORT of the coordinator's HTTP. Raises Unavailable before it has taken over."""
        return self._loop.fleet.address

    def deployed(self) -> dict[str, Any]:
        """Returns the configuration's digest, the process, and if the fleet stops. Raises Unavailable."""
        fleet = self._loop.fleet
        return {
            "config": fleet.config_digest,
            "is_stopping": fleet.is_stopping,
            "process": [ray.get_runtime_context().get_node_id(), os.getpid()],
        }

    def shut_down(self) -> None:
        """Drains all servers, and then ends this actor. Does not wait. The state stays in the store.

        Raises Unavailable, and OSError if the store does not answer.
        """
        self._loop.fleet.shut_down()

    def events(
        self, boot: str, number: int, front: str = "", problems: Sequence[str] = ()
    ) -> list[LoggedEvent]:
        """Returns what this process has logged after an event; all if that is of another process.

        Takes the problems of the `front` that asks.
        """
        if front:
            self._front_problems.note(front, problems)
        return self._events.after(boot, number)

    def place(self) -> dict[str, Any]:
        """Returns the node and the process of the coordinator."""
        return {
            "node": ray.get_runtime_context().get_node_id(),
            "process_id": os.getpid(),
        }

    def _take_over(self) -> "RayFleet":
        store, host = KeyValueStore(self._name), node_address()
        return RayFleet(store, host, self._clock, other_problems=self._front_problems.present)

    def _run(self) -> None:
        try:
            start_logs("json", processors=[self._events.keep])
            take_usual_priority()
            self._loop.run()
            self._end()
        except Exception:  # noqa: BLE001 (another coordinator has begun, or a bug)
            _log.exception("fleet_coordinator_ends")
            # Ray starts it again, if it is still the actor of its name. Not in a fast loop.
            pause(self._clock, PAUSE_SECONDS_MAX)
            flush_logs()
            os._exit(1)

    def _end(self) -> None:
        """Ends this process, so that Ray does not start it again."""
        _log.info("fleet_stopped", fleet=self._name)
        flush_logs()
        while True:
            with suppress(ray.exceptions.RayError, ValueError):
                actor = ray.get_actor(coordinator_name(self._name), namespace=NAMESPACE)
                ray.kill(actor, no_restart=True)
            # This process ends during the pause.
            pause(self._clock, 1.0)


def coordinator_name(fleet: str) -> str:
    """Returns the name of the actor of a fleet's coordinator."""
    return f"{fleet}/coordinator"


def config_digest(config: str) -> str:
    """Returns a short text that differs for each configuration, and for each release of Millpond."""
    return hashlib.sha256(f"{version('millpond')}\n{config}".encode()).hexdigest()


class Servers(Protocol):
    """`RayServers`. Each method raises Unavailable, and may be repeated then."""

    def rooms(self) -> list[ServerRoom]: ...
    def start(self, replica: Replica) -> None: ...
    def look(self, replicas: Sequence[Replica]) -> dict[str, Looked]: ...
    def stop(self, replica: Replica) -> None: ...
    def end(self, replica: Replica) -> None: ...
    def orphans(self, replicas: Sequence[Replica]) -> list[str]: ...
    def end_orphan(self, actor_name: str) -> None: ...
    def client(self, actor_name: str) -> ServerClient: ...
    def actor_name(self, replica: Replica) -> str: ...


class RayFleet:
    """Looks at the cluster and its servers, decides and acts, until `shut_down`.

    One thread runs it. An operator's restart comes on another thread, behind a lock.
    """

    def __init__(
        self,
        store: KeyValueStore,
        host: str,
        clock: Clock,
        make_servers: Callable[[RaySettings], Servers] = RayServers,
        other_problems: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Takes over the fleet, and answers HTTP. `other_problems` are in its status too.

        Raises OSError, DataLoss, InvalidConfig and Deposed.
        """
        self._store = store
        self._clock = clock
        self._other_problems = other_problems
        # Guards the replicas' state.
        self._lock = threading.Lock()
        text = store.get(CONFIG_KEY) or ""
        self._config = _ray_config(text)
        self.config_digest = config_digest(text)
        # Seconds are above the terms of a cluster whose store was lost: its servers may keep grants.
        self._term = Term(store, clock, clock.wall_ns() // NS_PER_SECOND)
        self._replica_store = StoredText(store, self._term, REPLICAS_KEY)
        kept = self._replica_store.read()
        self._replicas = ReplicaState() if kept is None else replica_state_from_json(kept)
        # A late write of the coordinator before this one has no reader from now on.
        self._replica_store.write(self._replicas.as_json())
        self._decision = ReplicaDecision(state=self._replicas)
        # Held while a report is taken, and while the members change.
        self._members_lock = threading.Lock()
        self._began_ns = clock.now_ns()
        self._looked: Mapping[str, Looked] = {}
        # Parses the flags of each model, which do not change.
        self._wanted = self._ray.wanted()
        self._rooms: Sequence[ServerRoom] = ()
        # Why the last launch of each replica has ended.
        self._reasons: dict[str, str] = {}
        # A stop outlives the coordinator that was asked for it.
        self.is_stopping = store.get(STOPPED_KEY) is not None
        # None: at once.
        self._orphans_ended_ns: int | None = None
        self._failure = ""
        self._servers = make_servers(self._ray)
        metrics = FleetMetrics(clock)
        self._coordinator = Coordinator(
            StoredText(store, self._term, STATE_KEY),
            self._send,
            self._config.waves,
            clock,
            metrics,
            order_min=self._term.order_min,
        )
        self._links = ServerLinks(
            connect=self._servers.client,
            receive=self.receive,
            thread_count=self._config.coordinator.poll_threads,
            may_send=self._term.is_valid,
            observer=metrics,
            expects_end=self._is_stopped,
        )
        self._set_members()
        # No document yet: a fleet that has not been looked at is not an empty one.
        self.registry = ""
        api = FleetApi(
            lambda: self._coordinator,
            self._config.waves,
            self._known_registry,
            clock,
            metrics,
            self._problems,
        )
        route = Route(REPLICAS_PATH, self._answer_replicas, methods=["GET", "POST"])
        token = operator_token(store)
        self._http = fleet_http(
            [*api.routes, route], host, 0, gate=lambda app: TokenEntry(app, token)
        )
        self._http.start()
        self.address = f"{host}:{self._http.port}"

    def shut_down(self) -> None:
        """Lets all servers leave, and ends `run` when they have ended. Raises OSError."""
        self._store.put(STOPPED_KEY, "")
        self.is_stopping = True

    def run(self) -> None:
        """Decides again and again. Raises Deposed if another coordinator has begun."""
        _log.info("fleet_started", http=self.address, replicas=len(self._replicas.replicas))
        wake = threading.Condition()
        try:
            while not self._has_stopped():
                self._links.poll()
                with wake:
                    self._clock.wait(wake, self._config.coordinator.poll_seconds)
                self._try(self.step)
        finally:
            self.close()

    def step(self) -> None:
        """Looks, decides and acts once.

        Raises OSError if the store does not answer, and Unavailable if the cluster does not. Nothing was
        decided then.
        """
        with self._lock:
            self._end_orphans()
            rows = [*self._replicas.replicas.values()]
            self._looked = self._servers.look(rows)
            self._note_reasons()
            self._decide_replicas()
            self._act()
        self._set_members()
        self._coordinator.step()
        if self.registry or self._has_looked():
            self.registry = self._registry_text()

    def receive(self, link: str, report: ServerReport) -> None:
        """Takes the report that came over a link. Drops one of an earlier launch. Any thread."""
        name, _, launch = link.rpartition("/")
        with self._members_lock:
            row = self._replicas.replicas.get(name)
            if row is not None and row.launch == int(launch):
                self._coordinator.receive(name, report)

    def restart(self, model: str) -> None:
        """Lets the servers of a model restart, or all. Any thread, and not an event loop: it waits for Ray.

        Raises NotFound, and OSError with nothing done.
        """
        models = sorted(item.name for item in self._ray.models)
        if model and model not in models:
            raise NotFound(f"the fleet has no model {model!r}; models: {listed(models)}")
        with self._lock:
            state = with_restarts(self._replicas, model)
            self._replica_store.write(state.as_json())
            self._replicas = state
        _log.info("fleet_restart_asked", model=model or "all")

    def close(self) -> None:
        """Ends HTTP and the calls to servers. The servers serve on."""
        self._http.stop()
        self._links.stop()
        self._http.join()

    @property
    def _ray(self) -> RaySettings:
        assert self._config.ray is not None
        return self._config.ray

    def _has_stopped(self) -> bool:
        """Returns True once an operator's stop has ended every actor of a server."""
        if not self.is_stopping or self._replicas.replicas:
            return False
        self._orphans_ended_ns = None
        return self._try(self._end_orphans)

    def _try(self, action: Callable[[], None]) -> bool:
        """Returns False, with a line in the log, if the store or the cluster does not answer now."""
        try:
            action()
        except OSError as error:
            self._note_failure("fleet_state_not_written", str(error))
            return False
        except Unavailable as error:
            self._note_failure("fleet_cluster_unreachable", str(error))
            return False
        self._failure = ""
        return True

    def _note_failure(self, event: str, reason: str) -> None:
        """Logs a failure once, until it is another one."""
        if self._failure != event:
            _log.error(event, reason=reason)
        self._failure = event

    def _end_orphans(self) -> None:
        """Ends servers that the state does not have.

        They are left if a coordinator dies between a decision and its actions, or if an end failed.
        """
        since_ns = self._orphans_ended_ns
        if since_ns is not None and seconds_since(self._clock, since_ns) < _ORPHANS_SECONDS:
            return
        orphans = self._servers.orphans([*self._replicas.replicas.values()])
        if orphans:
            # After the list: it has no launch of a later coordinator then.
            self._term.check()
        for actor_name in orphans:
            self._servers.end_orphan(actor_name)
        self._orphans_ended_ns = self._clock.now_ns()

    def _note_reasons(self) -> None:
        """Keeps why launches have ended that were not stopped."""
        rows = self._replicas.replicas
        seen = {
            name: looked.reason or "its node or its actor was lost"
            for name, looked in self._looked.items()
            if looked.is_gone and name in rows and rows[name].phase == UP
        }
        known = {**self._reasons, **seen}
        self._reasons = {name: reason for name, reason in known.items() if name in rows}

    def _problems(self) -> list[str]:
        """Returns texts on servers that do not get to run. Any thread: each value is replaced as a whole."""
        decision, sightings = self._decision, self._coordinator.sightings
        ready = frozenset(
            name for name in decision.state.replicas if self._serves(name, sightings.get(name))
        )
        own = replica_problems(self._wanted, decision, self._rooms, ready, self._reasons)
        return [*own, *self._other_problems()]

    def _decide_replicas(self) -> None:
        self._rooms = self._servers.rooms()
        swapping = [name for name, model in self._coordinator.state.models.items() if model.rollout]
        inputs = ReplicaInputs(
            wanted=() if self.is_stopping else self._wanted,
            rooms=self._rooms,
            sightings=self._replica_sightings(),
            swapping=swapping,
            since_ns=self._decision.since_ns,
            leave_seconds=self._ray.leave_seconds,
            now_ns=self._clock.now_ns(),
            wall_ns=self._clock.wall_ns(),
        )
        before, decision = self._replicas, decide_replicas(self._replicas, inputs)
        if decision.state != before:
            self._replica_store.write(decision.state.as_json())
        is_changed = decision.missing != self._decision.missing
        self._replicas, self._decision = decision.state, decision
        if is_changed and decision.missing:
            missing = dict(decision.missing)
            _log.warning("fleet_replicas_missing", missing=missing, problems=self._problems())
        elif is_changed:
            _log.info("fleet_replicas_placed")
        for name, row in decision.state.replicas.items():
            earlier = before.replicas.get(name)
            if row.was_ready and not (earlier and earlier.was_ready):
                _log.info("fleet_server_ready", server=name, grpc=self._looked[name].grpc)

    def _act(self) -> None:
        for row in self._decision.ends:
            self._act_on(row, self._servers.end)
        for row in self._decision.starts:
            self._act_on(row, self._servers.start)
        for row in self._decision.stops:
            self._act_on(row, self._servers.stop)

    def _act_on(self, row: Replica, action: Callable[[Replica], None]) -> None:
        """Acts on one replica, whatever became of the others.

        An end that fails leaves an orphan, a start that fails a launch that is gone, and stops come again.
        """
        try:
            action(row)
        except Unavailable as error:
            _log.warning("fleet_action_failed", server=row.name, reason=str(error))
            self._orphans_ended_ns = None

    def _replica_sightings(self) -> dict[str, ReplicaSighting]:
        sightings = self._coordinator.sightings
        return {
            name: self._replica_sighting(name, looked, sightings.get(name))
            for name, looked in self._looked.items()
            if name in self._replicas.replicas
        }

    def _replica_sighting(
        self, name: str, looked: Looked, sighting: Sighting | None
    ) -> ReplicaSighting:
        has_started = looked.grpc != "" and not looked.is_gone
        answers = has_started and self._is_fresh(sighting)
        return ReplicaSighting(
            is_gone=looked.is_gone,
            has_started=has_started,
            answers=answers,
            is_ready=answers and self._serves(name, sighting),
            ports=(_port(looked.grpc), _port(looked.http)),
        )

    def _is_fresh(self, sighting: Sighting | None) -> bool:
        """Returns True if a report came lately: a server is lost for the waves much later."""
        if sighting is None or sighting.report is None:
            return False
        seconds = _FRESH_POLLS * self._config.coordinator.poll_seconds + CALL_SECONDS
        return seconds_since(self._clock, sighting.seen_at_ns) <= seconds

    def _serves(self, name: str, sighting: Sighting | None) -> bool:
        if sighting is None or sighting.report is None:
            return False
        row = self._replicas.replicas.get(name)
        model = sighting.report.models.get(row.model) if row is not None else None
        return model is not None and model.default_version is not None

    def _send(self, grants: Sequence[Grant]) -> None:
        rows = self._replicas.replicas
        self._links.send([replace(grant, server=_link(rows[grant.server])) for grant in grants])

    def _set_members(self) -> None:
        rows = self._replicas.replicas
        leaving = {name for name, row in rows.items() if row.phase != UP}
        with self._members_lock:
            self._coordinator.set_servers(
                rows,
                leaving,
                # The reports of a launch are not those of the next one.
                identities={name: str(row.launch) for name, row in rows.items()},
                models={name: frozenset({row.model}) for name, row in rows.items()},
            )
        # Not those that have not started yet, or have ended: they cannot answer.
        self._links.set_targets(
            {
                _link(row): self._servers.actor_name(row)
                for name, row in rows.items()
                if ((looked := self._looked.get(name, Looked())).grpc or row.was_ready)
                and not looked.is_gone
            }
        )

    def _is_stopped(self, link: str) -> bool:
        """Returns True if a launch was told to stop. Any thread."""
        row = self._replicas.replicas.get(link.rpartition("/")[0])
        return row is None or row.phase != UP

    def _has_looked(self) -> bool:
        """Returns True once every launch that clients may have has answered, or has had the time to."""
        if self._clock.now_ns() - self._began_ns > _LOOK_SECONDS * NS_PER_SECOND:
            return True
        rows = self._replicas.replicas.values()
        return all(
            row.name in self._looked
            and (self._looked[row.name].grpc or self._looked[row.name].is_gone)
            for row in rows
            if row.was_ready
        )

    def _known_registry(self) -> str:
        """Returns the registry. Raises Unavailable before the servers were looked at."""
        if not self.registry:
            raise Unavailable("the coordinator has not looked at the servers yet")
        return self.registry

    def _registry_text(self) -> str:
        """Returns the registry. A launch is in it from its first answer as a ready server on.

        A proxy takes a server that it has not checked yet for a healthy one.
        """
        rows = self._replicas.replicas
        sightings = self._coordinator.sightings
        lost_seconds, now_ns = self._config.waves.lost_seconds, self._clock.now_ns()
        servers = [
            FleetServer(name=name, admin="", grpc=looked.grpc, http=looked.http)
            for name, looked in self._looked.items()
            if name in rows and rows[name].was_ready and looked.grpc and not looked.is_gone
        ]
        registered_rows = registered(
            servers, sightings, lambda name: is_silent(sightings[name], lost_seconds, now_ns)
        )
        return registry_document(
            replace(row, is_draining=row.is_draining or rows[row.name].phase != UP)
            for row in registered_rows
        )

    async def _answer_replicas(self, request: Request) -> Response:
        """GET: the replicas. POST {"model"}: restarts those of a model one by one; "": all."""
        if request.method == "POST":
            check_operator(request)
            model = str(parse_object(await request.body()).get("model") or "")
            try:
                await asyncio.to_thread(self.restart, model)
            except OSError as error:
                raise Unavailable(
                    f"nothing is changed: the state cannot be written: {error}"
                ) from error
        return json_response(self._replica_document())

    def _replica_document(self) -> dict[str, Any]:
        state, looked, sightings = self._replicas, self._looked, self._coordinator.sightings
        specs = {model.name: model.spec for model in self._wanted}
        return {
            "missing": dict(self._decision.missing),
            "replicas": [
                {
                    "name": row.name,
                    "model": row.model,
                    "node": row.node,
                    "launch": row.launch,
                    "phase": row.phase,
                    "is_ready": self._serves(row.name, sightings.get(row.name)),
                    "is_to_restart": row.comes_back
                    or row.name in state.restarts
                    or row.spec != specs.get(row.model),
                    "process_id": looked.get(row.name, Looked()).process_id,
                    "grpc": looked.get(row.name, Looked()).grpc,
                }
                for row in sorted(state.replicas.values(), key=lambda row: natural_order(row.name))
            ],
        }


def _link(row: Replica) -> str:
    """Returns the name of the link to a launch, so that no report is taken for one of another launch."""
    return f"{row.name}/{row.launch}"


def _port(address: str) -> int:
    """Returns the port of HOST:PORT; 0 if there is none."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _ray_config(text: str) -> FleetConfig:
    config = parse_fleet_config(text)
    if config.ray is None:
        raise FailedPrecondition("the fleet's configuration has no table [ray]")
    return config

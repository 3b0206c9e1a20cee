"""The actor that decides for a fleet: versions in waves, and which servers run."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import ray
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.base.clock import NS_PER_SECOND, Clock, SystemClock, seconds_since
from serving.base.errors import FailedPrecondition, PermissionDenied
from serving.base.json_requests import parse_object
from serving.fleet.api import FleetApi
from serving.fleet.config import REPLICAS_PATH, FleetConfig, FleetServer, parse_fleet_config
from serving.fleet.coordinator import Coordinator
from serving.fleet.metrics import FleetMetrics
from serving.fleet.outputs import registered
from serving.fleet.placement import ServerRoom
from serving.fleet.ray.cluster import Looked, RayServers
from serving.fleet.ray.key_value_store import KeyValueStore, StoredText, Term
from serving.fleet.ray.server_actor import node_address
from serving.fleet.ray_settings import RaySettings
from serving.fleet.registry import registry_document
from serving.fleet.replicas import (
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
from serving.fleet.reports import Grant, ServerReport, Sighting
from serving.fleet.server_links import CALL_SECONDS, ServerClient, ServerLinks
from serving.fleet.service import fleet_http
from serving.http.app import json_response
from serving.server.logs import flush_logs, start_logs

CONFIG_KEY = "config"
STATE_KEY = "state"
REPLICAS_KEY = "replicas"

# A report is late after so many polls and the deadline of a call.
_FRESH_POLLS = 3
# A coordinator that has begun waits so long for its servers' actors before it publishes a registry.
_LOOK_SECONDS = 15.0

_log = structlog.get_logger(__name__)


class CoordinatorActor:
    """The coordinator of one fleet, which Ray restarts on another node if its own is gone.

    Its configuration and its state lie in the cluster's key-value store. It ends its process if it
    cannot go on, and Ray starts it again. Its servers serve on meanwhile.
    """

    def __init__(self, fleet: str) -> None:
        """Takes over the fleet. Raises OSError, DataLoss and InvalidConfig."""
        start_logs("json")
        self._fleet = RayFleet(KeyValueStore(fleet), node_address(), SystemClock())
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()

    def address(self) -> str:
        """Returns the HOST:PORT of the coordinator's HTTP."""
        return self._fleet.address

    def shut_down(self) -> None:
        """Drains all servers, and returns when they have ended. The state stays in the store."""
        self._fleet.shut_down()
        self._thread.join()

    def place(self) -> dict[str, Any]:
        """Returns the node and the process of the coordinator."""
        return {
            "node": ray.get_runtime_context().get_node_id(),
            "process_id": os.getpid(),
        }

    def _run(self) -> None:
        try:
            self._fleet.run()
        except Exception:  # noqa: BLE001 (a bug, or another coordinator has begun)
            _log.exception("fleet_coordinator_failed")
            flush_logs()
            # Ray starts it again.
            os._exit(1)


class Servers(Protocol):
    """`RayServers`."""

    def rooms(self) -> list[ServerRoom]: ...
    def start(self, replica: Replica) -> None: ...
    def look(self, replicas: Sequence[Replica]) -> dict[str, Looked]: ...
    def stop(self, replica: Replica) -> None: ...
    def end(self, replica: Replica) -> None: ...
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
    ) -> None:
        """Takes over the fleet, and answers HTTP. Raises OSError, DataLoss and InvalidConfig."""
        self._store = store
        self._clock = clock
        # Guards the replicas' state.
        self._lock = threading.Lock()
        self._config = self._read_config()
        term = Term(store)
        self._replica_store = StoredText(store, term, REPLICAS_KEY)
        text = self._replica_store.read()
        self._replicas = ReplicaState() if text is None else replica_state_from_json(text)
        self._decision = ReplicaDecision(state=self._replicas)
        # Held while a report is taken, and while the members change.
        self._members_lock = threading.Lock()
        self._began_ns = clock.now_ns()
        self._looked: Mapping[str, Looked] = {}
        self._is_stopping = False
        self._servers = make_servers(self._ray)
        metrics = FleetMetrics(clock)
        self._coordinator = Coordinator(
            StoredText(store, term, STATE_KEY),
            self._send,
            self._config.waves,
            clock,
            metrics,
        )
        self._links = ServerLinks(
            connect=self._servers.client,
            receive=self.receive,
            thread_count=self._config.coordinator.poll_threads,
            observer=metrics,
        )
        self._set_members()
        # No document yet: a fleet that has not been looked at is not an empty one.
        self.registry = ""
        api = FleetApi(
            lambda: self._coordinator, self._config.waves, lambda: self.registry, clock, metrics
        )
        route = Route(REPLICAS_PATH, self._answer_replicas, methods=["GET", "POST"])
        self._http = fleet_http([*api.routes, route], host, 0)
        self._http.start()
        self.address = f"{host}:{self._http.port}"

    def shut_down(self) -> None:
        """Lets all servers leave, and ends `run` when they have ended."""
        self._is_stopping = True

    def run(self) -> None:
        """Decides again and again. Raises FailedPrecondition if another coordinator has begun."""
        _log.info("fleet_started", http=self.address, replicas=len(self._replicas.replicas))
        wake = threading.Condition()
        while not (self._is_stopping and not self._replicas.replicas):
            self._links.poll()
            with wake:
                self._clock.wait(wake, self._config.coordinator.poll_seconds)
            try:
                self.step()
            except OSError as error:
                # The store did not answer: nothing was decided, and the servers serve on.
                _log.error("fleet_state_not_written", reason=str(error))
        self.close()

    def step(self) -> None:
        """Looks, decides and acts once. Raises OSError, with nothing done, if the store does not answer."""
        with self._lock:
            rows = [*self._replicas.replicas.values()]
            self._looked = self._servers.look(rows)
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
        """Lets the servers of a model restart, or all. Any thread. Raises OSError, with nothing done."""
        with self._lock:
            state = with_restarts(self._replicas, model)
            self._replica_store.write(state.as_json())
            self._replicas = state

    def close(self) -> None:
        """Ends HTTP and the calls to servers. The servers serve on."""
        self._http.stop()
        self._links.stop()
        self._http.join()

    @property
    def _ray(self) -> RaySettings:
        assert self._config.ray is not None
        return self._config.ray

    def _read_config(self) -> FleetConfig:
        text = self._store.get(CONFIG_KEY)
        config = parse_fleet_config(text or "")
        if config.ray is None:
            raise FailedPrecondition("the fleet's configuration has no table [ray]")
        return config

    def _decide_replicas(self) -> None:
        swapping = [name for name, model in self._coordinator.state.models.items() if model.rollout]
        inputs = ReplicaInputs(
            wanted=() if self._is_stopping else self._ray.wanted(),
            rooms=self._servers.rooms(),
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
        if decision.missing != self._decision.missing:
            _log.warning("fleet_replicas_missing", missing=dict(decision.missing))
        self._replicas, self._decision = decision.state, decision

    def _act(self) -> None:
        for row in self._decision.ends:
            self._servers.end(row)
        # The reports of a launch are no reports of the next one.
        started = {row.name for row in self._decision.starts}
        self._coordinator.set_servers(self._replicas.replicas.keys() - started)
        for row in self._decision.starts:
            self._servers.start(row)
        for row in self._decision.stops:
            self._servers.stop(row)

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
        model = sighting.report.models.get(self._replicas.replicas[name].model)
        return model is not None and model.default_version is not None

    def _is_lost(self, sighting: Sighting) -> bool:
        lost_ns = round(self._config.waves.lost_seconds * NS_PER_SECOND)
        return self._clock.now_ns() - sighting.seen_at_ns > lost_ns

    def _send(self, grants: Sequence[Grant]) -> None:
        rows = self._replicas.replicas
        self._links.send([replace(grant, server=_link(rows[grant.server])) for grant in grants])

    def _set_members(self) -> None:
        rows = self._replicas.replicas
        leaving = {name for name, row in rows.items() if row.phase != UP}
        with self._members_lock:
            self._coordinator.set_servers(rows, leaving)
        self._links.set_targets(
            {_link(row): self._servers.actor_name(row) for row in rows.values()}
        )

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

    def _registry_text(self) -> str:
        """Returns the registry. A launch is in it from its first answer as a ready server on.

        A proxy takes a server that it has not checked yet for a healthy one.
        """
        rows = self._replicas.replicas
        sightings = self._coordinator.sightings
        servers = [
            FleetServer(name=name, admin="", grpc=looked.grpc, http=looked.http)
            for name, looked in self._looked.items()
            if name in rows and rows[name].was_ready and looked.grpc and not looked.is_gone
        ]
        registered_rows = registered(
            servers, sightings, lambda name: self._is_lost(sightings[name])
        )
        return registry_document(
            replace(row, is_draining=row.is_draining or rows[row.name].phase != UP)
            for row in registered_rows
        )

    async def _answer_replicas(self, request: Request) -> Response:
        """GET: the replicas. POST {"model"}: restarts those of a model one by one; "": all."""
        if request.method == "POST":
            if "origin" in request.headers:
                raise PermissionDenied("a page of a browser may not operate the fleet")
            self.restart(str(parse_object(await request.body()).get("model") or ""))
        return json_response(self._replica_document())

    def _replica_document(self) -> dict[str, Any]:
        state, looked = self._replicas, self._looked
        return {
            "missing": dict(self._decision.missing),
            "replicas": [
                {
                    "name": row.name,
                    "model": row.model,
                    "node": row.node,
                    "launch": row.launch,
                    "phase": row.phase,
                    "is_to_restart": row.comes_back or row.name in state.restarts,
                    "process_id": looked.get(row.name, Looked()).process_id,
                    "grpc": looked.get(row.name, Looked()).grpc,
                }
                for row in sorted(state.replicas.values(), key=lambda row: row.name)
            ],
        }


def _link(row: Replica) -> str:
    """Returns the name of the link to a launch, so that no report is taken for one of another launch."""
    return f"{row.name}/{row.launch}"

"""The calls to a Ray cluster for its nodes and for the actors of servers. Nothing is decided here."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.util
import structlog
from ray._private.state import state as cluster_state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fleet.config.ray_settings import RayModel, RaySettings
from fleet.lead.server_links import ServerClient
from fleet.ray.server_actor import ServerActor
from fleet.replicas.found_replicas import FoundLaunch
from fleet.replicas.placement import ServerRoom
from fleet.replicas.replicas import Replica
from serving.base.errors import Unavailable

NAMESPACE = "millpond"
"""Ray's namespace of all actors that belong to fleets."""

REQUESTS_RESOURCE = "millpond_requests_per_second"
"""The custom resource of Ray that says how many requests per second a node may get."""

# The number of calls that a server's actor answers at the same time. A drain takes long, and reports, grants
# and looks must not wait for it.
_CONCURRENCY = 8
_NS_PER_MILLISECOND = 1_000_000

# These errors mean that Ray's head node or the actor's node does not answer. The actor may still live.
_NO_ANSWER = (
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.GetTimeoutError,
    ray.exceptions.RpcError,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ActorAnswer:
    """The last answer of a launch's actor. It has no addresses until the server has started.

    If the launch `is_gone`, `reason` says why it has ended; "" if that is not known.
    """

    grpc: str = ""
    http: str = ""
    process_id: int = 0
    is_gone: bool = False
    reason: str = ""


@dataclass
class _Launch:
    """Everything that this process knows of one launch."""

    # The handle of its actor; None before it is found. Kept because each search by name asks Ray's head node.
    actor: Any = None
    # The call of `ServerActor.look` under way; None without one. The next look begins after its end.
    look: Any = None
    answer: ActorAnswer = ActorAnswer()
    # The last call that makes the server drain; None before the first.
    drain: Any = None


def room_of(
    node: Mapping[str, Any],
    draining: Mapping[str, int],
    available: Mapping[str, Mapping[str, float]],
) -> ServerRoom:
    """The room of a node, given as a row of `ray.nodes()`. Pure.

    `draining` has, by draining node, its deadline in Unix milliseconds; 0 if it has none. `available` has, by
    node, the resources that nothing has reserved. A resource that `available` lacks is used up.
    """
    name, resources = node["NodeID"], node["Resources"]
    free = available.get(name)
    return ServerRoom(
        name=name,
        memory_bytes=int(resources.get("memory", 0)),
        requests_per_second=float(resources.get(REQUESTS_RESOURCE, float("inf"))),
        is_draining=name in draining,
        drain_deadline_ns=draining.get(name, 0) * _NS_PER_MILLISECOND,
        free_bytes=None if free is None else int(free.get("memory", 0)),
    )


def server_flags(
    settings: RaySettings, model: RayModel, replica: Replica
) -> tuple[dict[str, Any], str]:
    """The arguments of a server's `ModelServer`, and the path of its log. Pure."""
    flags: dict[str, Any] = {
        **settings.flags_of(model),
        "model_name": model.name,
        "base_path": model.base_path,
    }
    if settings.state_directory:
        # The fleet's name is part of the path, because another fleet may have a model of the same name.
        flags["state_directory"] = f"{settings.state_directory}/{settings.name}/{replica.name}"
    log_path = ""
    if settings.log_directory:
        log_path = f"{settings.log_directory}/{settings.name}/{replica.name}-{replica.launch}.log"
    return flags, log_path


def death_reason(text: str) -> str:
    """The reason of an actor's death in one line, from Ray's text. Pure.

    If the server did not start, Ray's text ends with the error of the start. That error contains the end of the
    server's log.
    """
    _, separator, error = text.rpartition(f"{Unavailable.__name__}: ")
    return " ".join(error.split()) if separator else text.strip().partition("\n")[0]


def found_launches(
    fleet: str, living: Collection[str], table: Iterable[Mapping[str, Any]]
) -> list[FoundLaunch]:
    """The launches of a fleet's servers. Pure.

    `table` has the rows of Ray's table of actors, and `living` the names of the actors that have not ended.
    """
    found = []
    for row in table:
        of_fleet, _, rest = row["Name"].partition("/")
        name, _, launch = rest.rpartition("/")
        if of_fleet == fleet and name and launch.isdecimal():
            runs = row["State"] == "ALIVE" and row["Name"] in living
            found.append(FoundLaunch(name, int(launch), row["Address"]["NodeID"] if runs else ""))
    return found


class RayServers:
    """The actors of a fleet's servers. One thread uses it, but any thread may call `client`.

    Each method raises Unavailable if Ray does not answer. Then the caller may repeat it.

    An actor is *detached*: it outlives the coordinator. Ray does not restart the actor, because only the
    coordinator decides what runs. An actor runs on its replica's node or not at all.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._actor_class = ray.remote(ServerActor)
        self._launches: dict[int, _Launch] = {}

    def rooms(self) -> list[ServerRoom]:
        """The room of each node that is alive."""
        with _ray_calls():
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            draining = cluster_state.get_draining_nodes()
            available = cluster_state.available_resources_per_node()  # type: ignore[no-untyped-call]
        return [room_of(node, draining, available) for node in nodes if node["Alive"]]

    def start(self, replica: Replica) -> None:
        """Creates the actor of a launch. Does not wait until it runs."""
        model = next(item for item in self._settings.models if item.name == replica.model)
        flags, log_path = server_flags(self._settings, model, replica)
        with _ray_calls():
            self._actor_class.options(
                name=self.actor_name(replica),
                namespace=NAMESPACE,
                # The name contains the launch. So an actor with this name was created by an earlier attempt.
                get_if_exists=True,
                lifetime="detached",
                max_restarts=0,
                max_concurrency=_CONCURRENCY,
                num_cpus=self._settings.cpus,
                memory=replica.room_bytes,
                scheduling_strategy=NodeAffinitySchedulingStrategy(replica.node, soft=False),
            ).remote(flags, log_path, replica.ports)
        _log.info(
            "fleet_server_started", server=replica.name, launch=replica.launch, node=replica.node
        )

    def look(self, replicas: Sequence[Replica]) -> dict[str, ActorAnswer]:
        """Asks the present launch of each replica, and returns its last answer by name. Does not wait."""
        launches = {replica.launch for replica in replicas}
        for launch in self._launches.keys() - launches:
            del self._launches[launch]
        for replica in replicas:
            self._look(replica)
        return {row.name: self._launch(row).answer for row in replicas}

    def stop(self, replica: Replica) -> None:
        """Makes the server of a launch drain. Does nothing while it drains, and repeats a call that failed."""
        launch = self._launch(replica)
        call = launch.drain
        if call is not None and not self._log_failure(replica, call):
            return
        actor = self._actor(replica)
        if actor is None:
            return
        with _ray_calls():
            launch.drain = actor.drain.remote()
        if call is None:
            _log.info("fleet_server_stopped", server=replica.name, launch=replica.launch)

    def end(self, replica: Replica) -> None:
        """Removes all that is left of a launch: its actor, and its server if that still runs."""
        self._launch(replica).drain = None
        actor = self._actor(replica)
        if actor is not None:
            with _ray_calls():
                ray.kill(actor, no_restart=True)
        _log.info("fleet_server_ended", server=replica.name, launch=replica.launch)

    def orphans(self, replicas: Sequence[Replica]) -> list[str]:
        """The names of server actors of this fleet that belong to no launch of these replicas."""
        with _ray_calls():
            named: Any = ray.util.list_named_actors(all_namespaces=True)
        names = {row["name"] for row in named if row["namespace"] == NAMESPACE}
        known = {self.actor_name(row) for row in replicas}
        return sorted(filter(self._is_server, names - known))

    def launches(self) -> list[FoundLaunch]:
        """The launches of this fleet's servers that Ray knows. Servers that have ended are among them."""
        with _ray_calls():
            named: Any = ray.util.list_named_actors(all_namespaces=True)
            table: dict[str, dict[str, Any]] = cluster_state.actor_table(None)
        living = {row["name"] for row in named if row["namespace"] == NAMESPACE}
        return found_launches(self._settings.name, living, table.values())

    def end_orphan(self, actor_name: str) -> None:
        """Ends an actor that `orphans` has returned, and its server."""
        with _ray_calls():
            try:
                actor = ray.get_actor(actor_name, namespace=NAMESPACE)
            except ValueError:
                # The actor has ended in the meantime.
                return
            ray.kill(actor, no_restart=True)
        _log.warning("fleet_orphan_ended", actor=actor_name)

    def client(self, actor_name: str) -> ServerClient:
        """Makes a client for the server of this actor. Any thread."""
        return ActorClient(actor_name)

    def actor_name(self, replica: Replica) -> str:
        return f"{self._settings.name}/{replica.name}/{replica.launch}"

    def _launch(self, replica: Replica) -> _Launch:
        return self._launches.setdefault(replica.launch, _Launch())

    def _look(self, replica: Replica) -> None:
        """Takes the answer of the last look if it has come, and then asks the actor again."""
        launch = self._launch(replica)
        if launch.look is not None:
            if not _has_ended(launch.look):
                return
            launch.answer = self._answered(replica, launch)
        actor = self._actor(replica)
        if actor is None:
            launch.answer = replace(launch.answer, is_gone=True)
        else:
            with _ray_calls():
                launch.look = actor.look.remote()

    def _answered(self, replica: Replica, launch: _Launch) -> ActorAnswer:
        """The answer of the look that has ended; the answer before it if Ray could not ask the actor."""
        before = launch.answer
        try:
            answer = ray.get(launch.look)
        except _NO_ANSWER:
            return before
        except ray.exceptions.RayError as error:
            reason = death_reason(str(error))
            if not before.is_gone:
                _log.warning("fleet_server_died", server=replica.name, reason=reason)
            return ActorAnswer(is_gone=True, reason=reason)
        status, reason = answer["exit_status"], ""
        if status is not None:
            # Actors of earlier releases do not name the log.
            log = f"; see its log, {answer['log_path']}" if "log_path" in answer else ""
            reason = f"its process ended with status {status}{log}"
            if not before.is_gone:
                note = _log.warning if status else _log.info
                note("fleet_server_exited", server=replica.name, reason=reason)
        return ActorAnswer(
            answer["grpc"], answer["http"], answer["process_id"], status is not None, reason
        )

    def _actor(self, replica: Replica) -> Any:
        """Finds the actor of a launch; None if it was never created, or has ended."""
        launch = self._launch(replica)
        if launch.actor is None:
            try:
                with _ray_calls():
                    launch.actor = ray.get_actor(self.actor_name(replica), namespace=NAMESPACE)
            except ValueError:
                return None
        return launch.actor

    def _log_failure(self, replica: Replica, call: Any) -> bool:
        """Logs the error of a call that makes a server drain. Returns True if the call has ended with an error."""
        if not _has_ended(call):
            return False
        try:
            ray.get(call)
        except ray.exceptions.RayError as error:
            _log.warning("fleet_drain_repeated", server=replica.name, reason=_first_line(error))
            return True
        return False

    def _is_server(self, actor_name: str) -> bool:
        """True for the actor of a server of this fleet.

        The name of a coordinator's actor has two parts, and the name of a server's actor has three.
        """
        fleet, _, rest = actor_name.partition("/")
        return fleet == self._settings.name and rest.count("/") == 1


class ActorClient:
    """A `ServerClient` that calls a server through its actor."""

    def __init__(self, actor_name: str) -> None:
        self._actor_name = actor_name
        self._actor: Any = None

    def fleet_report(
        self, latency_edges_ns: Sequence[int], *, timeout_seconds: float = 10
    ) -> dict[str, Any]:
        """See `ServerClient`."""
        report: dict[str, Any] = self._call(
            "fleet_report", timeout_seconds, list(latency_edges_ns), timeout_seconds
        )
        return report

    def grant(
        self, name: str, version: int | None, order: int, *, timeout_seconds: float = 10
    ) -> int | None:
        """See `ServerClient`."""
        granted: int | None = self._call(
            "grant", timeout_seconds, name, version, order, timeout_seconds
        )
        return granted

    def close(self) -> None:
        """See `ServerClient`."""

    def _call(self, method: str, timeout_seconds: float, *arguments: object) -> Any:
        try:
            if self._actor is None:
                self._actor = ray.get_actor(self._actor_name, namespace=NAMESPACE)
            return ray.get(getattr(self._actor, method).remote(*arguments), timeout=timeout_seconds)
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise Unavailable(f"the server's actor does not answer: {reason}") from error


@contextmanager
def _ray_calls() -> Iterator[None]:
    """Raises Unavailable for Ray's errors, because callers take an OSError for an error of the store."""
    try:
        yield
    except (ray.exceptions.RayError, OSError, RuntimeError) as error:
        raise Unavailable(f"Ray does not answer: {_first_line(error)}") from error


def _has_ended(reference: Any) -> bool:
    with _ray_calls():
        ended, _ = ray.wait([reference], timeout=0)
    return bool(ended)


def _first_line(error: BaseException) -> str:
    """The first line of an error, because Ray's errors have many lines."""
    return str(error).strip().partition("\n")[0]

"""The calls to a Ray cluster: its nodes, and the actors of servers. No decisions."""

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
"""The namespace of all actors of fleets."""

REQUESTS_RESOURCE = "millpond_requests_per_second"
"""The custom resource by which a node states the requests per second that it takes."""

# The number of calls that a server's actor answers at once. A drain takes long, and reports, grants and
# looks must not wait for it.
_CONCURRENCY = 8
_NS_PER_MILLISECOND = 1_000_000

# The actor may still live: it is Ray's head node, or the actor's node, that does not answer.
_NO_ANSWER = (
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.GetTimeoutError,
    ray.exceptions.RpcError,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ActorAnswer:
    """The last answer of a launch's actor. It has no addresses until its server has started.

    If the launch `is_gone`, `reason` is why it has ended, or "" if that is not known.
    """

    grpc: str = ""
    http: str = ""
    process_id: int = 0
    is_gone: bool = False
    reason: str = ""


def room_of(
    node: Mapping[str, Any],
    draining: Mapping[str, int],
    available: Mapping[str, Mapping[str, float]],
) -> ServerRoom:
    """The room of a node, given as a row of `ray.nodes()`. Pure.

    `draining` are the deadlines of nodes that drain, in Unix milliseconds; 0 without a deadline.
    `available` are the resources of nodes that nothing has reserved. A resource that is missing there is
    used up.
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
        # Another fleet may have a model of this name.
        flags["state_directory"] = f"{settings.state_directory}/{settings.name}/{replica.name}"
    log_path = ""
    if settings.log_directory:
        log_path = f"{settings.log_directory}/{settings.name}/{replica.name}-{replica.launch}.log"
    return flags, log_path


def death_reason(text: str) -> str:
    """The reason of an actor's death in one line. Pure.

    If the server did not start, Ray's text ends with the error of its start, which has the end of its log.
    """
    _, separator, error = text.rpartition(f"{Unavailable.__name__}: ")
    return " ".join(error.split()) if separator else text.strip().partition("\n")[0]


def found_launches(
    fleet: str, living: Collection[str], table: Iterable[Mapping[str, Any]]
) -> list[FoundLaunch]:
    """The launches of a fleet's servers. Pure.

    `table` are the rows of Ray's table of actors, and `living` the names of those that have not ended.
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
    """The actors of a fleet's servers. One thread; `client` for any thread.

    Each method raises Unavailable if Ray does not answer, and may be repeated then.

    An actor is *detached*: it outlives the coordinator. Ray does not restart it, because the coordinator
    decides that. It runs on its replica's node or not at all.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._actor_class = ray.remote(ServerActor)
        # By launch. Kept because Ray would ask its head node for each name.
        self._actors: dict[int, Any] = {}
        # By launch: the looks under way. The same actor is not asked again until its look has ended.
        self._looking: dict[int, Any] = {}
        self._answers: dict[int, ActorAnswer] = {}
        # By launch: the calls that make servers drain.
        self._draining: dict[int, Any] = {}

    def rooms(self) -> list[ServerRoom]:
        """The living nodes."""
        with _ray_calls():
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            draining = cluster_state.get_draining_nodes()
            available = cluster_state.available_resources_per_node()  # type: ignore[no-untyped-call]
        return [room_of(node, draining, available) for node in nodes if node["Alive"]]

    def start(self, replica: Replica) -> None:
        """Creates the actor of a launch, and does not wait for it."""
        model = next(item for item in self._settings.models if item.name == replica.model)
        flags, log_path = server_flags(self._settings, model, replica)
        with _ray_calls():
            self._actor_class.options(
                name=self.actor_name(replica),
                namespace=NAMESPACE,
                # The name contains the launch, so an actor that exists was created by an earlier attempt.
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
        """Asks the present launch of each replica, and returns its last answer. Does not wait."""
        launches = {replica.launch for replica in replicas}
        for known in (self._looking, self._answers, self._actors, self._draining):
            for launch in known.keys() - launches:
                del known[launch]
        for replica in replicas:
            self._look(replica)
        return {row.name: self._answers.get(row.launch, ActorAnswer()) for row in replicas}

    def stop(self, replica: Replica) -> None:
        """Makes the server of a launch drain. Does nothing while it drains, and repeats a call that failed."""
        call = self._draining.get(replica.launch)
        if call is not None and not self._log_failure(replica, call):
            return
        actor = self._actor(replica)
        if actor is None:
            return
        with _ray_calls():
            self._draining[replica.launch] = actor.drain.remote()
        if call is None:
            _log.info("fleet_server_stopped", server=replica.name, launch=replica.launch)

    def end(self, replica: Replica) -> None:
        """Removes what is left of a launch: its actor, and its server if it still runs."""
        self._draining.pop(replica.launch, None)
        actor = self._actor(replica)
        if actor is not None:
            with _ray_calls():
                ray.kill(actor, no_restart=True)
        _log.info("fleet_server_ended", server=replica.name, launch=replica.launch)

    def orphans(self, replicas: Sequence[Replica]) -> list[str]:
        """The actors of this fleet's servers that belong to none of these launches."""
        with _ray_calls():
            named: Any = ray.util.list_named_actors(all_namespaces=True)
        names = {row["name"] for row in named if row["namespace"] == NAMESPACE}
        known = {self.actor_name(row) for row in replicas}
        return sorted(filter(self._is_server, names - known))

    def launches(self) -> list[FoundLaunch]:
        """The launches of this fleet's servers that Ray knows, also of servers that have ended."""
        with _ray_calls():
            named: Any = ray.util.list_named_actors(all_namespaces=True)
            table: dict[str, dict[str, Any]] = cluster_state.actor_table(None)
        living = {row["name"] for row in named if row["namespace"] == NAMESPACE}
        return found_launches(self._settings.name, living, table.values())

    def end_orphan(self, actor_name: str) -> None:
        """Ends an actor that `orphans` has returned, with its server."""
        with _ray_calls():
            try:
                actor = ray.get_actor(actor_name, namespace=NAMESPACE)
            except ValueError:
                # It has ended in the meantime.
                return
            ray.kill(actor, no_restart=True)
        _log.warning("fleet_orphan_ended", actor=actor_name)

    def client(self, actor_name: str) -> ServerClient:
        """A client of the server with this actor. Any thread."""
        return ActorClient(actor_name)

    def actor_name(self, replica: Replica) -> str:
        return f"{self._settings.name}/{replica.name}/{replica.launch}"

    def _look(self, replica: Replica) -> None:
        launch = replica.launch
        reference = self._looking.get(launch)
        if reference is not None:
            if not _has_ended(reference):
                return
            self._answers[launch] = self._answer(replica, reference)
        actor = self._actor(replica)
        if actor is None:
            before = self._answers.get(launch, ActorAnswer())
            self._answers[launch] = replace(before, is_gone=True)
        else:
            with _ray_calls():
                self._looking[launch] = actor.look.remote()

    def _answer(self, replica: Replica, reference: Any) -> ActorAnswer:
        before = self._answers.get(replica.launch, ActorAnswer())
        try:
            answer = ray.get(reference)
        except _NO_ANSWER:
            return before
        except ray.exceptions.RayError as error:
            reason = death_reason(str(error))
            if not before.is_gone:
                _log.warning("fleet_server_died", server=replica.name, reason=reason)
            return ActorAnswer(is_gone=True, reason=reason)
        status, reason = answer["exit_status"], ""
        if status is not None:
            # An actor of an earlier release does not name the log.
            log = f"; see its log, {answer['log_path']}" if "log_path" in answer else ""
            reason = f"its process ended with status {status}{log}"
            if not before.is_gone:
                note = _log.warning if status else _log.info
                note("fleet_server_exited", server=replica.name, reason=reason)
        return ActorAnswer(
            answer["grpc"], answer["http"], answer["process_id"], status is not None, reason
        )

    def _actor(self, replica: Replica) -> Any:
        """Finds the actor of a launch; None if it was never created, or is dead."""
        if replica.launch not in self._actors:
            try:
                with _ray_calls():
                    actor = ray.get_actor(self.actor_name(replica), namespace=NAMESPACE)
            except ValueError:
                return None
            self._actors[replica.launch] = actor
        return self._actors[replica.launch]

    def _log_failure(self, replica: Replica, call: Any) -> bool:
        """Logs the error of the call that makes a server drain, and returns True, if the call has ended
        with one.
        """
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

        A coordinator's name has two parts, and a server's more.
        """
        fleet, _, rest = actor_name.partition("/")
        return fleet == self._settings.name and rest.count("/") == 1


class ActorClient:
    """The `ServerClient` of a server, through its actor."""

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
    """Raises Unavailable for Ray's errors.

    Some of them are OSErrors, which callers would take for errors of the store.
    """
    try:
        yield
    except (ray.exceptions.RayError, OSError, RuntimeError) as error:
        raise Unavailable(f"Ray does not answer: {_first_line(error)}") from error


def _has_ended(reference: Any) -> bool:
    with _ray_calls():
        ended, _ = ray.wait([reference], timeout=0)
    return bool(ended)


def _first_line(error: BaseException) -> str:
    """The first line: Ray's own text has many."""
    return str(error).strip().partition("\n")[0]

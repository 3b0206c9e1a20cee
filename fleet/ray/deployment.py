"""Puts a fleet on a Ray cluster, and reaches the one that is there."""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address

from fleet.config.config import (
    OPERATION_PATH,
    REPLICAS_PATH,
    STATUS_PATH,
    parse_fleet_config,
)
from fleet.config.ray_settings import RaySettings
from fleet.files.registry import REGISTRY_PATH
from fleet.ray.cluster import NAMESPACE
from fleet.ray.coordinator_actor import CoordinatorActor, coordinator_name
from fleet.ray.engine import CONFIG_KEY, config_digest
from fleet.ray.event_list import LoggedEvent
from fleet.ray.key_value_store import AnotherCluster, KeyValueStore
from fleet.ray.operator_token import TOKEN_HEADER, TOKEN_KEY
from fleet.ray.replicas import STOPPED_KEY
from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.base.errors import FailedPrecondition, InvalidConfig, NotFound, Unavailable

ACTOR_SECONDS = 10.0
"""The deadline of a call to the coordinator's actor. The actor misses it only while it is being replaced."""

START_SECONDS = 120.0
"""The longest that a coordinator takes to start, on a busy cluster that starts Python slowly."""

# The number of calls that the coordinator's actor answers at the same time. A few are enough, because the
# calls are short, and the coordinator's decisions and HTTP run on other threads.
_CONCURRENCY = 4
_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 10.0
_STOPPING = "its servers drain"


def deploy(config: str, *, clock: Clock | None = None) -> "Deployment":
    """Puts the fleet of a configuration on its cluster, and returns once its coordinator answers.

    `config` is the text of the TOML file, with a table `[ray]`. If a fleet of the same name runs, it gets
    this configuration: its servers start, leave or restart one after the other. If that fleet is stopping,
    it serves on instead. Connects this process to the cluster first.

    Raises InvalidConfig, Unavailable, and FailedPrecondition if there is no cluster at the address, or this
    process is connected to another cluster.
    """
    settings = _ray_settings(config)
    _connect(settings)
    deployment = Deployment(settings.name, clock or SystemClock())
    deployment.change(config)
    return deployment


def attach(config: str, *, clock: Clock | None = None) -> "Deployment":
    """Connects this process to the cluster of a configuration, and returns its fleet. Changes nothing."""
    settings = _ray_settings(config)
    _connect(settings)
    return Deployment(settings.name, clock or SystemClock())


class NoFleet(Unavailable):
    """No fleet of this name runs on the cluster."""


class Deployment:
    """A fleet on a cluster. Any thread, in a process that is connected to the cluster."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._store = KeyValueStore(name)

    def change(self, config: str) -> None:
        """Gives the fleet a configuration, and waits until its coordinator runs with it. Raises Unavailable."""
        try:
            self._store.put(CONFIG_KEY, config)
            self._store.remove(STOPPED_KEY)
        except OSError as error:
            raise Unavailable(str(error)) from error
        start_ns = self._clock.now_ns()
        killed: list[Any] = []
        reason = "it has another configuration"
        while True:
            try:
                if self._bring_up(killed):
                    return
            except Unavailable as error:
                reason = str(error)
            if seconds_since(self._clock, start_ns) > START_SECONDS:
                raise Unavailable(f"the coordinator does not start: {reason}")
            pause(self._clock, _POLL_SECONDS)

    def address(self) -> str:
        """The HOST:PORT at which the coordinator's HTTP is now. Raises Unavailable."""
        address: str = self._ask_actor("address", ACTOR_SECONDS)
        return address

    def place(self) -> dict[str, Any]:
        """The `node` and the `process_id` that the coordinator has now. Raises Unavailable."""
        place: dict[str, Any] = self._ask_actor("place", ACTOR_SECONDS)
        return place

    def status(self) -> dict[str, Any]:
        """The document that `millpond fleet status --json` prints. Raises Unavailable."""
        return self._json("GET", STATUS_PATH)

    def registry(self) -> str:
        """The registry's document. Raises Unavailable."""
        return self._request("GET", REGISTRY_PATH)

    def replicas(self) -> dict[str, Any]:
        """The document that `millpond fleet replicas` prints. Raises Unavailable."""
        return self._json("GET", REPLICAS_PATH)

    def events(
        self, after: LoggedEvent | None, front: str = "", problems: Sequence[str] = ()
    ) -> list[LoggedEvent]:
        """The events that the coordinator has logged after `after`; None: since its process began.

        Also reports the `problems` of a `front` to the coordinator, which shows them in its status. Raises
        Unavailable.
        """
        last = ("", 0) if after is None else (after.boot, after.number)
        events: list[LoggedEvent] = self._ask_actor(
            "events", ACTOR_SECONDS, *last, front, [*problems]
        )
        return events

    def operator_token(self) -> str:
        """The token that marks requests as an operator's; "" if there is none yet. Raises Unavailable."""
        try:
            return self._store.get(TOKEN_KEY) or ""
        except OSError as error:
            raise Unavailable(str(error)) from error

    def is_stopped(self) -> bool:
        """True if an operator has stopped the fleet. False otherwise, also if the cluster does not answer."""
        try:
            return self._store.get(STOPPED_KEY) is not None
        except OSError:
            return False

    def is_forgotten(self) -> bool:
        """True if the cluster was started anew, so that it does not know the fleet any more."""
        try:
            return self._store.get(CONFIG_KEY) is None
        except AnotherCluster:
            return True
        except OSError:
            return False

    def operate(self, operation: str, model: str, **values: Any) -> dict[str, Any]:
        """Does what `millpond fleet OPERATION MODEL` does. Raises FailedPrecondition and Unavailable."""
        return self._json(
            "POST", OPERATION_PATH, {"operation": operation, "model": model, **values}
        )

    def restart(self, model: str = "") -> None:
        """Restarts the servers of a model, or all servers, one after the other. Does not wait for them."""
        self._json("POST", REPLICAS_PATH, {"model": model})

    def shut_down(self, timeout_seconds: float = 600) -> None:
        """Lets all servers leave and drain, and returns when the coordinator has ended.

        Raises Unavailable if no fleet runs, and at the timeout. After the timeout the fleet still goes on to
        stop.
        """
        start_ns = self._clock.now_ns()
        self._actor()
        is_stopping = False
        while (reason := self._why_running(is_stopping)) is not None:
            is_stopping = is_stopping or reason == _STOPPING
            if seconds_since(self._clock, start_ns) > timeout_seconds:
                raise Unavailable(f"the fleet still runs after {timeout_seconds:g} s: {reason}")
            pause(self._clock, _POLL_SECONDS)

    def _why_running(self, is_stopping: bool) -> str | None:
        """Asks the fleet to stop, unless it `is_stopping`. Returns why it still runs; None if it does not."""
        try:
            if not is_stopping:
                self._ask_actor("shut_down", ACTOR_SECONDS)
            self._actor()
        except NoFleet:
            return None
        except Unavailable as error:
            return str(error)
        return _STOPPING

    def _bring_up(self, killed: list[Any]) -> bool:
        """Makes a coordinator with the present configuration run. Returns True if it runs and answers.

        Creates the actor if there is none. If the actor has another configuration, kills its process, and Ray
        starts it anew, as after a crash. Ray's kill returns before the process has ended, so the process may
        answer once more. `killed` lists the killed processes, so that each is killed only once. Raises
        Unavailable.
        """
        actor = self._created()
        with _answering("the cluster"):
            wanted = self._store.get(CONFIG_KEY) or ""
        deployed = self._ask_actor("deployed", ACTOR_SECONDS)
        if deployed["config"] == config_digest(wanted) and not deployed["is_stopping"]:
            self.status()
            return True
        if deployed["process"] not in killed:
            killed.append(deployed["process"])
            with _answering("the cluster"):
                ray.kill(actor, no_restart=False)
        return False

    def _created(self) -> Any:
        """Finds the actor of the coordinator, or creates it. Raises Unavailable."""
        options: dict[str, Any] = {
            "name": coordinator_name(self._name),
            "namespace": NAMESPACE,
            "get_if_exists": True,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_concurrency": _CONCURRENCY,
            "num_cpus": 0,
        }
        try:
            with _answering("the cluster"):
                return ray.remote(CoordinatorActor).options(**options).remote(self._name)
        except ValueError as error:
            raise Unavailable(f"the coordinator ends at this moment: {error}") from error

    def _actor(self) -> Any:
        try:
            with _answering("the cluster"):
                return ray.get_actor(coordinator_name(self._name), namespace=NAMESPACE)
        except ValueError as error:
            raise NoFleet(
                f"no fleet {self._name!r} runs on this cluster: use millpond fleet start"
            ) from error

    def _ask_actor(self, method: str, timeout_seconds: float, *arguments: object) -> Any:
        actor = self._actor()
        try:
            call = getattr(actor, method)
        except AttributeError as error:
            raise Unavailable(f"the coordinator is of another release: {error}") from error
        with _answering("the coordinator"):
            return ray.get(call.remote(*arguments), timeout=timeout_seconds)

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self._request(method, path, body))
        return reply

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        connection = http.client.HTTPConnection(self.address(), timeout=ACTOR_SECONDS)
        # A request with a body changes the fleet, so it needs the token.
        headers = {} if body is None else {TOKEN_HEADER: self.operator_token()}
        try:
            text = None if body is None else json.dumps(body).encode()
            connection.request(method, path, text, headers)
            response = connection.getresponse()
            reply = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the coordinator does not answer: {error}") from error
        finally:
            connection.close()
        if response.status == 404:
            raise NotFound(_error_of(reply))
        if response.status == 503:
            raise Unavailable(_error_of(reply))
        if response.status != 200:
            raise FailedPrecondition(_error_of(reply))
        return reply


def _error_of(reply: str) -> str:
    """The message with which the coordinator has refused a request."""
    try:
        return str(json.loads(reply)["error"])
    except (ValueError, KeyError, TypeError):
        return reply


def _ray_settings(config: str) -> RaySettings:
    settings = parse_fleet_config(config).ray
    if settings is None:
        raise InvalidConfig("the fleet's configuration has no table [ray]")
    return settings


def _connect(settings: RaySettings) -> None:
    """Connects this process to the cluster. Raises FailedPrecondition if it is connected to another one."""
    if ray.is_initialized():
        _check_address(settings.address)
        return
    _check_reachable(settings.address)
    try:
        ray.init(
            address=settings.address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(settings.address, error) from error


def _no_cluster(address: str, error: Exception) -> FailedPrecondition:
    return FailedPrecondition(
        f"no Ray cluster at {address!r} ({error}); start one (ray start --head), or set address in [ray]"
    )


def _check_reachable(address: str) -> None:
    """Raises FailedPrecondition if nothing listens at HOST:PORT, because Ray itself tries for many minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _check_address(wanted: str) -> None:
    """Raises FailedPrecondition if this process is connected to another cluster than the wanted one."""
    # "auto" means any cluster. A ray:// address cannot be compared, because it is the address of a proxy that
    # the cluster does not know.
    if wanted == "auto" or wanted.startswith("ray://"):
        return
    connected = ray.get_runtime_context().gcs_address
    try:
        is_same = canonicalize_bootstrap_address(wanted) == connected
    except (OSError, ValueError) as error:
        raise FailedPrecondition(f"ray: address {wanted!r} is not HOST:PORT: {error}") from error
    if not is_same:
        raise FailedPrecondition(
            f"this process is connected to the Ray cluster at {connected}, and the fleet's is at "
            f"{wanted!r}: deploy it in another process, or call ray.shutdown() before"
        )


@contextmanager
def _answering(what: str) -> Iterator[None]:
    """Raises Unavailable for the errors of Ray and of its key-value store."""
    try:
        yield
    except (ray.exceptions.RayError, OSError, RuntimeError) as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise Unavailable(f"{what} does not answer: {reason}") from error

"""Puts a fleet on a Ray cluster, and reaches the one that is there."""

import http.client
import json
from collections.abc import Mapping
from typing import Any

import ray

from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.base.errors import FailedPrecondition, InvalidConfig, NotFound, Unavailable
from serving.client.fleet_registry import REGISTRY_PATH
from serving.fleet.config import (
    OPERATION_PATH,
    REPLICAS_PATH,
    STATUS_PATH,
    parse_fleet_config,
)
from serving.fleet.ray.cluster import NAMESPACE
from serving.fleet.ray.coordinator_actor import CONFIG_KEY, CoordinatorActor
from serving.fleet.ray.key_value_store import KeyValueStore
from serving.fleet.ray_settings import RaySettings

CALL_SECONDS = 10.0
START_SECONDS = 120.0
"""A coordinator answers within this time, on a busy cluster that starts Python slowly."""

# Its loop, its HTTP and `shut_down` have threads of their own.
_CONCURRENCY = 4
_POLL_SECONDS = 0.2


def deploy(config: str, *, clock: Clock | None = None) -> "Deployment":
    """Puts the fleet of a configuration on its cluster, and returns once its coordinator answers.

    `config` is the text of the TOML file, with a table [ray]. A fleet of the same name that runs is
    changed: servers are added, leave or restart, one after the other. Connects this process to the cluster
    if it is not yet. Raises InvalidConfig, FailedPrecondition without a cluster, and Unavailable.
    """
    settings = _ray_settings(config)
    _connect(settings)
    store = KeyValueStore(settings.name)
    is_changed = store.get(CONFIG_KEY) not in (None, config)
    store.put(CONFIG_KEY, config)
    actor: Any = (
        ray.remote(CoordinatorActor)
        .options(
            name=_actor_name(settings.name),
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=_CONCURRENCY,
            num_cpus=0,
        )
        .remote(settings.name)
    )
    if is_changed:
        # It takes over from itself, as after a crash, with the new configuration.
        ray.kill(actor, no_restart=False)
    deployment = Deployment(settings.name, clock or SystemClock())
    deployment.wait_until_running()
    return deployment


def attach(config: str, *, clock: Clock | None = None) -> "Deployment":
    """Returns the fleet of a configuration that runs on its cluster, and changes nothing."""
    settings = _ray_settings(config)
    _connect(settings)
    return Deployment(settings.name, clock or SystemClock())


class Deployment:
    """A fleet on a cluster. Any thread, in a process that is connected to the cluster."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock

    def wait_until_running(self) -> None:
        """Waits until the coordinator answers. Raises Unavailable."""
        start_ns = self._clock.now_ns()
        while True:
            try:
                self.status()
            except Unavailable as error:
                if seconds_since(self._clock, start_ns) > START_SECONDS:
                    raise Unavailable(f"the coordinator does not start: {error}") from error
                pause(self._clock, _POLL_SECONDS)
            else:
                return

    def address(self) -> str:
        """Returns the HOST:PORT of the coordinator's HTTP, at present. Raises Unavailable."""
        address: str = self._ask_actor("address", CALL_SECONDS)
        return address

    def place(self) -> dict[str, Any]:
        """Returns the `node` and the `process_id` of the coordinator, at present. Raises Unavailable."""
        place: dict[str, Any] = self._ask_actor("place", CALL_SECONDS)
        return place

    def status(self) -> dict[str, Any]:
        """Returns what `millpond fleet status --json` prints. Raises Unavailable."""
        return self._json("GET", STATUS_PATH)

    def registry(self) -> str:
        """Returns the registry's document. Raises Unavailable."""
        return self._request("GET", REGISTRY_PATH)

    def replicas(self) -> dict[str, Any]:
        """Returns the replicas with their nodes, and those without room. Raises Unavailable."""
        return self._json("GET", REPLICAS_PATH)

    def operate(self, operation: str, model: str, **values: Any) -> dict[str, Any]:
        """Does what `millpond fleet OPERATION MODEL` does. Raises FailedPrecondition and Unavailable."""
        return self._json(
            "POST", OPERATION_PATH, {"operation": operation, "model": model, **values}
        )

    def restart(self, model: str = "") -> None:
        """Restarts the servers of a model, or all, one after the other. Does not wait for them."""
        self._json("POST", REPLICAS_PATH, {"model": model})

    def shut_down(self, timeout_seconds: float = 600) -> None:
        """Lets all servers leave and drain, and then ends the coordinator. Raises Unavailable."""
        self._ask_actor("shut_down", timeout_seconds)
        ray.kill(self._actor(), no_restart=True)

    def _actor(self) -> Any:
        try:
            return ray.get_actor(_actor_name(self._name), namespace=NAMESPACE)
        except ValueError as error:
            raise Unavailable(
                f"no fleet {self._name!r} runs on this cluster: use millpond fleet start"
            ) from error

    def _ask_actor(self, method: str, timeout_seconds: float) -> Any:
        try:
            return ray.get(getattr(self._actor(), method).remote(), timeout=timeout_seconds)
        except (ray.exceptions.RayError, TimeoutError) as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise Unavailable(f"the coordinator does not answer: {reason}") from error

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self._request(method, path, body))
        return reply

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        connection = http.client.HTTPConnection(self.address(), timeout=CALL_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode())
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the coordinator does not answer: {error}") from error
        finally:
            connection.close()
        if response.status == 404:
            raise NotFound(text)
        if response.status != 200:
            raise FailedPrecondition(text)
        return text


def _ray_settings(config: str) -> RaySettings:
    settings = parse_fleet_config(config).ray
    if settings is None:
        raise InvalidConfig("the fleet's configuration has no table [ray]")
    return settings


def _connect(settings: RaySettings) -> None:
    if ray.is_initialized():
        return
    try:
        ray.init(
            address=settings.address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise FailedPrecondition(
            f"no Ray cluster at {settings.address!r} ({error}); start one (ray start --head), or set "
            "address in [ray]"
        ) from error


def _actor_name(fleet: str) -> str:
    return f"{fleet}/coordinator"

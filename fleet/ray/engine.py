"""Puts the coordinator of a fleet on Ray together: its service, its right to lead, and its replicas."""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fleet.config.config import REPLICAS_PATH, FleetConfig, parse_fleet_config
from fleet.http.api import check_operator
from fleet.lead.engine import Engine
from fleet.lead.server_links import ServerClient
from fleet.ray.cluster import RayServers
from fleet.ray.front_problems import FrontProblems
from fleet.ray.key_value_store import KeyValueStore
from fleet.ray.leadership import RayLeadership
from fleet.ray.operator_token import TokenEntry, operator_token
from fleet.ray.replicas import RayReplicas
from fleet.service import FleetService
from serving.base.clock import Clock
from serving.base.errors import FailedPrecondition, Unavailable
from serving.base.json_requests import parse_object
from serving.http.app import json_response
from serving.server.admin_listener import OFF

CONFIG_KEY = "config"


@dataclass(frozen=True)
class RayCoordinator:
    """The coordinator of a fleet on Ray, and the digest of its configuration."""

    service: FleetService
    leadership: RayLeadership
    replicas: RayReplicas
    digest: str


class RayEngine(Engine):
    """The engine of a fleet on Ray, which starts and ends an actor for each server.

    Requests that change the fleet need a token (`operator_token.py`).
    """

    def __init__(
        self,
        replicas: RayReplicas,
        leadership: RayLeadership,
        servers: RayServers,
        token: str,
        fronts: FrontProblems | None,
    ) -> None:
        super().__init__(replicas, leadership)
        self._replicas = replicas
        self._leadership = leadership
        self._token = token
        self._fronts = fronts
        self._servers = servers
        self.routes = [_replicas_route(replicas)]

    @property
    def is_over(self) -> bool:
        """See `Engine`."""
        return self._leadership.is_over or self._replicas.has_stopped

    def client(self, target: str) -> ServerClient:
        """See `Engine`."""
        return self._servers.client(target)

    def entry(self, app: ASGIApp) -> ASGIApp:
        """See `Engine`."""
        return TokenEntry(app, self._token)

    def problems(self) -> list[str]:
        """See `Engine`."""
        of_fronts = self._fronts.present() if self._fronts is not None else []
        return [*self._replicas.problems(), *of_fronts]


def ray_coordinator(
    store: KeyValueStore,
    host: str,
    clock: Clock,
    servers: RayServers | None = None,
    fronts: FrontProblems | None = None,
) -> RayCoordinator:
    """Makes a coordinator with the configuration in the store. It serves HTTP at `host`.

    Its status also shows the problems of `fronts`. Raises OSError, InvalidConfig and FailedPrecondition.
    """
    text = store.get(CONFIG_KEY) or ""
    config = parse_fleet_config(text)
    if config.ray is None:
        raise FailedPrecondition("the fleet's configuration has no table [ray]")
    leadership, servers = RayLeadership(store, clock), servers or RayServers(config.ray)
    replicas = RayReplicas(
        config.ray,
        servers,
        leadership,
        store,
        clock,
        poll_seconds=config.coordinator.poll_seconds,
    )
    engine = RayEngine(replicas, leadership, servers, operator_token(store), fronts)
    service = FleetService(_on_node(config, host), clock, engine)
    return RayCoordinator(service, leadership, replicas, config_digest(text))


def config_digest(config: str) -> str:
    """A short text that differs for each configuration and each release of Millpond."""
    return hashlib.sha256(f"{version('millpond')}\n{config}".encode()).hexdigest()


def _on_node(config: FleetConfig, host: str) -> FleetConfig:
    """The configuration for the coordinator's actor. Drops the operators' door and the files.

    The fronts of the fleet have these.
    """
    listen = f"[{host}]:0" if ":" in host else f"{host}:0"
    coordinator = replace(config.coordinator, listen=listen, operators=OFF, registry_file="")
    return replace(config, coordinator=coordinator, haproxy=None)


def _replicas_route(replicas: RayReplicas) -> Route:
    async def answer(request: Request) -> Response:
        """Answers GET with the replicas.

        POST {"model"} restarts the replicas of a model one by one; "": of all models.
        """
        if request.method == "POST":
            check_operator(request)
            model = str(parse_object(await request.body()).get("model") or "")
            try:
                await asyncio.to_thread(replicas.restart, model)
            except OSError as error:
                raise Unavailable(
                    f"nothing is changed: the state cannot be written: {error}"
                ) from error
        return json_response(replicas.document())

    return Route(REPLICAS_PATH, answer, methods=["GET", "POST"])

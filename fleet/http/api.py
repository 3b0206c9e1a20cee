"""The HTTP of a coordinator: its status, the registry, and the operations of its operator."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleet.config.config import OPERATION_PATH, STATUS_PATH
from fleet.files.registry import REGISTRY_PATH
from fleet.http.metrics import FleetMetrics, metrics_route
from fleet.http.operator_door import OPERATOR
from fleet.http.page_routes import fleet_page_routes
from fleet.http.status import fleet_status
from fleet.lead.present_lead import PresentLead
from fleet.rollout import operations
from fleet.rollout.state import FleetState
from fleet.rollout.view import ModelView, model_views
from fleet.rollout.wave_settings import WaveSettings
from serving.base.clock import Clock
from serving.base.errors import InvalidArgument, PermissionDenied, Unavailable
from serving.base.json_requests import parse_object
from serving.base.name_text import listed
from serving.http.app import json_response

OPERATIONS = ("pause", "resume", "promote", "abort", "rollback", "allow")

_log = structlog.get_logger(__name__)

Change = Callable[[FleetState], FleetState]


def change_of(
    request: Mapping[str, Any],
    settings: WaveSettings,
    wall_ns: int,
    views: Mapping[str, ModelView] | None = None,
) -> Change:
    """Parses the request of an operation, with the keys operation, model, version and reason. Pure.

    Returns the change of the fleet's state. `views` has the servers of each model. Raises InvalidArgument.
    """
    name, model = request.get("operation"), request.get("model")
    reason = str(request.get("reason") or "an operator's decision")
    version = request.get("version")
    if not isinstance(model, str):
        raise InvalidArgument('the request names no model: give {"model": NAME}')
    if name == "allow" and type(version) is not int:
        raise InvalidArgument(f"version {version!r} is not a version number")
    if not isinstance(name, str) or name not in OPERATIONS:
        raise InvalidArgument(f"operation {name!r} is not one of {listed(OPERATIONS)}")
    view = (views or {}).get(model)

    def change(state: FleetState) -> FleetState:
        match name:
            case "pause":
                return operations.paused(state, model)
            case "resume":
                return operations.resumed(state, model)
            case "promote":
                return operations.promoted(state, model, settings)
            case "abort":
                return operations.aborted(state, model, reason, wall_ns)
            case "rollback":
                return operations.rolled_back(state, model, reason, wall_ns, view)
            case _:
                return operations.allowed(state, model, int(version or 0))

    return change


def check_operator(request: Request) -> None:
    """Raises PermissionDenied if a request came from a page in a browser, or not through the operators' door."""
    if "origin" in request.headers:
        raise PermissionDenied("a page of a browser may not operate the fleet; use millpond fleet")
    if not request.scope.get(OPERATOR):
        raise PermissionDenied(
            "this address answers status, registry and metrics; operate the fleet as the coordinator's user "
            "on its machine (millpond fleet, without --target), or name a TCP address for operators: "
            "[coordinator] operators"
        )


class FleetApi:
    """The routes of a coordinator: status, registry, operations, metrics and the page.

    The status and operations run on threads, because a large status takes long to make, and an operation
    waits for the disk. So the event loop stays free for other requests.

    Only requests through the operators' door may operate the fleet (`operator_door.py`). A request with an
    Origin is refused even there, because a page in a browser has sent it.
    """

    def __init__(
        self,
        lead: PresentLead,
        settings: WaveSettings,
        clock: Clock,
        metrics: FleetMetrics | None = None,
    ) -> None:
        """`metrics` counts the events of this coordinator. Without it, /metrics shows only the status."""
        self._lead = lead
        self._settings = settings
        self._clock = clock
        self._metrics = metrics or FleetMetrics(clock)
        self._metrics.show(self.status)

    @property
    def routes(self) -> list[Route]:
        return [
            Route(STATUS_PATH, self._status, methods=["GET"]),
            Route(REGISTRY_PATH, self._servers, methods=["GET"]),
            Route(OPERATION_PATH, self._operate, methods=["POST"]),
            metrics_route(self._metrics),
            *fleet_page_routes(self.status),
        ]

    def status(self) -> dict[str, Any]:
        """The document of the present status. Raises Unavailable while this process does not lead."""
        coordinator = self._lead.coordinator()
        # The reports are read before the state, so that no report has a grant that the state lacks.
        sightings, decided = coordinator.sightings, coordinator.decided
        status = fleet_status(
            decided.state,
            decided.watches,
            sightings,
            self._settings,
            self._clock.now_ns(),
        )
        return {**status, "problems": self._lead.problems}

    # Not async, so that Starlette runs it on a thread.
    def _status(self, request: Request) -> Response:
        del request
        return json_response(self.status())

    async def _servers(self, request: Request) -> Response:
        del request
        text = self._lead.registry
        if not text:
            raise Unavailable("not all servers have reported to this coordinator yet; ask again")
        headers = {"Cache-Control": "no-store"}
        return Response(text, headers=headers, media_type="application/json")

    async def _operate(self, request: Request) -> Response:
        check_operator(request)
        return await asyncio.to_thread(self._operated, parse_object(await request.body()))

    def _operated(self, request: Mapping[str, Any]) -> Response:
        coordinator = self._lead.coordinator()
        views = model_views(
            coordinator.sightings,
            coordinator.state.models,
            self._settings.lost_seconds,
            self._clock.now_ns(),
        )
        change = change_of(request, self._settings, self._clock.wall_ns(), views)
        try:
            coordinator.operate(change)
        except OSError as error:
            raise Unavailable(
                f"nothing is changed: the state cannot be written: {error}"
            ) from error
        given = {key: request[key] for key in ("version", "reason") if request.get(key)}
        _log.info("fleet_operated", operation=request["operation"], model=request["model"], **given)
        return json_response(self.status())

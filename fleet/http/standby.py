"""The HTTP of a coordinator that does not lead: passes requests on to the coordinator that leads."""

import asyncio
import http.client
from collections.abc import Mapping

from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.http.metrics import METRICS_PATH
from fleet.http.operator_door import OPERATOR
from fleet.lead.present_lead import PresentLead
from serving.http.app import BodyLimit, HandlerGuard, error_response

HEALTH_PATH = "/healthz"
TIMEOUT_SECONDS = 5.0

_PASSED_ON = "millpond-passed-on"
# The headers by which the leader decides on a request. No other header is passed on.
_KEPT = ("origin", "content-type", "accept")
_BODY_BYTES_MAX = 2**20


class StandbyGate:
    """Passes requests on to the leading coordinator while this coordinator waits.

    Each coordinator answers for its own health and metrics.

    A request that was passed on before is refused, because two coordinators may take each other for the leader,
    and pass it on forever. If the operators' door is a UNIX socket, operations are not passed on, because the
    leader takes operations only from its own user.
    """

    def __init__(
        self,
        app: ASGIApp,
        lead: PresentLead,
        *,
        operator_port: int | None = None,
    ) -> None:
        """`operator_port` is the TCP port of all coordinators' operators' doors; None if they have no TCP port."""
        self._app = app
        self._lead = lead
        self._operator_port = operator_port
        limited = BodyLimit(self._pass_on, bytes_max=_BODY_BYTES_MAX)
        self._passing = HandlerGuard(limited, timeout_seconds=2 * TIMEOUT_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == HEALTH_PATH:
            await Response(b"ok\n", media_type="text/plain")(scope, receive, send)
        elif scope["path"] == METRICS_PATH or self._lead.leads:
            await self._app(scope, receive, send)
        else:
            await self._passing(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        leader = self._lead.leader
        if not leader or _PASSED_ON in request.headers:
            return error_response("no coordinator leads the fleet now; ask again", 503)
        if request.scope.get(OPERATOR) and request.method == "POST":
            if self._operator_port is None:
                return error_response(
                    f"this coordinator waits: operate the fleet where the one that leads runs, at {leader}",
                    400,
                )
            leader = f"{leader.rpartition(':')[0]}:{self._operator_port}"
        headers = {name: request.headers[name] for name in _KEPT if name in request.headers}
        try:
            body = await request.body()
            return await asyncio.to_thread(
                _asked, leader, request.method, request.url, body, {**headers, _PASSED_ON: "1"}
            )
        except HTTPException as error:
            return error_response(error.detail, error.status_code, error.headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            message = f"the coordinator that leads, at {leader}, does not answer: {error}"
            return error_response(message, 503)


def _asked(leader: str, method: str, url: URL, body: bytes, headers: Mapping[str, str]) -> Response:
    connection = http.client.HTTPConnection(leader, timeout=TIMEOUT_SECONDS)
    try:
        target = f"{url.path}?{url.query}" if url.query else url.path
        connection.request(method, target, body or None, dict(headers))
        reply = connection.getresponse()
        kept = {
            name: reply.headers[name]
            for name in ("Content-Type", "Cache-Control")
            if name in reply.headers
        }
        return Response(reply.read(), reply.status, kept)
    finally:
        connection.close()

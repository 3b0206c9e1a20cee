"""The HTTP application: the routes of all parts, and the behaviour that they share.

Every failure is answered as TensorFlow Serving's REST API answers it, `{"error": "…"}`. A handler
raises MillpondError or starlette's HTTPException to refuse a request. Any other exception is our
bug: 500, and one line in the log.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio
import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.base.errors import InternalError, MillpondError, StatusCode

BODY_BYTES_MAX = 64 * 2**20
"""The limit of one request's body, which is held in memory as a whole. It is far above the JSON that
clients write, and so small that a few hostile clients do not take the machine's memory."""

_STATUS_BY_CODE: Mapping[StatusCode, int] = {
    StatusCode.CANCELLED: 499,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.OUT_OF_RANGE: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.ABORTED: 409,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """The settings of all handlers.

    `timeout_seconds` is the time from a request's head to its answer's head.
    """

    timeout_seconds: float = 30.0
    body_bytes_max: int = BODY_BYTES_MAX


def make_http_app(routes: Sequence[BaseRoute], settings: HttpSettings) -> Starlette:
    """Makes the application of these routes. Handlers run on one of two HTTP threads.

    A handler that blocks is a plain `def`, which starlette runs on a thread of its own.
    """
    middleware = [
        Middleware(HandlerGuard, timeout_seconds=settings.timeout_seconds),
        Middleware(BodyLimit, bytes_max=settings.body_bytes_max),
    ]
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            HTTPException: _answer_http_exception,
            MillpondError: _answer_millpond_error,
        },
    )
    # A client that asks for /readyz/ gets 404, not a redirect to /readyz.
    app.router.redirect_slashes = False
    return app


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Makes a response of `value` as JSON. Caches must not keep it, because it describes the server at this
    moment.
    """
    # ASCII, because a reason may hold the name of a file that is not UTF-8.
    text = json.dumps(value, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(text.encode(), status, headers, "application/json")


def error_response(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Makes a refusal or failure in the form that TensorFlow Serving's clients read."""
    return json_response({"error": message}, status, headers)


def http_status(code: StatusCode) -> int:
    """The HTTP status that TensorFlow Serving has for a gRPC status code. Pure."""
    return 200 if code is StatusCode.OK else _STATUS_BY_CODE.get(code, 500)


class HandlerGuard:
    """Answers for a handler that raises, or that has not begun to answer in time.

    The limit covers all waiting on the event loop, also for a slow body. A handler's own thread
    cannot be interrupted: the answer then comes when the thread is done.
    """

    def __init__(self, app: ASGIApp, *, timeout_seconds: float) -> None:
        self._app = app
        self._timeout_seconds = timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises the error of a handler that has begun to answer, whose answer is then cut short."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            timeout.deadline = math.inf
            await send(message)

        with anyio.move_on_after(self._timeout_seconds) as timeout:
            try:
                await self._app(scope, receive, send_noting)
            except ClientDisconnect:
                return
            except Exception as error:
                if has_begun:
                    raise
                await answer_for_bug(scope, error)(scope, receive, send)
        if timeout.cancelled_caught:
            message = (
                f"{scope['method']} {scope['path']} took longer than {self._timeout_seconds:g} s "
                "(--rest_api_timeout_in_ms)"
            )
            # The rest of the body is not read.
            response = error_response(message, 504, {"Connection": "close"})
            await response(scope, receive, send)


class BodyLimit:
    """Refuses bodies larger than `bytes_max`, before reading them if their length is declared."""

    def __init__(self, app: ASGIApp, *, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length")
        if declared is not None and int(declared) > self._bytes_max:
            too_large = self._too_large()
            await error_response(too_large.detail, 413, too_large.headers)(scope, receive, send)
            return
        received_bytes = 0

        async def receive_counting() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._bytes_max:
                raise self._too_large()
            return message

        await self._app(scope, receive_counting, send)

    def _too_large(self) -> HTTPException:
        message = f"the request's body is larger than {self._bytes_max} bytes; send less at a time"
        return HTTPException(413, message, {"Connection": "close"})


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404 and message == "Not Found":
        message = f"nothing is at {request.url.path}"
    if error.status_code == 405:
        message = f"{request.url.path} does not allow {request.method}"
    return error_response(message, error.status_code, error.headers)


async def _answer_millpond_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MillpondError)
    if isinstance(error, InternalError):
        _log.error("http_handler_failed", path=request.url.path, exc_info=error)
    return error_response(error.message, http_status(error.code))


def answer_for_bug(scope: Scope, error: Exception) -> Response:
    """Makes the answer of a handler that raised an error that is no refusal, and logs it."""
    path = scope["path"]
    _log.error("http_handler_failed", method=scope["method"], path=path, exc_info=error)
    return error_response(f"{type(error).__name__} in {path}; see the server's log", 500)

"""The common parts of REST's applications: bodies, answers, errors in TensorFlow Serving's shape.

They are plain ASGI applications in front of starlette's. A request that a model answers takes a
twentieth of a millisecond of this thread; routing and middlewares would take as much again.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import anyio
import structlog
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.base.errors import (
    FailedPrecondition,
    InternalError,
    MillpondError,
    StatusCode,
    Unavailable,
)
from serving.data_plane.requests import RestAnswer
from serving.http.app import HttpSettings, http_status
from serving.http.connections import CONNECTION_EXTENSION
from serving.rest.bridge import Connection, RestBridge, RestTarget
from serving.rpc.request_memory import MemoryBusy, MemoryHold

MODEL_NAME_HEADER = b"x-millpond-model-name"
MODEL_VERSION_HEADER = b"x-millpond-model-version"
JSON_BYTES_HEADER = b"inference-header-content-length"
"""The length of a body's JSON part, which binary data follow."""

JSON_TYPE = b"application/json"

RETRY_AFTER_SECONDS = b"1"
"""The header's value for 429 and 503: its smallest unit."""

HeaderList = list[tuple[bytes, bytes]]

_CLOSE = (b"connection", b"close")
_HOLD = "millpond.memory_hold"
_RETRIED = frozenset({429, 503})
_log = structlog.get_logger(__name__)


def _common_headers(settings: HttpSettings) -> HeaderList:
    """The headers of every answer."""
    if not settings.has_cors:
        return []
    exposed = (MODEL_NAME_HEADER, MODEL_VERSION_HEADER, JSON_BYTES_HEADER)
    return [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", b"POST, GET"),
        (b"access-control-allow-headers", b"Content-Type, " + JSON_BYTES_HEADER),
        (b"access-control-expose-headers", b", ".join(exposed)),
    ]


class BodyTooLarge(MillpondError):
    """A body larger than the limit: 413, and the connection is closed."""

    code = StatusCode.RESOURCE_EXHAUSTED


class BodyTooSlow(MillpondError):
    """A body that did not come in time: 504, and the connection is closed."""

    code = StatusCode.DEADLINE_EXCEEDED


class PrefixRouter:
    """v1/v1/models`, of which no path begins with another.

    A prefix matches whole segments, in upper or lower case. The applications answer their own failures.
    """

    def __init__(self, by_prefix: Mapping[str, ASGIApp], otherwise: ASGIApp) -> None:
        self._by_prefix = [(prefix, len(prefix), app) for prefix, app in by_prefix.items()]
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        app = self._app_of(scope["path"]) if scope["type"] == "http" else self._otherwise
        await app(scope, receive, send)

    def _app_of(self, path: str) -> ASGIApp:
        for prefix, length, app in self._by_prefix:
            if path[:length].lower() == prefix and path[length : length + 1] in ("", "/"):
                return app
        return self._otherwise


class RestApplication(ABC):
    """An ASGI application of one protocol, on the HTTP threads. A failed request raises no error.

    While the bridge drains, answers ask their clients to close the connection and use another server.
    """

    def __init__(self, bridge: RestBridge, settings: HttpSettings) -> None:
        self._bridge = bridge
        self._settings = settings
        self._common = _common_headers(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        hold = MemoryHold(self._settings.budget)
        scope[_HOLD] = hold
        try:
            if scope["method"] == "OPTIONS":
                await self._answer_preflight(scope, send)
            else:
                await self._answer(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 (the client gets an answer for every error)
            await _send_raised(send, scope, error, self._headers())
        finally:
            hold.release()

    @abstractmethod
    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; an error raised before the answer becomes the answer."""

    def _headers(self) -> HeaderList:
        closing = [_CLOSE] if self._bridge.is_draining else []
        return [*self._common, *closing]

    async def _run(self, target: RestTarget, body: bytes, scope: Scope, send: Send) -> None:
        """Sends a worker's answer."""
        # From here on the workers count the body, because they may read it for longer than the client
        # waits.
        hold_of(scope).release()
        answer = await self._bridge.submit(
            target, scope["headers"], body, connection=_connection_of(scope)
        )
        if answer.code == StatusCode.OK:
            headers = [*_answer_headers(answer, target.model), *self._headers()]
            await self._send_counted(answer, headers, scope, send)
            return
        if answer.code == StatusCode.CANCELLED and self._bridge.is_draining:
            # 499 would mean that the client is gone. This client still waits, and may use another server.
            raise Unavailable("the server stopped before the request was done; use another server")
        headers = [*_version_headers(target.model, answer.version), *self._headers()]
        # A refusal by a version, as of a body that is too large, would not be different a second later.
        is_passing = answer.version is None
        status = http_status(StatusCode(answer.code))
        await send_error(send, answer.message, status, headers, is_passing=is_passing)

    async def _send_counted(
        self, answer: RestAnswer, headers: HeaderList, scope: Scope, send: Send
    ) -> None:
        """Sends an OK answer. Its memory is counted until the client has it, however slow the client is."""
        body = answer.take_body()
        hold = hold_of(scope)
        hold.grow(len(body))
        connection = _connection_of(scope)
        if connection is not None:
            # The buffer has one answer at a time, so this hold counts only this answer.
            await connection.wait_until_sent()
            connection.answer_hold = hold
        await send_answer(send, 200, headers, body)
        # From here on the connection's buffer has the rest.
        del body
        if connection is not None:
            await connection.wait_until_sent()

    async def _answer_preflight(self, scope: Scope, send: Send) -> None:
        origin = Headers(scope=scope).get("origin", "")
        if not origin.startswith(("http://", "https://")):
            raise FailedPrecondition(
                "OPTIONS without an Origin header that begins with http:// or https:// is not a CORS "
                "preflight request"
            )
        await send_answer(send, 200, self._headers(), b"")


def _connection_of(scope: Scope) -> Connection | None:
    """Finds the client's connection; None if another server runs the application."""
    connection: Connection | None = scope.get("extensions", {}).get(CONNECTION_EXTENSION)
    return connection


def hold_of(scope: Scope) -> MemoryHold:
    """Finds the request's hold on the memory of requests and replies, which its application has made."""
    hold: MemoryHold = scope[_HOLD]
    return hold


async def read_body(scope: Scope, receive: Receive, settings: HttpSettings) -> bytes:
    """Reads a request's body as received.

    Raises BodyTooLarge and MemoryBusy, before reading if the length is declared. Raises BodyTooSlow
    and starlette's ClientDisconnect too.
    """
    hold = hold_of(scope)
    for name, value in scope["headers"]:
        # uvicorn's parser has refused a value that is not a number.
        if name == b"content-length":
            if int(value) > settings.body_bytes_max:
                raise _too_large(settings)
            hold.check_fits(int(value))
    connection = _connection_of(scope)
    if connection is not None and connection.has_whole_request:
        return await _receive_body(receive, settings, hold)
    with anyio.move_on_after(settings.timeout_seconds):
        return await _receive_body(receive, settings, hold)
    raise BodyTooSlow(
        f"the request's body had not arrived after {settings.timeout_seconds:g} s "
        "(--rest_api_timeout_in_ms)"
    )


async def _receive_body(receive: Receive, settings: HttpSettings, hold: MemoryHold) -> bytes:
    chunks: list[bytes] = []
    received_bytes = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        received_bytes += len(chunk)
        if received_bytes > settings.body_bytes_max:
            raise _too_large(settings)
        hold.grow(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks) if len(chunks) > 1 else chunk


def _too_large(settings: HttpSettings) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request's body is larger than {settings.body_bytes_max} bytes; send less at a time"
    )


async def send_answer(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> None:
    """Sends one whole response. `headers` do not include the length."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_json(
    send: Send, value: object, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Sends a document. Caches must not keep it: it describes the server at this moment."""
    fields = [(b"content-type", JSON_TYPE), (b"cache-control", b"no-store"), *headers]
    await send_answer(send, status, fields, json.dumps(value, separators=(",", ":")).encode())


async def send_error(
    send: Send,
    message: str,
    status: int,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    is_passing: bool = True,
) -> None:
    """Sends `{"error": "…"}`. A 429 or 503 for a passing reason has a Retry-After header."""
    fields = [(b"content-type", JSON_TYPE), *headers]
    if is_passing and status in _RETRIED:
        fields.append((b"retry-after", RETRY_AFTER_SECONDS))
    await send_answer(send, status, fields, json.dumps({"error": message}).encode())


async def _send_raised(send: Send, scope: Scope, error: Exception, common: HeaderList) -> None:
    """Answers for an error that a handler raised before its answer. Our bugs go to the log."""
    if isinstance(error, BodyTooLarge):
        await send_error(send, error.message, 413, [*common, _CLOSE])
    elif isinstance(error, BodyTooSlow):
        await send_error(send, error.message, 504, [*common, _CLOSE])
    elif isinstance(error, MemoryBusy):
        await send_error(send, error.message, 429, [*common, _CLOSE])
    elif isinstance(error, MillpondError) and not isinstance(error, InternalError):
        await send_error(send, error.message, http_status(error.code), common)
    else:
        path = scope["path"]
        _log.error("http_handler_failed", method=scope["method"], path=path, exc_info=error)
        message = f"{type(error).__name__} in {path}; see the server's log"
        await send_error(send, message, 500, common)


def _version_headers(model: str, version: int | None) -> HeaderList:
    """Makes the headers that name the version; none if the request reached no version."""
    if version is None:
        return []
    return [
        (MODEL_NAME_HEADER, quote(model, safe="").encode()),
        (MODEL_VERSION_HEADER, b"%d" % version),
    ]


def _answer_headers(answer: RestAnswer, model: str) -> HeaderList:
    """Makes the headers of an answer that is OK, without its length."""
    headers = _version_headers(model, answer.version)
    headers.append((b"content-type", answer.content_type.encode()))
    if answer.is_gzip:
        headers += [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
    if answer.json_bytes is not None:
        headers.append((JSON_BYTES_HEADER, b"%d" % answer.json_bytes))
    return headers

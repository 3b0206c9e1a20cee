"""The common parts of REST's applications: bodies, answers, errors in TensorFlow Serving's shape.

They answer what is not run: the status of models, their signatures, and the paths that are none. The
data plane answers the requests that versions run.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.base.errors import InternalError, MillpondError
from serving.http.app import http_status

MODEL_VERSION_HEADER = "x-millpond-model-version"
"""The header of an answer that names the version; the data plane adds it."""

JSON_TYPE = b"application/json"

RETRY_AFTER_SECONDS = b"1"
"""The header's value for 429 and 503: its smallest unit."""

_RETRIED = frozenset({429, 503})
_log = structlog.get_logger(__name__)


class PrefixRouter:
    """Routes by the first segments of a path, like `/v1/models`. No prefix begins with another.

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
    """An ASGI application of one protocol, on the HTTP threads. A failed request raises no error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        try:
            await self._answer(scope, receive, send)
        except Exception as error:  # noqa: BLE001 (the client gets an answer for every error)
            await _send_raised(send, scope, error)

    @abstractmethod
    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request; an error raised before the answer becomes the answer."""


async def read_body(receive: Receive) -> bytes:
    """Returns a request's body. The data plane has read it, and has refused one that is too long."""
    message = await receive()
    body: bytes = message.get("body", b"")
    return body


async def send_answer(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> None:
    """Sends one whole response. `headers` do not include the length."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, value: object, status: int = 200) -> None:
    """Sends a document. Caches must not keep it: it describes the server at this moment."""
    fields = [(b"content-type", JSON_TYPE), (b"cache-control", b"no-store")]
    await send_answer(send, status, fields, json.dumps(value, separators=(",", ":")).encode())


async def send_error(send: Send, message: str, status: int) -> None:
    """Sends `{"error": "…"}`. A 429 or 503 has a Retry-After header."""
    fields = [(b"content-type", JSON_TYPE)]
    if status in _RETRIED:
        fields.append((b"retry-after", RETRY_AFTER_SECONDS))
    await send_answer(send, status, fields, json.dumps({"error": message}).encode())


async def _send_raised(send: Send, scope: Scope, error: Exception) -> None:
    """Answers for an error that a handler raised before its answer. Our bugs go to the log."""
    if isinstance(error, MillpondError) and not isinstance(error, InternalError):
        await send_error(send, error.message, http_status(error.code))
    else:
        path = scope["path"]
        _log.error("http_handler_failed", method=scope["method"], path=path, exc_info=error)
        message = f"{type(error).__name__} in {path}; see the server's log"
        await send_error(send, message, 500)

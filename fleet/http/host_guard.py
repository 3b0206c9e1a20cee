"""Refuses requests whose Host header names another server (see `serving.http.hosts`)."""

from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.http.app import error_response
from serving.http.hosts import HostRule

MISDIRECTED = 421
_DECISIONS_KEPT = 256


class HostGuard:
    """Answers 421 to a request for another server, so that no application gets the request.

    A request without a Host header passes, because only HTTP/1.0 allows it, and browsers do not use that.
    """

    def __init__(self, app: ASGIApp, rule: HostRule) -> None:
        self._app = app
        # Cached, because clients send the same header again and again.
        self._permits = lru_cache(_DECISIONS_KEPT)(rule.permits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        if scope["type"] == "http":
            # The connection has refused malformed values and a second Host header (`fleet.http.heads`).
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            server = scope.get("server")
            if hosts and not self._permits(hosts[0], server[0] if server else ""):
                message = (
                    f"Host {hosts[0]!r} is not a name of this server; use localhost, its address, "
                    "or a name that --http_hosts lists"
                )
                response = error_response(message, MISDIRECTED, {"Connection": "close"})
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

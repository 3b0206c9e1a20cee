"""The token with which the operators' door of a fleet on Ray passes requests to the coordinator's HTTP.

The coordinator may be on any node, so its HTTP is at a TCP address of the cluster. Only a process that is
connected to the cluster, as the front and `Deployment` are, can read the token: it lies in the cluster's
key-value store.
"""

import hmac
import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.http.operator_door import OPERATOR
from fleet.ray.key_value_store import KeyValueStore

TOKEN_KEY = "operator_token"
TOKEN_HEADER = "millpond-operator-token"


def operator_token(store: KeyValueStore) -> str:
    """Finds the token of the fleet, or makes one. Raises OSError."""
    made = secrets.token_hex(32)
    store.put(TOKEN_KEY, made, is_new=True)
    # Another process may have stored one first.
    return store.get(TOKEN_KEY) or made


class TokenEntry:
    """Marks requests that have the token as an operator's, and passes all requests on."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Implements ASGI."""
        if scope["type"] == "http":
            given = Headers(scope=scope).get(TOKEN_HEADER, "").encode("latin-1")
            if hmac.compare_digest(given, self._token):
                scope = {**scope, OPERATOR: True}
        await self._app(scope, receive, send)

"""The token that marks requests to a coordinator on Ray as an operator's.

The coordinator may be on any node, so its HTTP is at a TCP address that many machines reach. The token lies in
the cluster's key-value store. So only a process that is connected to the cluster can read it, such as a front.
The front adds the token to each request that comes through its operators' door.
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
    """Reads the token of the fleet from the store, or makes one. Raises OSError."""
    made = secrets.token_hex(32)
    store.put(TOKEN_KEY, made, is_new=True)
    # Another process may have stored a token first, and then that token counts.
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

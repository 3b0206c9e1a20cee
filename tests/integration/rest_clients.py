"""Clients of the REST API, each with one connection that it keeps."""

import gzip
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS


class RestClient:
    """One connection that stays open."""

    def __init__(self, server: ModelServer) -> None:
        self._connection = http.client.HTTPConnection(
            urlsplit(server.url).netloc, timeout=TIMEOUT_SECONDS
        )

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Returns status, document and headers."""
        self.send(method, path, body, **headers)
        return self.receive()

    def send(self, method: str, path: str, body: object = None, **headers: str) -> None:
        """Sends a request, for `receive` to return its answer."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        self._connection.request(method, path, content, headers)

    def receive(self) -> tuple[int, Any, http.client.HTTPMessage]:
        """Returns status, document and headers of the answer to the request that was sent."""
        response = self._connection.getresponse()
        answer = response.read()
        if response.headers.get("content-encoding") == "gzip":
            answer = gzip.decompress(answer)
        return response.status, json.loads(answer) if answer else None, response.headers


def versions_of(server: ModelServer, name: str = "scale") -> list[str]:
    _, document, _ = RestClient(server).ask("GET", f"/v1/models/{name}")
    statuses = document.get("model_version_status", [])
    return [status["version"] for status in statuses if status["state"] == "AVAILABLE"]

"""Clients of the REST API, each with one connection that it keeps."""

import gzip
import http.client
import json
import threading
from typing import Any
from urllib.parse import urlsplit

from serving import ModelServer

ANSWER_SECONDS = 30


class RestClient:
    """One connection that stays open."""

    def __init__(self, server: ModelServer) -> None:
        self._connection = http.client.HTTPConnection(
            urlsplit(server.url).netloc, timeout=ANSWER_SECONDS
        )

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Returns status, document and headers."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        self._connection.request(method, path, content, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.headers.get("content-encoding") == "gzip":
            answer = gzip.decompress(answer)
        return response.status, json.loads(answer) if answer else None, response.headers


def versions_of(server: ModelServer, name: str = "scale") -> list[str]:
    _, document, _ = RestClient(server).ask("GET", f"/v1/models/{name}")
    statuses = document.get("model_version_status", [])
    return [status["version"] for status in statuses if status["state"] == "AVAILABLE"]


class SteadyRestClient:
    """Predicts over and over on a connection and keeps the wrong answers."""

    def __init__(self, server: ModelServer) -> None:
        self._client = RestClient(server)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.versions: set[str] = set()
        self.wrong: list[object] = []
        self.count = 0

    def __enter__(self) -> "SteadyRestClient":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            x = float(self.count % 100)
            status, answer, headers = self._client.ask(
                "POST", "/v1/models/scale:predict", {"inputs": [x]}
            )
            version = headers["x-millpond-model-version"]
            number = int(version or 0)
            expected = {"outputs": {"y": [x * number + number], "version": number}}
            if status != 200 or answer != expected:
                self.wrong.append((status, answer, version))
            self.versions.add(version or "")
            self.count += 1

"""`millpond health`, against servers of this process."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from tests.unit.fakes.grpc_services import grpc_service
from tests.unit.pem import make_identity

# The port of the discard service: nothing listens there.
NOWHERE = "9"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


class Servers:
    """Serves `grpc` and `readyz` on ports of this machine during the test."""

    def __init__(self) -> None:
        self._services = ExitStack()
        self._http: ThreadingHTTPServer | None = None
        self.ports = {"MILLPOND_PORT": NOWHERE, "MILLPOND_HTTP_PORT": NOWHERE}

    def serve_grpc(self, reply: bytes, credentials: grpc.ServerCredentials | None = None) -> None:
        port = self._services.enter_context(
            grpc_service(lambda method, request, context: reply, credentials)
        )
        self.ports["MILLPOND_PORT"] = str(port)

    def serve_readyz(self, status: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status if self.path == "/readyz" else 404)
                self.end_headers()
                self.wfile.write(b"why not")

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever).start()
        self.ports["MILLPOND_HTTP_PORT"] = str(self._http.server_port)

    def stop(self) -> None:
        self._services.close()
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()

    def checked(self) -> tuple[int, str]:
        """Returns the exit status and the output."""
        result = subprocess.run(
            [sys.executable, "-m", "serving", "health"],
            env={**os.environ, **self.ports},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return result.returncode, result.stderr


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.stop()


def test_health_goes_by_grpc(servers: Servers) -> None:
    servers.serve_grpc(SERVING)
    assert servers.checked()[0] == 0


def test_health_believes_grpc_before_http(servers: Servers) -> None:
    servers.serve_grpc(NOT_SERVING)
    servers.serve_readyz(200)
    status, why = servers.checked()
    assert (status, "not serving" in why) == (1, True)


@pytest.mark.parametrize(("readyz", "expected"), [(200, 0), (503, 1)])
def test_health_beside_tls_uses_http(
    servers: Servers, tmp_path: Path, readyz: int, expected: int
) -> None:
    shown = make_identity(tmp_path, "server")
    pair = (shown.key.encode(), shown.certificate.encode())
    servers.serve_grpc(SERVING, grpc.ssl_server_credentials([pair]))
    servers.serve_readyz(readyz)
    status, why = servers.checked()
    assert (status, "why not" in why) == (expected, expected == 1)


def test_failed_health_check_names_both_addresses(servers: Servers) -> None:
    status, why = servers.checked()
    assert status == 1
    assert "localhost:9: UNAVAILABLE" in why
    assert "http://localhost:9/readyz: " in why

"""HTTP with TLS and over a UNIX socket, as stock clients meet it."""

import json
import os
import socket
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import wait_for_log
from tests.integration.processes import millpond
from tests.unit.pem import Identity, config_text, make_expired, make_identity, show_identity

PREDICT = "/v1/models/scale:predict"
BODY = {"inputs": {"x": [1.0]}}
PLAIN_GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class TlsServer:
    """A server with --rest_ssl_config_file, and the identities in the file and beside it.

    With `is_mutual` its clients need certificates that `ca` has signed.
    """

    def __init__(
        self,
        start: StartServer,
        base_path: Path,
        directory: Path,
        *,
        is_mutual: bool = False,
        **flags: object,
    ) -> None:
        self.directory = directory
        self.ca = make_identity(directory, "ca")
        self.is_mutual = is_mutual
        self.file = directory / "tls.config"
        self.show(make_identity(directory, "first"))
        flags = {"model_name": "scale", "rest_ssl_config_file": self.file, **flags}
        self.server = start(base_path=base_path, **flags)
        self.server.wait_until_available("scale", 1)

    def show(self, identity: Identity) -> None:
        """Replaces the file."""
        self.shown = identity
        show_identity(self.file, identity, self.ca if self.is_mutual else None)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.server.url.removeprefix("https://").rpartition(":")
        return host, int(port)

    def trusting(self, trusted: Identity, client: Identity | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=trusted.certificate)
        if client is not None:
            pair = self.directory / "pair.pem"
            pair.write_text(client.key + client.certificate)
            context.load_cert_chain(pair)
        return context

    def ca_file(self) -> Path:
        file = self.directory / "trusted.pem"
        file.write_text(self.shown.certificate)
        return file

    @contextmanager
    def connection(self, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
        with (
            socket.create_connection(self.address, TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            yield connection

    def is_served(self, trusted: Identity, client: Identity | None = None) -> bool:
        try:
            with self.connection(self.trusting(trusted, client)) as connection:
                return healthz(connection).startswith(b"HTTP/1.1 200 ")
        except (ssl.SSLError, ConnectionError):
            return False


def healthz(connection: socket.socket) -> bytes:
    connection.sendall(PLAIN_GET)
    return connection.recv(4_096)


def curl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["curl", "--silent", "--show-error", "--max-time", "20", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def base(scale_model: ScaleModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base_path = tmp_path_factory.mktemp("scale")
    scale_model.write(base_path, 1)
    return base_path


@pytest.fixture(scope="module")
def tls(
    start_module_server: StartServer, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> TlsServer:
    directory = tmp_path_factory.mktemp("tls")
    path = directory / "rest.sock"
    return TlsServer(start_module_server, base, directory, rest_api_socket_path=path)


# --- Clients --------------------------------------------------------------------------------------


def test_curl_predicts_over_tls(tls: TlsServer) -> None:
    url = tls.server.url + PREDICT
    done = curl("--cacert", tls.ca_file(), "--data", json.dumps(BODY), url)
    assert json.loads(done.stdout)["outputs"], done.stderr
    refused = curl("--data", json.dumps(BODY), url)
    assert (refused.returncode, "certificate" in refused.stderr) == (60, True)


def test_requests_and_httpx_predict_over_tls(tls: TlsServer) -> None:
    url = tls.server.url + PREDICT
    with requests.Session() as session:
        # A megabyte each way takes many records of TLS.
        many = {"inputs": {"x": [float(i) for i in range(100_000)]}}
        for body in (BODY, many, BODY):
            answer = session.post(url, json=body, verify=str(tls.ca_file()), timeout=60)
            assert len(answer.json()["outputs"]["y"]) == len(body["inputs"]["x"])
    with httpx.Client(verify=tls.trusting(tls.shown)) as client:
        assert client.post(url, json=BODY).json()["outputs"]["y"] == [2]
        page = client.get(tls.server.url + "/", headers={"accept": "text/html"})
        assert "text/html" in page.headers["content-type"]
        assert "serving_build_info" in client.get(tls.server.url + "/metrics").text


@pytest.mark.parametrize("offered", [["http/1.1"], ["http/1.1", "spdy/3"], []])
def test_alpn_agrees_on_http(tls: TlsServer, offered: Sequence[str]) -> None:
    context = tls.trusting(tls.shown)
    if offered:
        context.set_alpn_protocols(list(offered))
    with tls.connection(context) as connection:
        assert connection.selected_alpn_protocol() == ("http/1.1" if offered else None)
        assert healthz(connection).startswith(b"HTTP/1.1 200 ")


def test_client_that_offers_http2_speaks_it(tls: TlsServer) -> None:
    with httpx.Client(verify=tls.trusting(tls.shown), http2=True) as client:
        answer = client.post(tls.server.url + PREDICT, json=BODY)
    assert (answer.http_version, answer.json()["outputs"]["y"]) == ("HTTP/2", [2])
    done = curl(
        "--cacert", tls.ca_file(), "--write-out", "%{http_version}", f"{tls.server.url}/healthz"
    )
    assert done.stdout == "ok\n2", done.stderr


def test_alpn_of_another_protocol_is_refused(tls: TlsServer) -> None:
    context = tls.trusting(tls.shown)
    context.set_alpn_protocols(["spdy/3"])
    with pytest.raises(ssl.SSLError, match="no application protocol"), tls.connection(context):
        pass


def test_pipelined_requests_are_answered_over_tls(tls: TlsServer) -> None:
    count = 200
    with tls.connection(tls.trusting(tls.shown)) as connection:
        connection.sendall(PLAIN_GET * count)
        received = b""
        while received.count(b"HTTP/1.1 200 ") < count:
            part = connection.recv(65_536)
            assert part, received[-200:]
            received += part


class HalfClosed:
    """A client that sends a request and ends its side of TLS, and then reads the answer."""

    def __init__(self, tls: TlsServer) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.trusting(tls.shown).wrap_bio(
            self._incoming, self._outgoing, server_hostname="127.0.0.1"
        )
        self._address = tls.address

    def answer_to(self, request: bytes) -> bytes:
        with socket.create_connection(self._address, TIMEOUT_SECONDS) as self._plain:
            self._until_done(self._tls.do_handshake)
            self._tls.write(request)
            with suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            self._plain.sendall(self._outgoing.read())
            received = b""
            while part := self._until_done(lambda: self._tls.read(65_536)):
                received += part
            return received

    def _until_done(self, step: Callable[[], Any]) -> Any:
        """Repeats `step` with what the server sends, until it needs no more."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._plain.sendall(self._outgoing.read())
                part = self._plain.recv(65_536)
                if not part:
                    return b""
                self._incoming.write(part)


def test_end_of_tls_after_a_request_loses_no_answer(tls: TlsServer) -> None:
    body = json.dumps({"inputs": {"x": [1.0] * 200_000}}).encode()
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = HalfClosed(tls).answer_to(head.encode() + body)
    outputs = json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"]
    assert len(outputs["y"]) == 200_000


def test_plain_http_learns_that_the_port_has_tls(tls: TlsServer) -> None:
    answer = httpx.get(f"http://127.0.0.1:{tls.address[1]}/v1/models/scale")
    assert answer.status_code == 400
    assert "https://" in answer.text


def open_descriptors(server: ModelServer) -> int:
    return len(os.listdir(f"/proc/{server.process_id}/fd"))


def test_clients_without_tls_leave_nothing_behind(tls: TlsServer) -> None:
    assert tls.is_served(tls.shown)
    before = open_descriptors(tls.server)
    for text in (PLAIN_GET, b"nonsense\n", b"\x16\x03\x01\x00\x05hello", b""):
        for _ in range(25):
            # A client that speaks neither may get a reset.
            with (
                suppress(OSError) if text != PLAIN_GET else nullcontext(),
                socket.create_connection(tls.address, TIMEOUT_SECONDS) as plain,
            ):
                plain.sendall(text)
                if not text:
                    plain.shutdown(socket.SHUT_WR)
                while plain.recv(4_096):
                    pass
    wait_until(lambda: open_descriptors(tls.server) <= before, "the connections' end")


# --- Certificates ---------------------------------------------------------------------------------


def test_certificate_that_clients_do_not_trust_fails(tls: TlsServer, tmp_path: Path) -> None:
    assert tls.is_served(tls.shown)
    assert not tls.is_served(make_identity(tmp_path, "stranger"))


def test_new_certificates_serve_without_failed_request(tls: TlsServer, tmp_path: Path) -> None:
    first, second = tls.shown, make_identity(tmp_path, "second")
    with tls.connection(tls.trusting(first)) as before:
        assert healthz(before).startswith(b"HTTP/1.1 200 ")
        tls.show(second)
        wait_until(lambda: tls.is_served(second), "the new certificate")
        assert not tls.is_served(first)
        # The open connection goes on with the certificate that it began with.
        assert healthz(before).startswith(b"HTTP/1.1 200 ")
    tls.show(first)
    wait_until(lambda: tls.is_served(first), "the first certificate")


def test_bad_edit_keeps_the_certificates(tls: TlsServer, tmp_path: Path) -> None:
    shown, other = tls.shown, make_identity(tmp_path, "other")
    tls.file.write_text(config_text(other.key, shown.certificate))
    event = tls.server.wait_for_event(
        lambda logged: logged["event"] == "certificates_refused", TIMEOUT_SECONDS
    )
    assert "KEY_VALUES_MISMATCH" in str(event)
    assert tls.is_served(shown)
    tls.show(shown)


def test_bad_file_stops_the_start_with_its_reason(
    start_server: StartServer, base: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tls.config"
    file.write_text("client_verify: true")
    with pytest.raises(Exception, match="server_key must be a private key as PEM text"):
        start_server(model_name="scale", base_path=base, rest_ssl_config_file=file)


def test_mutual_tls_takes_signed_clients_only(
    start_server: StartServer, base: Path, tmp_path: Path
) -> None:
    tls = TlsServer(
        start_server,
        base,
        tmp_path,
        is_mutual=True,
        admin_clients="operator",
        allow_repository_control=True,
    )
    operator = make_identity(tmp_path, "operator", issuer=tls.ca)
    client = make_identity(tmp_path, "client", issuer=tls.ca)
    assert tls.is_served(tls.shown, client)
    assert not tls.is_served(tls.shown)
    assert not tls.is_served(tls.shown, make_identity(tmp_path, "stranger"))
    assert not tls.is_served(tls.shown, make_expired(tmp_path, "expired", tls.ca))
    # An operator's name in the certificate stands above a proxy's header.
    url = f"{tls.server.url}/v2/repository/models/scale/load"
    forwarded = {"x-forwarded-for": "192.0.2.7"}
    statuses = []
    for identity in (operator, client):
        with httpx.Client(verify=tls.trusting(tls.shown, identity), timeout=60) as session:
            statuses.append(session.post(url, headers=forwarded).status_code)
    assert statuses == [200, 403]


def test_expired_certificate_is_for_clients_to_refuse(
    start_server: StartServer, base: Path, tmp_path: Path
) -> None:
    tls = TlsServer(start_server, base, tmp_path)
    tls.show(make_expired(tmp_path, "expired", tls.ca))
    context = tls.trusting(tls.ca)

    def verdict() -> str:
        try:
            with tls.connection(context):
                return ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message

    wait_until(lambda: verdict() == "certificate has expired", "the expired certificate")


# --- Commands and supervisors ---------------------------------------------------------------------


def test_commands_and_health_work_beside_tls(tls: TlsServer) -> None:
    status = millpond("status", f"--target={tls.server.admin_target}")
    assert (status.returncode, "scale" in status.stdout) == (0, True), status.stderr
    # Nothing answers gRPC on the discard service's port, so health asks over HTTP.
    health = ["health", "--target=127.0.0.1:9", f"--http=127.0.0.1:{tls.address[1]}"]
    assert millpond(*health).returncode == 0


def test_supervised_server_serves_tls_and_socket(
    start_server: StartServer, base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rest.sock"
    tls = TlsServer(start_server, base, tmp_path, supervise=True, rest_api_socket_path=path)
    assert tls.is_served(tls.shown)
    assert "scale" in over(path, "/v1/models").text


# --- UNIX sockets ---------------------------------------------------------------------------------


def over(path: Path, target: str, **options: Any) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        return client.get(f"http://localhost{target}", **options)


def test_unix_socket_is_plain_beside_tls(tls: TlsServer) -> None:
    path = tls.directory / "rest.sock"
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert not path.stat().st_mode & stat.S_IWOTH
    url = f"http://localhost{PREDICT}"
    done = curl("--unix-socket", path, "--data", json.dumps(BODY), url)
    assert json.loads(done.stdout)["outputs"], done.stderr
    assert over(path, "/readyz").status_code == 200


def test_socket_replaces_a_stale_one_and_is_removed(
    start_server: StartServer, base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rest.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = start_server(
        model_name="scale",
        base_path=base,
        rest_api_port=0,
        rest_api_socket_path=path,
        http_hosts="models.example",
    )
    server.wait_until_available("scale", 1)
    wait_for_log(server, "version_available")
    # A page cannot reach a UNIX socket, so its clients may name any host.
    assert over(path, "/readyz", headers={"host": "anything"}).status_code == 200
    server.stop()
    assert not path.exists()


def test_file_at_the_path_ends_the_start(
    start_server: StartServer, base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rest.sock"
    path.write_text("precious")
    with pytest.raises(Exception, match=r"--rest_api_socket_path=.*not a socket; delete it"):
        start_server(model_name="scale", base_path=base, rest_api_socket_path=path)
    assert path.read_text() == "precious"

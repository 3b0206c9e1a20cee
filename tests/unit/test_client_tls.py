"""Both clients and a command over TLS with certificates on both sides, against grpcio's own server."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.base.closed_pipe import EXIT_USAGE
from serving.base.errors import Unavailable
from serving.base.protos import get_model_status_pb2
from serving.client import AsyncClient, Client, RetryPolicy, Tls
from serving.commands.cli import main
from serving.core.servable import AVAILABLE
from tests.unit.fakes.grpc_services import grpc_service

NO_RETRY = RetryPolicy(attempt_count_max=1)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def _certificate(directory: Path, name: str, extension: str) -> None:
    """Writes `name`.pem and its key, signed by ca.pem."""
    key, request = str(directory / f"{name}.key"), str(directory / f"{name}.csr")
    _openssl(
        *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", key, "-out", request, "-subj", f"/CN={name}"),
    )
    (directory / "extension").write_text(extension)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", str(directory / "ca.pem")),
        *("-CAkey", str(directory / "ca.key"), "-CAcreateserial", "-days", "2"),
        *("-extfile", str(directory / "extension"), "-out", str(directory / f"{name}.pem")),
    )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes ca.pem, server.pem for the name `models.test`, client.pem, and their keys."""
    directory = tmp_path_factory.mktemp("certificates")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(directory / "ca.key"), "-out", str(directory / "ca.pem")),
        *("-subj", "/CN=test", "-days", "2"),
    )
    _certificate(directory, "server", "subjectAltName=DNS:models.test")
    _certificate(directory, "client", "basicConstraints=CA:FALSE")
    return directory


def _status(method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
    response = get_model_status_pb2.GetModelStatusResponse()
    response.model_version_status.add(version=3, state=int(AVAILABLE))
    reply: bytes = response.SerializeToString()
    return reply


@pytest.fixture(scope="module")
def target(certificates: Path) -> Iterator[str]:
    def read(name: str) -> bytes:
        return (certificates / name).read_bytes()

    credentials = grpc.ssl_server_credentials(
        [(read("server.key"), read("server.pem"))],
        root_certificates=read("ca.pem"),
        require_client_auth=True,
    )
    with grpc_service(_status, credentials) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def tls(certificates: Path) -> Tls:
    return Tls(
        ca_file=certificates / "ca.pem",
        certificate_file=certificates / "client.pem",
        key_file=certificates / "client.key",
        server_name="models.test",
    )


def test_client_with_its_certificate_is_answered(target: str, tls: Tls):
    with Client(target, tls=tls) as client:
        assert [status.version for status in client.model_status("m")] == [3]


def test_asyncio_client_authenticates_by_certificate(target: str, tls: Tls):
    async def ask() -> list[int]:
        async with AsyncClient(target, tls=tls) as client:
            return [status.version for status in await client.model_status("m")]

    assert asyncio.run(ask()) == [3]


@pytest.mark.parametrize("missing", ["certificate", "server_name", "tls"])
def test_client_without_a_part_of_it_is_refused(
    missing: str, target: str, tls: Tls, certificates: Path
):
    ca_file = certificates / "ca.pem"
    given = {
        "certificate": Tls(ca_file=ca_file, server_name="models.test"),
        "server_name": Tls(
            ca_file=ca_file, certificate_file=tls.certificate_file, key_file=tls.key_file
        ),
        "tls": None,
    }
    with (
        Client(target, tls=given[missing], retries=NO_RETRY) as client,
        pytest.raises(Unavailable, match=target),
    ):
        client.model_status("m", timeout_seconds=5)


def test_command_reaches_a_server_by_its_tls_options(
    target: str, certificates: Path, capsys: pytest.CaptureFixture[str]
):
    options = [
        f"--target={target}",
        f"--tls_ca={certificates / 'ca.pem'}",
        f"--tls_cert={certificates / 'client.pem'}",
        f"--tls_key={certificates / 'client.key'}",
        "--tls_server_name=models.test",
    ]
    # The server has a single method, and its answer is not metadata: the test only checks that the
    # call arrives.
    assert main(["predict", "m", *options]) == 1
    assert "no signature 'serving_default'" in capsys.readouterr().err


def test_missing_tls_file_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["status", "--tls_ca=/nowhere/ca.pem"]) == EXIT_USAGE
    assert "/nowhere/ca.pem: cannot be read" in capsys.readouterr().err

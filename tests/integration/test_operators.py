"""Access of operators and of clients: the permitted methods on each port of a real server."""

import json
import socket
import stat
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving import ModelServer
from serving.base.errors import MillpondError, StatusCode
from serving.client import Client, Tls
from serving.core.operator_api import (
    CAPTURE_WARM_UP,
    GET_CONFIG,
    LIST_MODELS,
    RELOAD_CONFIG,
    ROLLBACK,
)
from serving.kserve.inference_service import REPOSITORY_MODEL_LOAD, REPOSITORY_MODEL_UNLOAD
from tests.integration.clients import TIMEOUT_SECONDS
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.processes import millpond
from tests.unit.pem import config_text, make_identity

ADMIN_METHODS = [LIST_MODELS, ROLLBACK, CAPTURE_WARM_UP, GET_CONFIG]
CONTROL_METHODS = [RELOAD_CONFIG, REPOSITORY_MODEL_LOAD, REPOSITORY_MODEL_UNLOAD]
VIA_PROXY = [("x-forwarded-for", "192.0.2.7")]


@pytest.fixture(scope="module")
def base_path(scale_model: ScaleModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("operators") / "scale"
    for version in (1, 2):
        scale_model.write(path, version)
    return path


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run") / "millpond"


@pytest.fixture(scope="module")
def server(start_module_server: StartServer, base_path: Path, run_directory: Path) -> ModelServer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLPOND_RUN_DIRECTORY", str(run_directory))
        server = start_module_server(
            model_name="scale", base_path=base_path, host="0.0.0.0", allow_repository_control=True
        )
    server.wait_until_available("scale", 2)
    return server


def failure(
    target: str, method: str, metadata: Sequence[tuple[str, str]] = ()
) -> tuple[grpc.StatusCode, str] | None:
    """Returns the error of an empty call of a method; None if it is answered."""
    with grpc.insecure_channel(target) as channel:
        try:
            call: Any = channel.unary_unary(method)
            call(b"", timeout=TIMEOUT_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code(), failed.details()
    return None


@pytest.mark.parametrize("method", ADMIN_METHODS)
@pytest.mark.parametrize("metadata", [[], VIA_PROXY])
def test_data_port_answers_no_operator(server: ModelServer, method: str, metadata: Any):
    failed = failure(server.target, method, metadata)
    assert failed is not None
    assert failed[0] == grpc.StatusCode.UNIMPLEMENTED
    assert "run the millpond command on the server's machine" in failed[1]


@pytest.mark.parametrize("method", CONTROL_METHODS)
def test_control_is_refused_through_proxy(server: ModelServer, method: str):
    failed = failure(server.target, method, VIA_PROXY)
    assert failed is not None
    assert failed[0] == grpc.StatusCode.PERMISSION_DENIED
    assert "--admin_on_data_port=true" in failed[1]


@pytest.mark.parametrize("method", CONTROL_METHODS)
def test_control_is_open_to_this_machine(server: ModelServer, method: str):
    # Each call fails because of the empty request, and not because of its caller.
    failed = failure(server.target, method)
    assert failed is None or failed[0] != grpc.StatusCode.PERMISSION_DENIED


def own_address() -> str:
    """Returns an address of this machine that is not a loopback address; "" if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
    return address


@pytest.mark.skipif(not own_address(), reason="the machine has loopback addresses only")
@pytest.mark.parametrize("method", CONTROL_METHODS)
def test_control_is_refused_to_other_addresses(server: ModelServer, method: str):
    failed = failure(f"{own_address()}:{server.port}", method)
    assert failed is not None
    assert failed[0] == grpc.StatusCode.PERMISSION_DENIED
    assert own_address() in failed[1]


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Origin"])
def test_http_control_is_refused_behind_proxy_or_page(server: ModelServer, verb: str, header: str):
    url = f"{server.url}/v2/repository/models/scale/{verb}"
    request = urllib.request.Request(url, b"{}", {header: "https://evil.example.com"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    with caught.value as refused:
        assert refused.code == 403
        assert "--admin_on_data_port=true" in json.loads(refused.read())["error"]


def test_socket_is_the_users_alone(server: ModelServer, run_directory: Path):
    path = Path(server.admin_target.removeprefix("unix:"))
    assert path.parent == run_directory
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(run_directory.stat().st_mode) == 0o700


def test_commands_find_the_server_without_a_flag(server: ModelServer, run_directory: Path):
    shown = millpond("status", run_directory=run_directory)
    assert "scale\t2\tAVAILABLE" in shown.stdout, shown.stderr


def test_commands_without_server_list_searched_sockets(tmp_path: Path):
    shown = millpond("status", run_directory=tmp_path / "none")
    assert shown.returncode == 1
    assert str(tmp_path / "none") in shown.stderr


def test_python_client_operates_over_the_socket(server: ModelServer):
    with Client(server.admin_target) as client:
        assert client.describe_models()["scale"]["default_version"] == 2
        assert [model.name for model in client.config()[0]] == ["scale"]


def test_several_servers_are_listed_and_one_remains(
    server: ModelServer,
    start_server: StartServer,
    base_path: Path,
    run_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("MILLPOND_RUN_DIRECTORY", str(run_directory))
    second = start_server(model_name="scale", base_path=base_path)
    shown = millpond("status", run_directory=run_directory)
    assert "2 servers of this user run on this machine" in shown.stderr
    for each in (server, second):
        assert f"--target={each.admin_target}" in shown.stderr
    target = second.admin_target
    assert millpond("status", "--target", target, run_directory=run_directory).returncode == 0
    second.stop()
    assert [f"unix:{path}" for path in run_directory.iterdir()] == [server.admin_target]


def test_killed_servers_socket_is_replaced(
    start_server: StartServer, base_path: Path, tmp_path: Path
):
    address = f"unix:{tmp_path / 'admin.sock'}"
    killed = ModelServer(model_name="scale", base_path=base_path, admin_address=address)
    with killed:
        with pytest.raises(MillpondError, match="another server listens on this socket"):
            start_server(model_name="scale", base_path=base_path, admin_address=address)
        assert failure(killed.admin_target, LIST_MODELS) is None
        killed.kill()
        assert (tmp_path / "admin.sock").exists()
        next_server = start_server(model_name="scale", base_path=base_path, admin_address=address)
        assert failure(next_server.admin_target, LIST_MODELS) is None


@pytest.mark.parametrize("flag", ["true", "false"])
def test_admin_on_data_port_opens_or_closes_it(
    start_server: StartServer, base_path: Path, flag: str
):
    server = start_server(
        model_name="scale", base_path=base_path, admin_on_data_port=flag, admin_address="off"
    )
    codes = [
        failed[0] if failed else None
        for failed in (failure(server.target, LIST_MODELS), failure(server.target, RELOAD_CONFIG))
    ]
    if flag == "true":
        assert codes[0] is None
        assert codes[1] is not grpc.StatusCode.PERMISSION_DENIED
    else:
        assert codes == [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED]


def test_named_certificates_operate_over_the_port(
    start_server: StartServer, base_path: Path, tmp_path: Path
):
    ca = make_identity(tmp_path, "ca")
    shown = make_identity(tmp_path, "server")
    for name in ("ops", "other"):
        make_identity(tmp_path, name, issuer=ca)
    file = tmp_path / "tls.config"
    file.write_text(config_text(shown.key, shown.certificate, ca.certificate, client_verify=True))
    server = start_server(
        model_name="scale", base_path=base_path, ssl_config_file=file, admin_clients="ops"
    )

    def client_as(name: str) -> Client:
        tls = Tls(
            ca_file=tmp_path / "server.crt",
            certificate_file=tmp_path / f"{name}.crt",
            key_file=tmp_path / f"{name}.key",
        )
        return Client(server.target, tls=tls)

    with client_as("ops") as operator:
        assert "scale" in operator.describe_models()
    with client_as("other") as stranger, pytest.raises(MillpondError) as caught:
        stranger.describe_models()
    assert caught.value.code == StatusCode.PERMISSION_DENIED
    assert "other" in str(caught.value)

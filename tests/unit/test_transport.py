from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.base.errors import InvalidConfig
from serving.config.server_config import ServerConfig
from serving.rpc.transport import Transport
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.servers import FakeServerCertificates
from tests.unit.pem import Identity, config_text, make_identity


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("pem"), "server")


def make(ssl_config_file: Path | str = "", rest_ssl_config_file: Path | str = "") -> Transport:
    config = ServerConfig(
        models=(),
        ssl_config_file=str(ssl_config_file),
        rest_ssl_config_file=str(rest_ssl_config_file),
    )
    return Transport(config, FakePlane(), FakeClock())


def test_transport_defaults_match_tensorflow_serving():
    transport = make()
    assert transport.certificates is None
    assert transport.rest_certificates is None
    assert "tensorflow.serving.PredictionService.Predict" in transport.reflection.symbols
    assert transport.refusal is None


@pytest.mark.parametrize("is_required", [True, False])
def test_transport_has_the_certificates_of_the_file(
    tmp_path: Path, server: Identity, is_required: bool
):
    file = tmp_path / "tls.config"
    ca = server.certificate if is_required else ""
    file.write_text(config_text(server.key, server.certificate, ca, client_verify=is_required))
    with capture_logs() as logs:
        certificates = make(file).certificates
    assert isinstance(certificates, FakeServerCertificates)
    assert certificates.first == {
        "key": server.key,
        "chain": server.certificate,
        "client_ca": ca,
        "is_client_required": is_required,
    }
    assert logs == []


def test_certificates_of_rest_are_its_own(tmp_path: Path, server: Identity):
    file = tmp_path / "tls.config"
    file.write_text(config_text(server.key, server.certificate))
    transport = make(rest_ssl_config_file=file)
    assert transport.certificates is None
    certificates = transport.rest_certificates
    assert isinstance(certificates, FakeServerCertificates)
    assert certificates.first["chain"] == server.certificate


def test_transport_warns_of_unused_ca(tmp_path: Path, server: Identity):
    file = tmp_path / "tls.config"
    file.write_text(config_text(server.key, server.certificate, server.certificate))
    with capture_logs() as logs:
        make(file)
    assert [log["event"] for log in logs] == ["clients_not_verified"]


def test_transport_without_a_readable_file_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match="cannot be read"):
        make(tmp_path / "tls.config")


@pytest.mark.parametrize("flag", ["ssl_config_file", "rest_ssl_config_file"])
def test_transport_logs_spoilt_file(tmp_path: Path, server: Identity, flag: str):
    file = tmp_path / "tls.config"
    file.write_text(config_text(server.key, server.certificate))
    transport = make(**{flag: file})
    file.write_text("no config")
    transport.start()
    # A fake clock does not wait: the thread looks again and again.
    while transport.refusal is None:
        pass
    transport.stop()
    assert transport.join(timeout_seconds=10)
    assert "not a text protobuf of SSLConfig" in transport.refusal.reason

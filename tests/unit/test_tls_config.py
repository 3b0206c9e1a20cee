import subprocess
from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig
from serving.config.tls_config import TlsConfig, parse_tls_config, read_tls_config
from tests.unit.pem import Identity, config_text, make_identity


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pem")


@pytest.fixture(scope="module")
def server(directory: Path) -> Identity:
    return make_identity(directory, "server")


@pytest.fixture(scope="module")
def other(directory: Path) -> Identity:
    return make_identity(directory, "other")


def reason(text: str) -> str:
    with pytest.raises(InvalidConfig) as refusal:
        parse_tls_config(text, "tls.config")
    assert refusal.value.message.startswith("tls.config: ")
    return refusal.value.message


def test_read_tls_config_gives_the_texts_of_the_file(
    tmp_path: Path, server: Identity, other: Identity
):
    path = tmp_path / "tls.config"
    path.write_text(
        config_text(server.key, server.certificate, other.certificate, client_verify=True)
    )
    assert read_tls_config(path) == TlsConfig(
        key=server.key,
        chain=server.certificate,
        client_ca=other.certificate,
        is_client_required=True,
    )


def test_tls_config_without_ca_verifies_no_client(server: Identity):
    config = parse_tls_config(config_text(server.key, server.certificate), "f")
    assert (config.client_ca, config.is_client_required) == ("", False)


def test_tls_config_shows_no_key(server: Identity):
    config = parse_tls_config(config_text(server.key, server.certificate), "f")
    assert "PRIVATE" not in repr(config)


def test_fingerprint_is_that_of_openssl(server: Identity, other: Identity):
    command = ["openssl", "x509", "-noout", "-fingerprint", "-sha256"]
    output = subprocess.run(
        command, input=server.certificate, capture_output=True, text=True, check=True
    ).stdout
    chain = server.certificate + other.certificate
    config = parse_tls_config(config_text(server.key, chain), "f")
    assert config.fingerprint == output.strip().partition("=")[2].replace(":", "").lower()


def test_read_tls_config_names_missing_file(tmp_path: Path):
    with pytest.raises(InvalidConfig, match=r"tls\.config: cannot be read: .*No such file"):
        read_tls_config(tmp_path / "tls.config")


def test_tls_config_bad_text_is_refused_unquoted(server: Identity):
    key = server.key.replace("\n", "\\n")
    message = reason(f'client_verify: maybe server_key: "{key}"')
    assert "line 1, column 16" in message
    assert "PRIVATE" not in message


@pytest.mark.parametrize(
    ("key", "certificate", "custom_ca", "client_verify", "expected"),
    [
        ("", "{server}", "", False, "server_key must be a private key as PEM text"),
        ("/etc/tls.key", "{server}", "", False, "server_key must be a private key as PEM text"),
        ("{key}", "", "", False, "server_cert must be certificates as PEM text"),
        ("{key}", "{other}", "", False, "KEY_VALUES_MISMATCH"),
        ("{key}", "{broken}", "", False, "server_cert and server_key are not a certificate"),
        ("{encrypted}", "{server}", "", False, "its key without a password"),
        ("{key}", "{server}", "", True, "client_verify needs custom_ca"),
        ("{key}", "{server}", "no PEM", True, "custom_ca must be certificates as PEM text"),
        ("{key}", "{server}", "{broken}", True, "custom_ca must be certificates as PEM text"),
    ],
)
def test_tls_config_unusable_field_is_refused_by_name(
    server: Identity,
    other: Identity,
    key: str,
    certificate: str,
    custom_ca: str,
    client_verify: bool,
    expected: str,
):
    encrypt = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret"]
    encrypted = subprocess.run(
        encrypt, input=server.key, capture_output=True, text=True, check=True
    ).stdout
    texts = {
        "{key}": server.key,
        "{server}": server.certificate,
        "{other}": other.certificate,
        "{broken}": server.certificate.replace("M", "m"),
        "{encrypted}": encrypted,
    }
    text = config_text(
        texts.get(key, key),
        texts.get(certificate, certificate),
        texts.get(custom_ca, custom_ca),
        client_verify=client_verify,
    )
    assert expected in reason(text)

"""The transports of gRPC that `turns` compares: TLS with a certificate of its own, and compression."""

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.drive.generator import ChannelOptions
from serving.base.errors import Unavailable

_CERTIFICATE_DAYS = 2


@dataclass(frozen=True)
class Certificate:
    """The files of a self-signed certificate for 127.0.0.1 and of the server's config with its
    key.
    """

    certificate: Path
    ssl_config: Path


def make_certificate(directory: Path) -> Certificate:
    """Makes the certificate with openssl in `directory`. Raises Unavailable if that fails."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-days", str(_CERTIFICATE_DAYS), "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"openssl cannot make a certificate: {error}") from error
    ssl_config = directory / "ssl.config"
    ssl_config.write_text(
        f"server_key: {_quoted(key.read_text())}\nserver_cert: {_quoted(certificate.read_text())}\n"
    )
    return Certificate(certificate, ssl_config)


def _quoted(pem: str) -> str:
    # Protobuf's text format reads JSON's escapes of ASCII text.
    return json.dumps(pem)


def transports(certificate: Certificate) -> Mapping[str, tuple[str, ChannelOptions]]:
    """Lists the flags of each server and its channel's options, plain gRPC first."""
    tls = f"--ssl_config_file={shlex.quote(str(certificate.ssl_config))}"
    ca = certificate.certificate
    return {
        "plain": ("", ChannelOptions()),
        "TLS": (tls, ChannelOptions(ca)),
        "gzip": ("", ChannelOptions(compression="gzip")),
        "deflate": ("", ChannelOptions(compression="deflate")),
        "TLS and gzip": (tls, ChannelOptions(ca, "gzip")),
    }

"""Servers for the tests of the wire: without TLS, with TLS, and with TLS for both sides."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from serving import ModelServer
from serving.base.protos import predict_pb2
from tests.integration.clients import TIMEOUT_SECONDS, array, predict_request
from tests.integration.exports import drop
from tests.unit.pem import Identity, config_text, make_identity

MESSAGE_BYTES_MAX = 256 << 20


@dataclass(frozen=True)
class WireServer:
    """A server of the models `echo` and `slow`, and what a client needs to trust each other."""

    server: ModelServer
    directory: Path
    trusted: Identity | None = None
    client: Identity | None = None

    @property
    def target(self) -> str:
        return self.server.target

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.target.rpartition(":")
        return host, int(port)

    def credentials(self) -> grpc.ChannelCredentials | None:
        if self.trusted is None:
            return None
        key = self.client.key.encode() if self.client else None
        chain = self.client.certificate.encode() if self.client else None
        return grpc.ssl_channel_credentials(self.trusted.certificate.encode(), key, chain)

    def ssl_context(self) -> ssl.SSLContext | None:
        if self.trusted is None:
            return None
        context = ssl.create_default_context(cadata=self.trusted.certificate)
        context.set_alpn_protocols(["h2"])
        if self.client is not None:
            context.load_cert_chain(self.directory / "client.crt", self.directory / "client.key")
        return context

    @property
    def ca_path(self) -> Path | None:
        return self.directory / "server.crt" if self.trusted else None


StartWire = Callable[[str], WireServer]
"""Takes the security: `plain`, `tls` or `mtls`."""


def start_wire_server(
    start: Callable[..., ModelServer],
    exports: Mapping[str, Path],
    directory: Path,
    security: str,
    **more_flags: Any,
) -> WireServer:
    """Starts a server of `exports`, by model name. `security` is `plain`, `tls` or `mtls`."""
    models = []
    for name, export in exports.items():
        base_path = directory / name
        base_path.mkdir()
        drop(export, base_path, 1)
        models.append(f'config {{ name: "{name}" base_path: "{base_path}" }}')
    config = directory / "models.config"
    config.write_text("model_config_list { " + " ".join(models) + " }")
    flags: dict[str, Any] = {
        "model_config_file": config,
        "max_request_bytes": MESSAGE_BYTES_MAX,
        **more_flags,
    }
    trusted, client = None, None
    if security != "plain":
        trusted = make_identity(directory, "server")
        ca = ""
        if security == "mtls":
            authority = make_identity(directory, "ca")
            client = make_identity(directory, "client", issuer=authority)
            ca = authority.certificate
        file = directory / "tls.config"
        file.write_text(
            config_text(trusted.key, trusted.certificate, ca, client_verify=security == "mtls")
        )
        flags["ssl_config_file"] = file
    server = start(**flags)
    server.wait_for_event(lambda logged: logged["event"] == "ready", TIMEOUT_SECONDS)
    return WireServer(server, directory, trusted, client)


def echo_bytes_request(size: int, seed: int = 7, period: int | None = None) -> bytes:
    """Returns a Predict whose reply has these random bytes too. They compress if they repeat."""
    values = np.random.default_rng(seed).integers(0, 256, period or size, np.uint8)
    values = np.resize(values, size)
    request = predict_request("echo", {"x": values}, signature_name="echo_uint8")
    message: bytes = request.SerializeToString()
    return message


def is_echo(reply: bytes, request: bytes) -> bool:
    """Returns True if the reply to an `echo_bytes_request` has its bytes."""
    sent = predict_pb2.PredictRequest.FromString(request).inputs["x"]
    answer = predict_pb2.PredictResponse.FromString(reply).outputs["y"]
    return bool(np.array_equal(array(answer), array(sent)))


def sleep_request(seconds: float) -> bytes:
    """Returns a Predict that computes for `seconds`."""
    request = predict_request("slow", {"seconds": np.float64(seconds)})
    message: bytes = request.SerializeToString()
    return message

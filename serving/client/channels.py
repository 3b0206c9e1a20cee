"""Channels to servers: TLS, compression and the options that all clients share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import grpc
import grpc.aio

from serving.base.errors import InvalidArgument
from serving.client.stubs import ModelServiceStub, PredictionServiceStub

Compression = Literal["none", "gzip", "deflate"]

_COMPRESSIONS = {
    "none": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}

_DEFAULT_OPTIONS = {
    # Models take and return large tensors. The server has its own limit.
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    # A restarted server is found within a second. The default of gRPC is two minutes.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
}


@dataclass(frozen=True, kw_only=True)
class Tls:
    """PEM files for TLS. Without `ca_file` the server is checked against gRPC's root certificates.

    `certificate_file` and `key_file` are the client's, for a server that requires them. `server_name`
    is the name in the server's certificate if it differs from the target's host.
    """

    ca_file: str | Path | None = None
    certificate_file: str | Path | None = None
    key_file: str | Path | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidArgument(
                f"certificate {self.certificate_file} and key {self.key_file}: "
                "a client's certificate needs its key, and the key its certificate"
            )

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises InvalidArgument if a file cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca_file),
            private_key=_read(self.key_file),
            certificate_chain=_read(self.certificate_file),
        )


@dataclass(frozen=True, kw_only=True)
class ChannelSettings:
    """The settings of new channels. `options` are gRPC channel arguments by name, and override others."""

    tls: Tls | None = None
    compression: Compression = "none"
    options: Mapping[str, int | str] = field(default_factory=dict)

    def open(self, target: str) -> grpc.Channel:
        """Returns a channel for any thread."""
        compression, options = self._compression(), self._arguments()
        if self.tls is None:
            return grpc.insecure_channel(target, options, compression)
        return grpc.secure_channel(target, self.tls.credentials(), options, compression)

    def open_asyncio(self, target: str) -> grpc.aio.Channel:
        """Returns a channel for the running event loop."""
        compression, options = self._compression(), self._arguments()
        if self.tls is None:
            return grpc.aio.insecure_channel(target, options, compression)
        return grpc.aio.secure_channel(target, self.tls.credentials(), options, compression)

    def _compression(self) -> grpc.Compression:
        if self.compression not in _COMPRESSIONS:
            raise InvalidArgument(
                f"compression={self.compression!r}; it is one of {sorted(_COMPRESSIONS)}"
            )
        return _COMPRESSIONS[self.compression]

    def _arguments(self) -> list[tuple[str, Any]]:
        named: dict[str, int | str] = {**_DEFAULT_OPTIONS}
        if self.tls is not None and self.tls.server_name:
            named["grpc.ssl_target_name_override"] = self.tls.server_name
        return list({**named, **self.options}.items())


class ServerStubs:
    """One server: its channel, the standard stubs, and other methods by their path."""

    def __init__(self, target: str, channel: Any) -> None:
        """`channel` is a `grpc.Channel` or a `grpc.aio.Channel`; all stubs and methods are of its kind."""
        self.target = target
        self.channel = channel
        self.predictions = PredictionServiceStub(channel)
        self.models = ModelServiceStub(channel)

    def method(self, path: str) -> Any:
        """Returns a unary method that takes and returns bytes."""
        return self.channel.unary_unary(path)


ChooseMethod = Callable[[ServerStubs], Any]
"""Returns the method of a server that a call uses."""

PREDICT: ChooseMethod = attrgetter("predictions.Predict")
CLASSIFY: ChooseMethod = attrgetter("predictions.Classify")
REGRESS: ChooseMethod = attrgetter("predictions.Regress")
MODEL_METADATA: ChooseMethod = attrgetter("predictions.GetModelMetadata")
MODEL_STATUS: ChooseMethod = attrgetter("models.GetModelStatus")


def target_list(target: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the targets of one server or several. Raises InvalidArgument if one is missing or empty."""
    targets = (target,) if isinstance(target, str) else tuple(target)
    if not targets or not all(targets):
        raise InvalidArgument(f"{target!r} names no server; give HOST:PORT, or a list of them")
    return targets


def _read(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error}") from error

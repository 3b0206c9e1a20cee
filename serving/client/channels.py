"""Channels to servers: TLS, compression and the options that all clients have."""

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
    # Models take and give large tensors; the server has its own limit.
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    # A server that comes back is seen within a second, where gRPC's own limit is two minutes.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
}


@dataclass(frozen=True, kw_only=True)
class Tls:
    """PEM files. All may be left out: the server is then checked against gRPC's own root certificates.

    `certificate_file` and `key_file` are the client's own, for a server that asks for them.
    `server_name` is the name in the server's certificate where it is not the target's.
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
        """Reads the files. Raises InvalidArgument where one cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca_file),
            private_key=_read(self.key_file),
            certificate_chain=_read(self.certificate_file),
        )


@dataclass(frozen=True, kw_only=True)
class ChannelSettings:
    """How channels are opened. `options` are gRPC's channel arguments by name; they win."""

    tls: Tls | None = None
    compression: Compression = "none"
    options: Mapping[str, int | str] = field(default_factory=dict)

    def open(self, target: str) -> grpc.Channel:
        """A channel for any thread."""
        compression, options = self._compression(), self._arguments()
        if self.tls is None:
            return grpc.insecure_channel(target, options, compression)
        return grpc.secure_channel(target, self.tls.credentials(), options, compression)

    def open_asyncio(self, target: str) -> grpc.aio.Channel:
        """A channel for the event loop that runs."""
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
    """One server: its channel, the stock stubs over it, and any other method by its path."""

    def __init__(self, target: str, channel: Any) -> None:
        """`channel` is a `grpc.Channel` or a `grpc.aio.Channel`, and everything here of its kind."""
        self.target = target
        self.channel = channel
        self.predictions = PredictionServiceStub(channel)
        self.models = ModelServiceStub(channel)

    def method(self, path: str) -> Any:
        """A unary method that takes and gives bytes."""
        return self.channel.unary_unary(path)


ChooseMethod = Callable[[ServerStubs], Any]
"""Which of a server's methods a call is of."""

PREDICT: ChooseMethod = attrgetter("predictions.Predict")
CLASSIFY: ChooseMethod = attrgetter("predictions.Classify")
REGRESS: ChooseMethod = attrgetter("predictions.Regress")
MODEL_METADATA: ChooseMethod = attrgetter("predictions.GetModelMetadata")
MODEL_STATUS: ChooseMethod = attrgetter("models.GetModelStatus")


def target_list(target: str | Sequence[str]) -> tuple[str, ...]:
    """The targets of one server or several. Raises InvalidArgument where there is none."""
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

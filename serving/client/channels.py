"""The options of clients, and the channels that they make."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypedDict

import grpc
import grpc.aio

from serving.base.errors import InvalidArgument
from serving.client.service_config import RetryPolicy, service_config
from serving.client.stubs import ModelServiceStub, PredictionServiceStub
from serving.client.targets import joined

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
    # A restarted server is found within a second. gRPC's default is two minutes.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
    # gRPC keeps the bytes of a request for another attempt. By default it would send a larger request only
    # once.
    "grpc.per_rpc_retry_buffer_size": 2**31 - 1,
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


class ClientOptions(TypedDict, total=False):
    """The optional arguments of a client.

    `timeout_seconds` is the deadline of calls without their own. `channel_options` are gRPC channel
    arguments by name, and override this module's. `health_service` chooses the health by which several
    servers take part: that of the server (""), or that of a model, by its name.
    """

    timeout_seconds: float
    retries: RetryPolicy
    tls: Tls | None
    compression: Compression
    channel_options: Mapping[str, int | str]
    health_service: str


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The options of a client, complete, and the channels that they make."""

    timeout_seconds: float = 60
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    tls: Tls | None = None
    compression: Compression = "none"
    channel_options: Mapping[str, int | str] = field(default_factory=dict)
    health_service: str = ""

    def open(self, targets: Sequence[str]) -> grpc.Channel:
        """Opens a channel for any thread."""
        target, options, compression = self._arguments(targets)
        if self.tls is None:
            return grpc.insecure_channel(target, options, compression)
        return grpc.secure_channel(target, self.tls.credentials(), options, compression)

    def open_asyncio(self, targets: Sequence[str]) -> grpc.aio.Channel:
        """Opens a channel for the running event loop."""
        target, options, compression = self._arguments(targets)
        if self.tls is None:
            return grpc.aio.insecure_channel(target, options, compression)
        return grpc.aio.secure_channel(target, self.tls.credentials(), options, compression)

    def _arguments(
        self, targets: Sequence[str]
    ) -> tuple[str, list[tuple[str, Any]], grpc.Compression]:
        if self.compression not in _COMPRESSIONS:
            raise InvalidArgument(
                f"compression={self.compression!r}; it is one of {sorted(_COMPRESSIONS)}"
            )
        options = list(self._options(is_balanced=len(targets) > 1).items())
        return joined(targets), options, _COMPRESSIONS[self.compression]

    def _options(self, *, is_balanced: bool) -> dict[str, int | str]:
        named: dict[str, int | str] = {**_DEFAULT_OPTIONS}
        named["grpc.service_config"] = service_config(
            self.retries, is_balanced=is_balanced, health_service=self.health_service
        )
        if self.tls is not None and self.tls.server_name:
            named["grpc.ssl_target_name_override"] = self.tls.server_name
        elif self.tls is not None and is_balanced:
            raise InvalidArgument(
                "several servers with TLS need one name in all their certificates: "
                "give Tls(server_name=…)"
            )
        return {**named, **self.channel_options}


class ServerStubs:
    """The methods of a channel: the standard stubs, and other methods by their path."""

    def __init__(self, channel: Any) -> None:
        """`channel` is a `grpc.Channel` or a `grpc.aio.Channel`; all stubs and methods are of its kind."""
        self.channel = channel
        self.predictions = PredictionServiceStub(channel)
        self.models = ModelServiceStub(channel)

    def method(self, path: str) -> Any:
        """Makes a unary method that takes and returns bytes."""
        return self.channel.unary_unary(path)


ChooseMethod = Callable[[ServerStubs], Any]
"""Finds the method of a channel that a call uses."""

PREDICT: ChooseMethod = attrgetter("predictions.Predict")
CLASSIFY: ChooseMethod = attrgetter("predictions.Classify")
REGRESS: ChooseMethod = attrgetter("predictions.Regress")
MODEL_METADATA: ChooseMethod = attrgetter("predictions.GetModelMetadata")
MODEL_STATUS: ChooseMethod = attrgetter("models.GetModelStatus")


def _read(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error}") from error

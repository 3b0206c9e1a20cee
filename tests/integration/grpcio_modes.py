"""grpcio in each of its modes behind one interface: blocking, asyncio, and channel settings."""

import asyncio
import json
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from tests.integration.clients import TIMEOUT_SECONDS
from tests.integration.wire_servers import WireServer

T = TypeVar("T")
Metadata = Sequence[tuple[str, str | bytes]]
Options = Sequence[tuple[str, Any]]

_UNLIMITED: Options = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
_RETRY = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


@dataclass(frozen=True)
class Outcome:
    """The end of a call as the client has it."""

    code: grpc.StatusCode
    details: str = ""
    reply: bytes = b""


class ModeClient(Protocol):
    """A channel of one mode. Messages are bytes; a call that fails is an outcome too."""

    def call(
        self, path: str, message: bytes, timeout: float = TIMEOUT_SECONDS, metadata: Metadata = ()
    ) -> Outcome: ...

    def call_all(self, path: str, messages: Sequence[bytes]) -> list[Outcome]:
        """Makes all calls at once."""

    def cancel(self, path: str, message: bytes, after_seconds: float) -> Outcome:
        """Starts a call and cancels it."""

    def exchange(self, path: str, messages: Sequence[bytes]) -> list[bytes]:
        """Sends a stream and returns the answer's messages until the server ends it."""

    def first_of_stream(self, path: str, message: bytes) -> tuple[bytes, grpc.StatusCode]:
        """Reads one message of a server's stream; returns it and the code after a cancellation."""

    def close(self) -> None: ...


class BlockingClient:
    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        options: Options,
        compression: grpc.Compression | None,
    ) -> None:
        arguments: dict[str, Any] = {"options": options, "compression": compression}
        self._channel: Any = (
            grpc.insecure_channel(target, **arguments)
            if credentials is None
            else grpc.secure_channel(target, credentials, **arguments)
        )

    def call(
        self, path: str, message: bytes, timeout: float = TIMEOUT_SECONDS, metadata: Metadata = ()
    ) -> Outcome:
        method = self._channel.unary_unary(path)
        try:
            reply = method(message, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            failed: Any = error
            return Outcome(failed.code(), failed.details())
        return Outcome(grpc.StatusCode.OK, reply=reply)

    def call_all(self, path: str, messages: Sequence[bytes]) -> list[Outcome]:
        method = self._channel.unary_unary(path)
        calls = [method.future(message, timeout=TIMEOUT_SECONDS) for message in messages]
        return [self._outcome(call) for call in calls]

    def cancel(self, path: str, message: bytes, after_seconds: float) -> Outcome:
        call = self._channel.unary_unary(path).future(message, timeout=TIMEOUT_SECONDS)
        try:
            call.result(timeout=after_seconds)
        except grpc.FutureTimeoutError:
            call.cancel()
        return self._outcome(call)

    def exchange(self, path: str, messages: Sequence[bytes]) -> list[bytes]:
        stream = self._channel.stream_stream(path)
        return list(stream(iter(messages), timeout=TIMEOUT_SECONDS))

    def first_of_stream(self, path: str, message: bytes) -> tuple[bytes, grpc.StatusCode]:
        stream = self._channel.unary_stream(path)(message, timeout=TIMEOUT_SECONDS)
        first = next(stream)
        stream.cancel()
        return first, stream.code()

    def close(self) -> None:
        self._channel.close()

    @staticmethod
    def _outcome(call: Any) -> Outcome:
        code = call.code()
        is_ok = code is grpc.StatusCode.OK
        return Outcome(code, call.details() or "", call.result() if is_ok else b"")


class AsyncioClient:
    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        options: Options,
        compression: grpc.Compression | None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._channel: Any = self._run(self._open(target, credentials, options, compression))

    def call(
        self, path: str, message: bytes, timeout: float = TIMEOUT_SECONDS, metadata: Metadata = ()
    ) -> Outcome:
        return self._run(self._call(path, message, timeout, metadata))

    def call_all(self, path: str, messages: Sequence[bytes]) -> list[Outcome]:
        async def run() -> list[Outcome]:
            calls = [self._call(path, message, TIMEOUT_SECONDS, ()) for message in messages]
            return list(await asyncio.gather(*calls))

        return self._run(run())

    def cancel(self, path: str, message: bytes, after_seconds: float) -> Outcome:
        async def run() -> Outcome:
            call = self._channel.unary_unary(path)(message, timeout=TIMEOUT_SECONDS)
            await asyncio.sleep(after_seconds)
            call.cancel()
            return Outcome(await call.code(), await call.details())

        return self._run(run())

    def exchange(self, path: str, messages: Sequence[bytes]) -> list[bytes]:
        async def run() -> list[bytes]:
            stream = self._channel.stream_stream(path)
            return [reply async for reply in stream(iter(messages), timeout=TIMEOUT_SECONDS)]

        return self._run(run())

    def first_of_stream(self, path: str, message: bytes) -> tuple[bytes, grpc.StatusCode]:
        async def run() -> tuple[bytes, grpc.StatusCode]:
            stream = self._channel.unary_stream(path)(message, timeout=TIMEOUT_SECONDS)
            first = await stream.read()
            stream.cancel()
            return first, await stream.code()

        return self._run(run())

    def close(self) -> None:
        self._run(self._channel.close())
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    async def _open(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None,
        options: Options,
        compression: grpc.Compression | None,
    ) -> Any:
        arguments: dict[str, Any] = {"options": options, "compression": compression}
        if credentials is None:
            return grpc.aio.insecure_channel(target, **arguments)
        return grpc.aio.secure_channel(target, credentials, **arguments)

    async def _call(self, path: str, message: bytes, timeout: float, metadata: Metadata) -> Outcome:
        method = self._channel.unary_unary(path)
        try:
            reply = await method(message, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return Outcome(error.code(), error.details() or "")
        return Outcome(grpc.StatusCode.OK, reply=reply)


@dataclass(frozen=True)
class Mode:
    client_class: type[BlockingClient] | type[AsyncioClient] = BlockingClient
    options: Options = field(default_factory=list)
    compression: grpc.Compression | None = None
    target: str = "{target}"

    @contextmanager
    def client(self, wire: WireServer, more_options: Options = ()) -> Iterator[ModeClient]:
        options = [*_UNLIMITED, *self.options, *more_options]
        target = self.target.format(target=wire.target)
        client = self.client_class(target, wire.credentials(), options, self.compression)
        with closing(client):
            yield client


_RETRIES: Options = [("grpc.enable_retries", 1), ("grpc.service_config", json.dumps(_RETRY))]
_ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})

MODES = {
    "blocking": Mode(options=[("grpc.enable_retries", 0)]),
    "retries": Mode(options=_RETRIES),
    "round_robin": Mode(
        options=[
            ("grpc.service_config", _ROUND_ROBIN),
            # A list of addresses has no name that a certificate could be for.
            ("grpc.ssl_target_name_override", "localhost"),
        ],
        target="ipv4:{target},{target}",
    ),
    "gzip": Mode(compression=grpc.Compression.Gzip),
    "deflate": Mode(compression=grpc.Compression.Deflate),
    "asyncio": Mode(AsyncioClient, options=[("grpc.enable_retries", 0)]),
    "asyncio_retries": Mode(AsyncioClient, options=_RETRIES),
    "asyncio_gzip": Mode(AsyncioClient, compression=grpc.Compression.Gzip),
}

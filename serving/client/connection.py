"""The part that the blocking and the asyncio client share."""

from typing import Any

import grpc

from serving.base.errors import FailedPrecondition, InvalidArgument, MillpondError
from serving.client.calls import Call, Reply
from serving.client.channels import ServerStubs
from serving.client.failures import error_of


class Connection:
    """Sends calls over one channel, blocking or asyncio, to one server or several.

    Used from any thread with a `grpc.Channel`, and in one event loop with a `grpc.aio.Channel`.
    """

    def __init__(self, targets: tuple[str, ...], channel: Any, timeout_seconds: float) -> None:
        """`timeout_seconds` is the deadline of calls without their own."""
        self.targets = targets
        self._stubs = ServerStubs(channel)
        self._timeout_seconds = timeout_seconds
        self._is_closed = False

    def run(self, call: Call[Reply]) -> Reply:
        """Sends a call, and returns the reply. Over a blocking channel. Raises MillpondError."""
        try:
            return call.read(self._start(call))
        except grpc.RpcError as error:
            raise self._error(error, call) from error

    async def run_async(self, call: Call[Reply]) -> Reply:
        """Sends a call, and returns the reply. Over an asyncio channel. Raises MillpondError."""
        try:
            return call.read(await self._start(call))
        except grpc.RpcError as error:
            raise self._error(error, call) from error

    def close(self) -> Any:
        """Closes the channel and cancels running calls. Returns an awaitable for an asyncio channel."""
        self._is_closed = True
        return self._stubs.channel.close()

    def only(self) -> "Connection":
        """Itself, for calls to a single server. Raises InvalidArgument if there are several."""
        if len(self.targets) > 1:
            raise InvalidArgument(
                f"this call goes to one server, and the client has {len(self.targets)}: "
                f"{', '.join(self.targets)}; make a client for one of them"
            )
        return self

    def _start(self, call: Call[Any]) -> Any:
        """Starts a call. Returns the response, or an awaitable of it."""
        if self._is_closed:
            raise FailedPrecondition("the client is closed; make another one")
        metadata = tuple(call.metadata.items()) if call.metadata else None
        method = call.method(self._stubs)
        return method(call.request, timeout=self._timeout_of(call), metadata=metadata)

    def _timeout_of(self, call: Call[Any]) -> float:
        return self._timeout_seconds if call.timeout_seconds is None else call.timeout_seconds

    def _error(self, error: grpc.RpcError, call: Call[Any]) -> MillpondError:
        return error_of(error, ", ".join(self.targets), self._timeout_of(call))

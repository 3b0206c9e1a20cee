"""Calls one server, or several in turn: attempts, pauses and deadlines of an asyncio client."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from serving.base.clock import Clock
from serving.base.errors import FailedPrecondition
from serving.client.channels import ChooseMethod, ServerStubs
from serving.client.failures import CLOSED_MESSAGE, Failure, error_of, failure_of
from serving.client.health_watch import WATCH_AGAIN_SECONDS
from serving.client.retries import Attempts, RetryPolicy
from serving.client.rotation import (
    HEALTH_WATCH,
    Health,
    Rotation,
    health_of_failed_watch,
    health_of_response,
    watch_request,
)

Sleep = Callable[[float], Awaitable[None]]


class AsyncServers:
    """Calls servers as `Servers` does, with tasks instead of threads.

    It belongs to the event loop that runs when it is created.
    """

    def __init__(
        self,
        targets: Sequence[str],
        open_channel: Callable[[str], grpc.aio.Channel],
        *,
        retries: RetryPolicy,
        health_service: str,
        clock: Clock,
        sleep: Sleep,
        random: Callable[[], float],
    ) -> None:
        """`random` returns numbers in [0, 1)."""
        self.targets = tuple(targets)
        self._retries = retries
        self._health_service = health_service
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._rotation = Rotation(len(targets))
        self._servers = [ServerStubs(target, open_channel(target)) for target in targets]
        self._is_closed = False
        watched = enumerate(self._servers) if len(targets) > 1 else ()
        self._watches = [
            asyncio.get_running_loop().create_task(self._watch(index, server))
            for index, server in watched
        ]

    @property
    def healths(self) -> tuple[Health, ...]:
        """The health that each server reports, in the order given; UNKNOWN for a single server."""
        return self._rotation.healths

    async def close(self) -> None:
        """Ends the watches, closes the channels and cancels running calls."""
        self._is_closed = True
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for server in self._servers:
            await server.channel.close()

    async def call(
        self,
        choose: ChooseMethod,
        request: Any,
        timeout_seconds: float,
        *,
        metadata: Mapping[str, str] | None = None,
        retries: RetryPolicy | None = None,
    ) -> Any:
        """Returns the response of the server whose turn it is. Tries the next server if the call fails.

        Raises MillpondError after the last attempt.
        """
        attempts = Attempts(retries or self._retries, timeout_seconds, self._clock, self._random)
        failed_index = None
        while True:
            if self._is_closed:
                raise FailedPrecondition(CLOSED_MESSAGE)
            index = self._rotation.take(avoid=failed_index)
            server = self._servers[index]
            try:
                return await choose(server)(
                    request,
                    timeout=attempts.remaining_seconds,
                    metadata=tuple(metadata.items()) if metadata else None,
                )
            except grpc.RpcError as error:
                failure = failure_of(error)
                pause_seconds = self._pause_after(attempts, failure)
                if pause_seconds is None:
                    raise error_of(failure, server.target, timeout_seconds) from error
            failed_index = index
            await self._sleep(pause_seconds)

    def _pause_after(self, attempts: Attempts, failure: Failure) -> float | None:
        # A call that `close` cancels must not be tried again.
        return None if self._is_closed else attempts.pause_after(failure)

    async def _watch(self, index: int, server: ServerStubs) -> None:
        watch: Any = server.channel.unary_stream(HEALTH_WATCH)
        request = watch_request(self._health_service)
        while True:
            try:
                async for response in watch(request):
                    self._rotation.report(index, health_of_response(response))
                self._rotation.report(index, Health.DOWN)
            except grpc.RpcError as error:
                code = failure_of(error).code
                self._rotation.report(index, health_of_failed_watch(code))
            await self._sleep(WATCH_AGAIN_SECONDS)

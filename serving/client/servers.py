"""Calls one server, or several in turn: attempts, pauses and deadlines of a blocking client."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from serving.base.clock import Clock, pause
from serving.base.errors import FailedPrecondition, InvalidArgument
from serving.client.channels import ChooseMethod, ServerStubs
from serving.client.failures import CLOSED_MESSAGE, Failure, error_of, failure_of
from serving.client.health_watch import HealthWatch
from serving.client.retries import ONE_ATTEMPT, Attempts, RetryPolicy
from serving.client.rotation import Health, Rotation


class Servers:
    """Calls servers from any thread. Owns the channels, and a health watch thread for each of several."""

    def __init__(
        self,
        targets: Sequence[str],
        open_channel: Callable[[str], grpc.Channel],
        *,
        retries: RetryPolicy,
        health_service: str,
        clock: Clock,
        random: Callable[[], float],
    ) -> None:
        """`random` returns numbers in [0, 1). A single server is not watched: it gets every call anyway."""
        self.targets = tuple(targets)
        self._retries = retries
        self._clock = clock
        self._random = random
        self._rotation = Rotation(len(targets))
        self._servers = [ServerStubs(target, open_channel(target)) for target in targets]
        self._is_closed = False
        watched = enumerate(self._servers) if len(targets) > 1 else ()
        self._watches = [
            HealthWatch(server.channel, health_service, self._reporter(index), clock)
            for index, server in watched
        ]
        for watch in self._watches:
            watch.start()

    @property
    def healths(self) -> tuple[Health, ...]:
        """The health that each server reports, in the order given; UNKNOWN for a single server."""
        return self._rotation.healths

    def close(self) -> None:
        """Ends the watches, closes the channels and cancels running calls."""
        self._is_closed = True
        for watch in self._watches:
            watch.close()
        for server in self._servers:
            server.channel.close()

    def call(
        self,
        choose: ChooseMethod,
        request: Any,
        timeout_seconds: float,
        *,
        metadata: Mapping[str, str] | None = None,
        is_repeatable: bool = True,
    ) -> Any:
        """Returns the response of the server whose turn it is. Tries the next server if the call fails.

        Raises MillpondError after the last attempt. A call without `is_repeatable` is sent once: the
        server may have done it although the call failed.
        """
        policy = self._retries if is_repeatable else ONE_ATTEMPT
        attempts = Attempts(policy, timeout_seconds, self._clock, self._random)
        failed_index = None
        while True:
            if self._is_closed:
                raise FailedPrecondition(CLOSED_MESSAGE)
            index = self._rotation.take(avoid=failed_index)
            server = self._servers[index]
            try:
                return choose(server)(
                    request, timeout=attempts.remaining_seconds, metadata=_pairs(metadata)
                )
            except grpc.RpcError as error:
                failure = failure_of(error)
                wait_seconds = self._pause_after(attempts, failure)
                if wait_seconds is None:
                    raise error_of(failure, server.target, timeout_seconds) from error
            failed_index = index
            pause(self._clock, wait_seconds)

    def only(self) -> "Servers":
        """Returns itself, for calls to a single server. Raises InvalidArgument if there are several."""
        if len(self.targets) > 1:
            raise InvalidArgument(
                f"this call goes to one server, and the client has {len(self.targets)}: "
                f"{', '.join(self.targets)}; make a client for one of them"
            )
        return self

    def _pause_after(self, attempts: Attempts, failure: Failure) -> float | None:
        # A call that `close` cancels must not be tried again.
        return None if self._is_closed else attempts.pause_after(failure)

    def _reporter(self, index: int) -> Callable[[Health], None]:
        return lambda health: self._rotation.report(index, health)


def _pairs(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...] | None:
    return tuple(metadata.items()) if metadata else None

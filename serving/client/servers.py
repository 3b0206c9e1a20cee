"""One server or several, asked in turn: attempts, pauses and deadlines of a blocking client."""

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
    """Any thread. Owns the channels, and a thread for each of several servers that watches its health."""

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
        """`random` gives numbers in [0, 1). A server that is alone is not watched: it is asked in any case."""
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
        """What each server says of itself, in the order given; UNKNOWN where there is only one."""
        return self._rotation.healths

    def close(self) -> None:
        """Ends the watches and closes the channels; running calls are cancelled."""
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
        """The response of whose turn it is, or of the next where that fails. Raises MillpondError.

        A call that is not `is_repeatable` is sent once: it may have been done although it failed.
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
        """Itself, for what is asked of one server. Raises InvalidArgument where there are several."""
        if len(self.targets) > 1:
            raise InvalidArgument(
                f"this is asked of one server, and the client has {len(self.targets)}: "
                f"{', '.join(self.targets)}; make a client of one of them"
            )
        return self

    def _pause_after(self, attempts: Attempts, failure: Failure) -> float | None:
        # What `close` cancels must not begin again.
        return None if self._is_closed else attempts.pause_after(failure)

    def _reporter(self, index: int) -> Callable[[Health], None]:
        return lambda health: self._rotation.report(index, health)


def _pairs(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...] | None:
    return tuple(metadata.items()) if metadata else None

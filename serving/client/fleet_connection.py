"""Connections to a fleet: one gRPC channel to all its servers, replaced when their list changes.

gRPC chooses among the servers, watches their health and tries calls again, as for a list of servers. A
gRPC channel of Python cannot get other addresses. So a new channel takes the place of the old one,
which ends the calls that it has.

The registry is read beside calls, at most every REFRESH_SECONDS. So a client that sends nothing reads
nothing. Only two calls wait for the registry: the first one, and one that no server has answered.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio

from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.errors import FailedPrecondition, MillpondError, Unavailable
from serving.client.calls import Call, Reply
from serving.client.channels import ClientSettings
from serving.client.connection import Connection, check_single
from serving.client.fleet_registry import Registry, addresses_of, parse_registry, registry_of

REFRESH_SECONDS = 5.0
"""gRPC leaves a server that drains or ends by itself. The registry is read for servers that are new."""

_URGENT_SECONDS = 0.25
"""The time for which a list is still new to calls that no server has answered."""

_CONNECT_SECONDS = 1.0
"""The time that a new channel gets to connect before it takes calls: longer than a health check takes."""


class FleetList:
    """The servers of a fleet as the registry listed them last. One thread at a time reads."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._read_at_ns: int | None = None
        self.targets: tuple[str, ...] = ()
        """The addresses of the servers; none before the first read."""

    def is_older_than(self, seconds: float) -> bool:
        at_ns = self._read_at_ns
        return at_ns is None or self._clock.now_ns() - at_ns >= round(seconds * NS_PER_SECOND)

    def read(self) -> tuple[str, ...]:
        """Returns the servers now. Without an answer or a server, it returns the last ones.

        A coordinator that has just started may not list its servers yet. Raises Unavailable if there
        are no last ones.
        """
        try:
            targets = addresses_of(parse_registry(self._registry.read()))
            reason = "it lists no server" if not targets else ""
        except (MillpondError, OSError, UnicodeDecodeError) as error:
            targets, reason = (), str(error)
        self._read_at_ns = self._clock.now_ns()
        if not targets and not self.targets:
            raise Unavailable(f"no servers of the fleet are known: {self._registry}: {reason}")
        self.targets = targets or self.targets
        return self.targets


class Generation:
    """A channel to the servers of one list, and the number of its calls. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._call_count = 0
        self._is_retired = False

    @property
    def targets(self) -> tuple[str, ...]:
        return self.connection.targets

    def begin(self) -> bool:
        """Counts a call. Returns False if the channel may be closed."""
        with self._lock:
            if not self._is_retired:
                self._call_count += 1
            return not self._is_retired

    def end(self) -> bool:
        """Ends a call. Returns True if the channel must be closed now."""
        with self._lock:
            self._call_count -= 1
            return self._is_retired and self._call_count == 0

    def retire(self) -> bool:
        """Lets no further call begin. Returns True if the channel must be closed now."""
        with self._lock:
            self._is_retired = True
            return self._call_count == 0


@dataclass(frozen=True)
class FleetSettings:
    """The servers of a fleet, and the client's part in its calls."""

    servers: FleetList
    clock: Clock
    timeout_seconds: float
    is_retrying: bool

    @staticmethod
    def of(target: str, settings: ClientSettings, clock: Clock) -> "FleetSettings":
        """Returns the settings of a fleet's target. Raises InvalidTargets."""
        return FleetSettings(
            FleetList(registry_of(target), clock),
            clock,
            settings.timeout_seconds,
            settings.retries.attempt_count_max > 1,
        )

    def with_deadline(self, call: Call[Reply], started_ns: int) -> Call[Reply]:
        """Returns the call with the rest of its time."""
        return replace(call, timeout_seconds=self.seconds_left(call, started_ns))

    def seconds_left(self, call: Call[Any], started_ns: int) -> float:
        whole = self.timeout_seconds if call.timeout_seconds is None else call.timeout_seconds
        return max(0.0, whole - seconds_since(self.clock, started_ns))

    def new_generation(self, targets: tuple[str, ...], channel: Any) -> Generation:
        return Generation(Connection(targets, channel, self.timeout_seconds))


class FleetConnection:
    """The connection of the blocking client. Any thread. A thread of its own reads the registry."""

    def __init__(
        self, fleet: FleetSettings, open_channel: Callable[[Sequence[str]], grpc.Channel]
    ) -> None:
        self._fleet = fleet
        self._open_channel = open_channel
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="fleet-registry")
        # Guards the members below.
        self._lock = threading.Lock()
        self._present: Generation | None = None
        self._reading: Future[None] | None = None
        self._retired: set[Generation] = set()
        self._is_closed = False

    @property
    def targets(self) -> tuple[str, ...]:
        return self._fleet.servers.targets

    def run(self, call: Call[Reply]) -> Reply:
        """Returns the reply. Raises MillpondError.

        A call that no server has answered is tried again if the list has changed since.
        """
        started_ns = self._fleet.clock.now_ns()
        with self._begun(call, started_ns) as used:
            try:
                return used.connection.run(self._fleet.with_deadline(call, started_ns))
            except Unavailable:
                if not (call.is_repeatable and self._fleet.is_retrying):
                    raise
                reading = self._start_reading(_URGENT_SECONDS)
                wait([reading], self._fleet.seconds_left(call, started_ns))
                if self._present is used:
                    raise
        with self._begun(call, started_ns) as other:
            return other.connection.run(self._fleet.with_deadline(call, started_ns))

    def only(self) -> "FleetConnection":
        """Returns itself, for calls to a single server. Raises InvalidArgument if there are several."""
        self._wait_for_list(self._fleet.timeout_seconds)
        check_single(self.targets)
        return self

    def close(self) -> None:
        """Closes the channels and cancels running calls."""
        with self._lock:
            self._is_closed = True
            open_ones = {*self._retired, *((self._present,) if self._present else ())}
        self._executor.shutdown(wait=False, cancel_futures=True)
        for generation in open_ones:
            generation.connection.close()

    @contextmanager
    def _begun(self, call: Call[Any], started_ns: int) -> Iterator[Generation]:
        """Counts a call of the present channel. Waits for the first list."""
        generation = self._begin(call, started_ns)
        try:
            yield generation
        finally:
            if generation.end():
                self._close(generation)

    def _begin(self, call: Call[Any], started_ns: int) -> Generation:
        self._wait_for_list(self._fleet.seconds_left(call, started_ns))
        while True:
            generation = self._present
            assert generation is not None
            if generation.begin():
                return generation

    def _wait_for_list(self, seconds: float) -> None:
        """Returns with a channel. Only the first list is waited for; a later one is read beside calls."""
        reading = self._start_reading(REFRESH_SECONDS)
        if self._present is None:
            if not wait([reading], seconds).done:
                raise Unavailable(f"no list of the fleet's servers after {seconds:g} s")
            reading.result()

    def _start_reading(self, seconds: float) -> "Future[None]":
        """Returns the read under way, or a new one if the list is older than `seconds`."""
        with self._lock:
            if self._is_closed:
                raise FailedPrecondition("the client is closed; make another one")
            is_due = self._present is None or self._fleet.servers.is_older_than(seconds)
            if self._reading is None or (self._reading.done() and is_due):
                self._reading = self._executor.submit(self._refresh)
            return self._reading

    def _refresh(self) -> None:
        targets = self._fleet.servers.read()
        before = self._present
        if before is not None and before.targets == targets:
            return
        channel = self._open_channel(targets)
        if before is not None:
            with suppress(grpc.FutureTimeoutError):
                grpc.channel_ready_future(channel).result(_CONNECT_SECONDS)
        self._replace(self._fleet.new_generation(targets, channel))

    def _replace(self, generation: Generation) -> None:
        with self._lock:
            before, self._present = self._present, generation
            is_closed = self._is_closed
            if before is not None:
                self._retired.add(before)
        if is_closed:
            generation.connection.close()
        if before is not None and before.retire():
            self._close(before)

    def _close(self, generation: Generation) -> None:
        with self._lock:
            self._retired.discard(generation)
        generation.connection.close()


class AsyncFleetConnection:
    """The connection of the asyncio client, in one event loop. A read of the registry has a thread."""

    def __init__(
        self, fleet: FleetSettings, open_channel: Callable[[Sequence[str]], grpc.aio.Channel]
    ) -> None:
        self._fleet = fleet
        self._open_channel = open_channel
        self._present: Generation | None = None
        self._reading: asyncio.Task[None] | None = None
        self._retired: set[Generation] = set()
        self._is_closed = False

    async def run_async(self, call: Call[Reply]) -> Reply:
        """Returns the reply, as `FleetConnection.run` does. Raises MillpondError."""
        started_ns = self._fleet.clock.now_ns()
        used = await self._begin(call, started_ns)
        try:
            return await used.connection.run_async(self._fleet.with_deadline(call, started_ns))
        except Unavailable:
            if not (call.is_repeatable and self._fleet.is_retrying):
                raise
            reading = self._start_reading(_URGENT_SECONDS)
            await asyncio.wait({reading}, timeout=self._fleet.seconds_left(call, started_ns))
            if self._present is used:
                raise
        finally:
            await self._end(used)
        other = await self._begin(call, started_ns)
        try:
            return await other.connection.run_async(self._fleet.with_deadline(call, started_ns))
        finally:
            await self._end(other)

    async def close(self) -> None:
        """Closes the channels and cancels running calls."""
        self._is_closed = True
        if self._reading is not None:
            self._reading.cancel()
        open_ones = {*self._retired, *((self._present,) if self._present else ())}
        for generation in open_ones:
            await generation.connection.close()

    async def _begin(self, call: Call[Any], started_ns: int) -> Generation:
        reading = self._start_reading(REFRESH_SECONDS)
        if self._present is None:
            seconds = self._fleet.seconds_left(call, started_ns)
            done, _ = await asyncio.wait({reading}, timeout=seconds)
            if not done:
                raise Unavailable(f"no list of the fleet's servers after {seconds:g} s")
            reading.result()
        assert self._present is not None
        assert self._present.begin()
        return self._present

    async def _end(self, generation: Generation) -> None:
        if generation.end():
            self._retired.discard(generation)
            await generation.connection.close()

    def _start_reading(self, seconds: float) -> "asyncio.Task[None]":
        if self._is_closed:
            raise FailedPrecondition("the client is closed; make another one")
        is_due = self._present is None or self._fleet.servers.is_older_than(seconds)
        if self._reading is None or (self._reading.done() and is_due):
            self._reading = asyncio.ensure_future(self._refresh())
            # A failure counts only for calls that wait for the first list.
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._reading

    async def _refresh(self) -> None:
        targets = await asyncio.to_thread(self._fleet.servers.read)
        before = self._present
        if before is not None and before.targets == targets:
            return
        channel = self._open_channel(targets)
        if before is not None:
            try:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(channel.channel_ready(), _CONNECT_SECONDS)
            except asyncio.CancelledError:  # By `close`.
                await channel.close()
                raise
        self._present = self._fleet.new_generation(targets, channel)
        if before is not None:
            self._retired.add(before)
            if before.retire():
                self._retired.discard(before)
                await before.connection.close()

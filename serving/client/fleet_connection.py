"""Connections to a fleet: a gRPC channel to all its servers, replaced when their list changes.

If not all servers have the same models, the servers of a model have a channel of their own, which is
opened for the first call that names the model.

gRPC chooses among the servers, watches their health and tries calls again, as for a list of servers. A
gRPC channel of Python cannot get other addresses. So a new channel takes the place of the old one,
which ends the calls that it has.

The registry is read beside calls, at most every REFRESH_SECONDS. So a client that sends nothing reads
nothing. Only two calls wait for the registry: the first one, and one that no server has answered.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog

from serving.base.clock import NS_PER_SECOND, Clock, pause, seconds_since
from serving.base.errors import FailedPrecondition, MillpondError, Unavailable
from serving.client.calls import Call, Reply
from serving.client.channels import ClientSettings
from serving.client.connection import Connection, check_single
from serving.client.fleet_registry import (
    NotListedYet,
    Registry,
    Resolve,
    Resolver,
    Routes,
    parse_registry,
    registry_of,
    routes_of,
)

REFRESH_SECONDS = 5.0
"""gRPC leaves a server that drains or ends by itself. The registry is read for servers that are new."""

_URGENT_SECONDS = 0.25
"""The time for which a list is still new to calls that no server has answered."""

_CONNECT_SECONDS = 1.0
"""The time that a new channel gets to connect before it takes calls: longer than a health check takes."""

_AGAIN_SECONDS = 0.25
"""The pause before a coordinator that does not list its servers yet is asked again."""

_log = structlog.get_logger(__name__)


class FleetList:
    """The servers of a fleet as the registry listed them last. One thread at a time reads."""

    def __init__(self, registry: Registry, clock: Clock, resolve: Resolve | None = None) -> None:
        self._registry = registry
        self._clock = clock
        self._resolve = resolve or Resolver()
        self._read_at_ns: int | None = None
        self._failure = ""
        self.routes = Routes()
        """The addresses of the servers; none before the first read."""

    @property
    def targets(self) -> tuple[str, ...]:
        return self.routes.lists[0]

    def is_older_than(self, seconds: float) -> bool:
        at_ns = self._read_at_ns
        return at_ns is None or self._clock.now_ns() - at_ns >= round(seconds * NS_PER_SECOND)

    def read(self) -> Routes:
        """Returns the servers now. Without an answer or a server, it returns the last ones.

        A failure is logged once, until a read succeeds. Raises Unavailable if there are no last ones:
        NotListedYet if a coordinator that has just started will list them soon.
        """
        error: Exception | None = None
        reason = "it lists no server"
        routes = Routes()
        try:
            routes = routes_of(parse_registry(self._registry.read()), self._resolve)
        except (MillpondError, OSError, UnicodeDecodeError) as raised:
            error, reason = raised, str(raised)
        self._read_at_ns = self._clock.now_ns()
        if routes.lists[0]:
            self._failure = ""
            self.routes = routes
        elif not self.targets:
            kind = NotListedYet if isinstance(error, NotListedYet) else Unavailable
            raise kind(f"no servers of the fleet are known: {self._registry}: {reason}") from error
        elif reason != self._failure:
            self._failure = reason
            _log.warning("fleet_list_is_old", registry=str(self._registry), reason=reason)
        return self.routes


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


class Channels:
    """The channels to the servers of one list, by the places of their addresses; None if not opened.

    Whoever opens one excludes others.
    """

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.opened: list[Generation | None] = [None] * len(routes.lists)

    def of(self, model: str) -> Generation | None:
        return self.opened[self.routes.place(model)]

    def generations(self) -> list[Generation]:
        return [generation for generation in self.opened if generation is not None]

    def kept(self, routes: Routes) -> "Channels":
        """Returns the channels of another list: those to the same servers stay."""
        kept = Channels(routes)
        by_targets = {generation.targets: generation for generation in self.generations()}
        kept.opened = [by_targets.get(targets) for targets in routes.lists]
        return kept

    def missing(self, routes: Routes) -> list[int]:
        """Returns the places of `routes` that must be opened because their models' calls had a channel."""
        models = ["", *self.routes.places.keys()]
        wanted = {routes.place(model) for model in models if self.of(model) is not None}
        kept = self.kept(routes).opened
        return sorted(place for place in wanted if kept[place] is None)


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


class RefreshFailure:
    """The error of the last refresh of a client, if it failed: logged once, and raised by a later call."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def note(self, error: Exception | None) -> None:
        """Takes the result of a refresh; None: it succeeded."""
        before, self.error = self.error, error
        if error is not None and str(error) != str(before):
            _log.warning("fleet_list_not_followed", reason=str(error))

    def raise_instead(self, error: MillpondError) -> NoReturn:
        """Raises the refresh's error in the place of a call's that found no server, or else the call's."""
        if self.error is None:
            raise error
        raise self.error from error


class FleetConnection:
    """The connection of the blocking client. Any thread. A thread of its own reads the registry."""

    def __init__(
        self, fleet: FleetSettings, open_channel: Callable[[Sequence[str]], grpc.Channel]
    ) -> None:
        self._fleet = fleet
        self._open_channel = open_channel
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="fleet-registry")
        self._failure = RefreshFailure()
        # Guards the members below.
        self._lock = threading.Lock()
        self._present: Channels | None = None
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
            except Unavailable as error:
                if not (call.is_repeatable and self._fleet.is_retrying):
                    self._failure.raise_instead(error)
                reading = self._start_reading(_URGENT_SECONDS)
                wait([reading], self._fleet.seconds_left(call, started_ns))
                assert self._present is not None
                if self._present.of(call.model) is used:
                    self._failure.raise_instead(error)
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
            open_ones = {*self._retired, *(self._present.generations() if self._present else ())}
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
            assert self._present is not None
            generation = self._present.of(call.model) or self._opened(call.model)
            if generation.begin():
                return generation

    def _opened(self, model: str) -> Generation:
        """Returns the present channel of a model, which is opened if it was not. Raises InvalidArgument."""
        with self._lock:
            self._check_open()
            assert self._present is not None
            generation = self._present.of(model)
            if generation is None:
                place = self._present.routes.place(model)
                generation = self._new_generation(self._present.routes.lists[place])
                self._present.opened[place] = generation
            return generation

    def _wait_for_list(self, seconds: float) -> None:
        """Returns with a list. Only the first list is waited for; a later one is read beside calls."""
        reading = self._start_reading(REFRESH_SECONDS)
        started_ns = self._fleet.clock.now_ns()
        error: Unavailable | None = None
        while self._present is None:
            left = max(0.0, seconds - seconds_since(self._fleet.clock, started_ns))
            if not wait([reading], left).done:
                raise error or Unavailable(f"no list of the fleet's servers after {seconds:g} s")
            try:
                reading.result()
            except NotListedYet as not_yet:
                if left <= 0:
                    raise
                error = not_yet
                pause(self._fleet.clock, min(left, _AGAIN_SECONDS))
                reading = self._start_reading(REFRESH_SECONDS)

    def _start_reading(self, seconds: float) -> "Future[None]":
        """Returns the read under way, or a new one if the list is older than `seconds`."""
        with self._lock:
            self._check_open()
            is_due = self._present is None or self._fleet.servers.is_older_than(seconds)
            if self._reading is None or (self._reading.done() and is_due):
                self._reading = self._executor.submit(self._refresh)
            return self._reading

    def _check_open(self) -> None:
        if self._is_closed:
            raise FailedPrecondition("the client is closed; make another one")

    def _refresh(self) -> None:
        try:
            self._follow(self._fleet.servers.read())
        except Exception as error:
            # Without a list, the calls that wait for it raise the error.
            if self._present is not None:
                self._failure.note(error)
            raise
        self._failure.note(None)

    def _follow(self, routes: Routes) -> None:
        """Opens channels to the servers of a list that has changed, and lets the old ones end."""
        before = self._present
        if before is None:
            self._replace(Channels(routes))
        elif before.routes != routes:
            opened = {
                place: self._new_generation(routes.lists[place]) for place in before.missing(routes)
            }
            for generation in opened.values():
                with suppress(grpc.FutureTimeoutError):
                    channel = generation.connection.channel
                    grpc.channel_ready_future(channel).result(_CONNECT_SECONDS)
            self._replace(Channels(routes), opened)

    def _new_generation(self, targets: tuple[str, ...]) -> Generation:
        return self._fleet.new_generation(targets, self._open_channel(targets))

    def _replace(self, after: Channels, opened: Mapping[int, Generation] | None = None) -> None:
        with self._lock:
            before = self._present
            if before is not None:
                # Now, because calls may have opened further channels meanwhile.
                after = before.kept(after.routes)
            for place, generation in (opened or {}).items():
                after.opened[place] = after.opened[place] or generation
            self._present = after
            stays = {*after.generations()}
            ending = {*(opened or {}).values()} - stays
            if before is not None:
                ending |= {*before.generations()} - stays
            self._retired |= ending
            is_closed = self._is_closed
        if is_closed:
            ending |= stays
        for generation in ending:
            if generation.retire() or is_closed:
                self._close(generation)

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
        self._failure = RefreshFailure()
        self._present: Channels | None = None
        self._reading: asyncio.Task[None] | None = None
        self._retired: set[Generation] = set()
        self._is_closed = False

    async def run_async(self, call: Call[Reply]) -> Reply:
        """Returns the reply, as `FleetConnection.run` does. Raises MillpondError."""
        started_ns = self._fleet.clock.now_ns()
        used = await self._begin(call, started_ns)
        try:
            return await used.connection.run_async(self._fleet.with_deadline(call, started_ns))
        except Unavailable as error:
            if not (call.is_repeatable and self._fleet.is_retrying):
                self._failure.raise_instead(error)
            reading = self._start_reading(_URGENT_SECONDS)
            await asyncio.wait({reading}, timeout=self._fleet.seconds_left(call, started_ns))
            assert self._present is not None
            if self._present.of(call.model) is used:
                self._failure.raise_instead(error)
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
        for generation in {*self._retired, *(self._present.generations() if self._present else ())}:
            await generation.connection.close()

    async def _begin(self, call: Call[Any], started_ns: int) -> Generation:
        await self._wait_for_list(self._fleet.seconds_left(call, started_ns))
        while True:
            assert self._present is not None
            generation = self._present.of(call.model)
            if generation is None:
                place = self._present.routes.place(call.model)
                generation = self._new_generation(self._present.routes.lists[place])
                self._present.opened[place] = generation
            # No other step of the loop comes between: a channel that is present is not retired.
            if generation.begin():
                return generation

    async def _end(self, generation: Generation) -> None:
        if generation.end():
            self._retired.discard(generation)
            await generation.connection.close()

    async def _wait_for_list(self, seconds: float) -> None:
        """Returns with a list. Only the first list is waited for; a later one is read beside calls."""
        reading = self._start_reading(REFRESH_SECONDS)
        started_ns = self._fleet.clock.now_ns()
        error: Unavailable | None = None
        while self._present is None:
            left = max(0.0, seconds - seconds_since(self._fleet.clock, started_ns))
            done, _ = await asyncio.wait({reading}, timeout=left)
            if not done:
                raise error or Unavailable(f"no list of the fleet's servers after {seconds:g} s")
            try:
                reading.result()
            except NotListedYet as not_yet:
                if left <= 0:
                    raise
                error = not_yet
                await asyncio.to_thread(pause, self._fleet.clock, min(left, _AGAIN_SECONDS))
                reading = self._start_reading(REFRESH_SECONDS)

    def _start_reading(self, seconds: float) -> "asyncio.Task[None]":
        if self._is_closed:
            raise FailedPrecondition("the client is closed; make another one")
        is_due = self._present is None or self._fleet.servers.is_older_than(seconds)
        if self._reading is None or (self._reading.done() and is_due):
            self._reading = asyncio.ensure_future(self._refresh())
            # `RefreshFailure` has it for later calls; without this, asyncio would log it too.
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._reading

    async def _refresh(self) -> None:
        try:
            await self._follow(await asyncio.to_thread(self._fleet.servers.read))
        except Exception as error:
            # Without a list, the calls that wait for it raise the error.
            if self._present is not None:
                self._failure.note(error)
            raise
        self._failure.note(None)

    async def _follow(self, routes: Routes) -> None:
        before = self._present
        if before is None:
            self._present = Channels(routes)
        elif before.routes != routes:
            opened = {
                place: self._new_generation(routes.lists[place]) for place in before.missing(routes)
            }
            try:
                for generation in opened.values():
                    with suppress(asyncio.TimeoutError):
                        ready = generation.connection.channel.channel_ready()
                        await asyncio.wait_for(ready, _CONNECT_SECONDS)
            except asyncio.CancelledError:  # By `close`.
                for generation in opened.values():
                    await generation.connection.close()
                raise
            await self._replace(before, routes, opened)

    def _new_generation(self, targets: tuple[str, ...]) -> Generation:
        return self._fleet.new_generation(targets, self._open_channel(targets))

    async def _replace(
        self, before: Channels, routes: Routes, opened: Mapping[int, Generation]
    ) -> None:
        after = before.kept(routes)
        for place, generation in opened.items():
            after.opened[place] = after.opened[place] or generation
        self._present = after
        ending = {*before.generations(), *opened.values()} - {*after.generations()}
        self._retired |= ending
        for generation in ending:
            if generation.retire():
                self._retired.discard(generation)
                await generation.connection.close()

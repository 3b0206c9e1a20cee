"""The HTTP server of a coordinator: uvicorn on two threads, one of which answers only probes."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread
import structlog
import uvicorn
from starlette.types import ASGIApp

from fleet.http.acceptor import Acceptor
from fleet.http.connections import (
    ConnectionLimits,
    GuardedConnection,
    connection_class,
    make_place,
)
from fleet.http.descriptors import connection_count_max
from fleet.http.entrance import entrance_class
from serving.http.listeners import BACKLOG, accept_waiting, refuse_handshakes

HTTP_NICE = 10
"""The nice value of the HTTP threads and of the threads that they start.

The status of a large fleet takes tens of milliseconds of Python. A server on the same machine should have
that core for its requests. If all cores are busy, nice 10 still leaves a tenth of one core to probes. Nice 19
would leave a sixtieth, and then probes would wait for seconds, and the coordinator would be restarted.
"""

ENTRANCE_CONNECTION_COUNT_MAX = 128
"""The most connections at the entrance: more than there are probes and new connections at one time.

Further connections wait in the kernel until a place is free. A connection leaves its place with its first
request, or may be closed after SILENT_SECONDS.
"""

PROBE_THREAD_COUNT = 2
"""The number of threads for the handlers of probes that are not async."""

BLOCKING_THREAD_COUNT = 4
"""The number of threads for all other handlers that are not async."""

RESPONSE_SECONDS = 2
"""The longest that a stop waits for running responses."""

HANDSHAKE_SECONDS = 0.1
"""The longest that a stop waits for TCP handshakes under way: a round trip of most networks."""

DEATH_CONSEQUENCE = (
    "the port is closed, so probes fail; the fleet is led on until the process is restarted"
)

LAST_SECONDS = 0.1
"""The least time that each loop gets to stop, because uvicorn logs an error if it gets none."""

JOIN_SECONDS = RESPONSE_SECONDS + 1.0
"""The longest that `join` waits for each thread.

The time is for running responses, and for uvicorn, which looks ten times a second if it should stop.
"""

_log = structlog.get_logger(__name__)


class _EntranceServer(uvicorn.Server):
    """uvicorn's server at the port, which accepts and closes without losing a connection.

    uvicorn gets no listener, because `Acceptor` accepts instead of asyncio's servers.

    If a listener is closed, the kernel resets the connections that no `accept` has taken. So a stop first
    refuses new handshakes, then accepts all connections, and then closes the port.
    """

    def __init__(self, config: uvicorn.Config, connection_count_max: int) -> None:
        super().__init__(config)
        self._connection_count_max = connection_count_max
        self._acceptor = Acceptor(self._make_place, self._make_connection)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Implements uvicorn.Server."""
        await super().startup([])
        for listener in sockets or []:
            self._acceptor.open(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Implements uvicorn.Server."""
        listeners = sockets or []
        # All connections are accepted before uvicorn's shutdown, because that shutdown would miss a later
        # connection.
        await self._acceptor.close()
        await self._accept_last(listeners)
        await super().shutdown(sockets)

    async def _accept_last(self, listeners: Sequence[socket.socket]) -> None:
        for listener in listeners:
            # If the kernel refuses the filter, a connection is lost if it comes between the last `accept` and
            # the close.
            with contextlib.suppress(OSError):
                refuse_handshakes(listener)
        await asyncio.sleep(HANDSHAKE_SECONDS)
        loop = asyncio.get_running_loop()
        for listener in listeners:
            for connection in accept_waiting(listener):
                await loop.connect_accepted_socket(self._make_connection, connection)

    def _make_connection(self) -> GuardedConnection:
        return _new_connection(self)

    def _make_place(self, connecting: Collection[GuardedConnection]) -> bool:
        # Counts only connections without a transport, because `server_state.connections` has the others.
        unseen_count = sum(connection.transport is None for connection in connecting)
        count_max = max(1, self._connection_count_max - unseen_count)
        return make_place(self.server_state.connections, count_max)


class _InnerServer(uvicorn.Server):
    """uvicorn's server behind the entrance. It has no port, and gets its connections by `adopt`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        # Set by the loop's thread before the entrance opens.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stop_deadline = 0.0
        self._has_all = asyncio.Event()
        self._adopting: set[asyncio.Task[None]] = set()

    def adopt(self, connection: socket.socket, received: bytes) -> None:
        """Takes a connection, and the first bytes that were read from it. Any thread."""
        assert self.loop is not None
        try:
            self.loop.call_soon_threadsafe(self._adopt, connection, received)
        except RuntimeError:
            # The loop has ended.
            connection.close()

    def end_adopting(self) -> None:
        """Notes that no call of `adopt` follows. Any thread."""
        assert self.loop is not None
        # The loop is closed if its thread has died.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._has_all.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Implements uvicorn.Server. Waits until the entrance has handed over all its connections."""
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._has_all.wait()
        if self._adopting:
            await asyncio.wait(self._adopting)
        remaining = self.stop_deadline - asyncio.get_running_loop().time()
        # uvicorn's annotation is int; asyncio, which gets the value, takes a float too.
        self.config.timeout_graceful_shutdown = max(LAST_SECONDS, remaining)  # type: ignore[assignment]
        await super().shutdown(sockets)

    def _adopt(self, connection: socket.socket, received: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(connection, received))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _connect(self, connection: socket.socket, received: bytes) -> None:
        protocol = _new_connection(self)
        protocol.begin_with(received)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)


def _new_connection(server: uvicorn.Server) -> GuardedConnection:
    make: Any = server.config.http_protocol_class
    protocol: GuardedConnection = make(
        config=server.config, server_state=server.server_state, app_state=server.lifespan.state
    )
    return protocol


class HttpServer:
    """Serves one application on its listeners. Started and stopped once.

    The thread `http-entrance` accepts connections and answers probes (`fleet.http.entrance`); the
    thread `http` answers everything else. Installs no signal handler and keeps nothing on disk.
    """

    def __init__(
        self,
        app: ASGIApp,
        open_listeners: Callable[[], list[socket.socket]],
        limits: ConnectionLimits | None = None,
    ) -> None:
        """Opens nothing yet. The server owns the sockets that `open_listeners` returns."""
        self._open_listeners = open_listeners
        self._port: int | None = None
        self._is_stopping = False
        limits = limits or ConnectionLimits()
        inner = connection_class(limits, self._stops)
        self._inner = _InnerServer(_uvicorn_config(app, inner, limits))
        at_entrance = replace(
            limits, connection_count_max=connection_count_max(ENTRANCE_CONNECTION_COUNT_MAX)
        )
        connections = entrance_class(at_entrance, self._stops, self._inner.adopt)
        self._entrance = _EntranceServer(
            _uvicorn_config(app, connections, at_entrance), at_entrance.connection_count_max
        )
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int | None:
        """The TCP port of the first listener; None before `start`, and if it listens on no TCP port."""
        return self._port

    def start(self) -> None:
        """Opens the listeners, and answers from now on. Raises the errors of `open_listeners`."""
        sockets = self._open_listeners()
        if not sockets:
            return
        if sockets[0].family != socket.AF_UNIX:
            self._port = sockets[0].getsockname()[1]
        log_uvicorn()
        self._start_thread("http", self._run_inner)
        self._start_thread("http-entrance", partial(self._run_entrance, sockets))

    def stop(self, response_seconds: float = RESPONSE_SECONDS) -> None:
        """Accepts no more connections and ends running responses within `response_seconds`.

        New connections still get their first request answered. Returns at once; `join` waits.
        """
        loop = self._inner.loop
        if loop is None:
            return
        # Every event loop has the same clock.
        self._inner.stop_deadline = loop.time() + response_seconds
        self._close_entrance(response_seconds)
        self._inner.should_exit = True

    def join(self, timeout_seconds: float = JOIN_SECONDS) -> bool:
        """Waits for the threads' end; returns False if a handler still runs at the timeout."""
        # The thread `http` ends last and is joined first. So the second `join` does not wait, and both together
        # take at most `timeout_seconds`.
        for thread in self._threads:
            thread.join(timeout_seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _close_entrance(self, response_seconds: float) -> None:
        self._is_stopping = True
        # uvicorn's annotation is int; asyncio, which gets the value, takes a float too.
        self._entrance.config.timeout_graceful_shutdown = max(  # type: ignore[assignment]
            LAST_SECONDS, response_seconds
        )
        self._entrance.should_exit = True

    def _stops(self) -> bool:
        return self._is_stopping

    def _start_thread(self, name: str, run: Callable[[threading.Event], None]) -> None:
        """Starts a thread, and returns once its loop runs."""
        is_up = threading.Event()
        # A daemon, so that a handler that never returns does not keep the process alive.
        self._threads.append(threading.Thread(target=run, args=(is_up,), name=name, daemon=True))
        self._threads[-1].start()
        is_up.wait()

    def _run_inner(self, is_up: threading.Event) -> None:
        try:
            asyncio.run(self._serve(self._inner, [], BLOCKING_THREAD_COUNT, is_up))
        except BaseException:  # noqa: BLE001 (a bug; the fleet is led on)
            _log.exception("http_server_died", consequence=DEATH_CONSEQUENCE)
        finally:
            is_up.set()
            if not self._is_stopping:
                # Probes must fail too, because only failing probes make the process's supervisor restart it.
                self._close_entrance(RESPONSE_SECONDS)

    def _run_entrance(self, sockets: list[socket.socket], is_up: threading.Event) -> None:
        try:
            asyncio.run(self._serve(self._entrance, sockets, PROBE_THREAD_COUNT, is_up))
        except BaseException:  # noqa: BLE001 (a bug; the fleet is led on)
            _log.exception("http_server_died", consequence=DEATH_CONSEQUENCE)
        finally:
            is_up.set()
            self._inner.end_adopting()
            for listener in sockets:
                listener.close()

    async def _serve(
        self,
        server: uvicorn.Server,
        sockets: list[socket.socket],
        blocking_thread_count: int,
        is_up: threading.Event,
    ) -> None:
        self._lower_priority()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrorLog())
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = blocking_thread_count
        if server is self._inner:
            self._inner.loop = loop
        is_up.set()
        await server.serve(sockets=sockets)
        for connection in list(server.server_state.connections):
            connection.transport.abort()

    def _lower_priority(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), HTTP_NICE)
        except OSError as error:
            # A sandbox may refuse it. Requests are answered all the same.
            _log.warning("http_priority_refused", requested=HTTP_NICE, reason=error.strerror)


def _uvicorn_config(
    app: ASGIApp, connections: type[GuardedConnection], limits: ConnectionLimits
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connections,
        ws="none",
        loop="asyncio",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # The headers of a proxy are ignored, because no handler needs the client's address.
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive_seconds,
        backlog=BACKLOG,
    )


# --- Logs -----------------------------------------------------------------------------------------

CLIENTS_FAULTS = ("Invalid HTTP request received.", "Unsupported upgrade request.")
"""Messages that are not logged, because the client has got an answer, and a port scanner could fill the log."""


class StructlogHandler(logging.Handler):
    """Logs the warnings and errors of uvicorn and asyncio as events of this server."""

    def emit(self, record: logging.LogRecord) -> None:
        """Implements logging.Handler."""
        message = record.getMessage().strip()
        error = record.exc_info[1] if record.exc_info else None
        # uvicorn logs an error for each response that a stop cancels, and one line for all, which is enough.
        if message.startswith(CLIENTS_FAULTS) or isinstance(error, asyncio.CancelledError):
            return
        log = _log.error if record.levelno >= logging.ERROR else _log.warning
        log("on_http_server_log", message=message, **({"exc_info": error} if error else {}))


def log_uvicorn() -> None:
    """Sends the warnings of uvicorn and asyncio to structlog, for the whole process."""
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [StructlogHandler(logging.WARNING)]
        logger.setLevel(logging.WARNING)
        logger.propagate = False


LACK_LOG_SECONDS = 1.0
"""A lack of descriptors is logged at most this often, although each try to accept reports it."""


class LoopErrorLog:
    """Logs the errors of one event loop, as its exception handler."""

    def __init__(self) -> None:
        self._lack_logged_at = -LACK_LOG_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Implements asyncio's handler."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self._log_lack(loop.time(), error)
            return
        _log.error(
            "on_http_server_log",
            message=context["message"],
            **({"exc_info": error} if error else {}),
        )

    def _log_lack(self, now: float, error: OSError) -> None:
        if now - self._lack_logged_at < LACK_LOG_SECONDS:
            return
        self._lack_logged_at = now
        _log.error(
            "connection_not_accepted",
            reason=error.strerror,
            consequence="new connections over HTTP wait until others are closed",
            remedy="raise the limit of open files (ulimit -n), or use another server",
        )

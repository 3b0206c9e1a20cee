"""The HTTP server: uvicorn on a thread of its own, inside the server process."""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio.to_thread
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from serving.base.errors import OperatorError
from serving.config.server_config import HttpPort
from serving.http.connections import ConnectionLimits, connection_class
from serving.http.listeners import (
    BACKLOG,
    REMEDY,
    accept_waiting,
    bind,
    handed_in,
    refuse_handshakes,
)

HTTP_NICE = 10
"""The priority of the HTTP thread and of the threads that it starts. A scrape takes milliseconds of
Python in one piece, and a request thread that needs that core should have it. If all cores are busy,
a tenth of one core is left to probes. Not 19: that would leave a sixtieth, and a probe that waits
seconds restarts a busy server. Beside 600 requests a second and a scrape every 0.1 s, the difference
to 0 is too small to measure on two cores.
"""

RESPONSE_SECONDS = 2
"""How long running responses may take at a stop, after the requests have had their time."""

HANDSHAKE_SECONDS = 0.1
"""How long handshakes that have begun may take at a stop: a round trip of most networks."""

JOIN_SECONDS = RESPONSE_SECONDS + 1.0
"""How long a stop waits for the thread: for running responses, and for uvicorn, which checks ten
times a second if it should stop."""

_log = structlog.get_logger(__name__)


class _UvicornServer(uvicorn.Server):
    """uvicorn's server, whose port closes without losing a connection.

    Closing a listener resets the connections that the kernel has completed and `accept` has not
    taken. So handshakes are refused first, then all connections are accepted, then the port closes.
    A handed-in socket stays as it is: the connections that wait in it are the next server's.
    """

    is_handed_in = False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Implements uvicorn.Server."""
        loop = asyncio.get_running_loop()
        listeners = sockets or []
        for listener in listeners:
            # uvicorn's shutdown would miss a connection that asyncio accepts at the last moment.
            loop.remove_reader(listener)
        if not self.is_handed_in:
            await self._accept_last(listeners)
        await super().shutdown(sockets)

    async def _accept_last(self, listeners: Sequence[socket.socket]) -> None:
        for listener in listeners:
            # Without the filter a connection may still come between the last `accept` and the close.
            with contextlib.suppress(OSError):
                refuse_handshakes(listener)
        await asyncio.sleep(HANDSHAKE_SECONDS)
        loop = asyncio.get_running_loop()
        for listener in listeners:
            for connection in accept_waiting(listener):
                await loop.connect_accepted_socket(self._make_connection, connection)

    def _make_connection(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


class HttpServer:
    """Serves one application on one port from a thread `http`. Started and stopped once.

    Uses only threads of its own, installs no signal handler and keeps nothing on disk.
    """

    def __init__(
        self,
        app: Starlette,
        *,
        host: str,
        port: HttpPort,
        blocking_thread_count: int,
        entry: ASGIApp | None = None,
        limits: ConnectionLimits | None = None,
        nice: int = HTTP_NICE,
        remedy: str = REMEDY,
        open_listeners: Callable[[], list[socket.socket]] | None = None,
    ) -> None:
        """Binds nothing yet. `blocking_thread_count` is for handlers that are not coroutines.

        `entry` gets each request first and passes other paths to `app`. If it is None, `app` gets all
        requests. `remedy` says what to do if the port is taken. `open_listeners` takes the place of `host`
        and `port`: the server owns what it returns.
        """
        self._app = app
        self._open_listeners = open_listeners
        self._remedy = remedy
        self._host = host
        self._wanted = port
        self._blocking_thread_count = blocking_thread_count
        self._nice = nice
        self._port: int | None = None
        self._uvicorn = _make_uvicorn(
            entry or app, limits or ConnectionLimits(), lambda: self._uvicorn.should_exit
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_up = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int | None:
        """The TCP port that the server listens on; None before `start`, and if no port could be bound."""
        return self._port

    def start(self) -> None:
        """Binds the port, unless its sockets were handed in, and answers from now on.

        Raises the errors of `bind` if the port was asked for; otherwise logs a warning.
        """
        if self._open_listeners is not None:
            sockets = self._open_listeners()
        elif self._wanted.number is None:
            return
        else:
            sockets = self._bound(self._wanted.number)
        if not sockets:
            return
        # Daemon: a handler that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, args=(sockets,), name="http", daemon=True)
        self._thread.start()
        self._is_up.wait()

    def _bound(self, number: int) -> list[socket.socket]:
        """Returns the listeners of the TCP port; none if it could not be bound and need not be."""
        self._uvicorn.is_handed_in = bool(self._wanted.descriptors)
        try:
            sockets = handed_in(self._wanted.descriptors) or bind(self._host, number, self._remedy)
        except OperatorError as error:
            if self._wanted.is_required:
                raise
            _log.warning("http_off", reason=error.message)
            return []
        self._port = sockets[0].getsockname()[1]
        return sockets

    def stop(self, response_seconds: float = RESPONSE_SECONDS) -> None:
        """Accepts no more connections and ends running responses within `response_seconds`.

        Notifies endless responses. New connections still get their first request answered. Returns
        at once; `join` waits.
        """
        if self._loop is None:
            return
        # uvicorn's annotation is int; asyncio, which gets the value, takes a float too.
        self._uvicorn.config.timeout_graceful_shutdown = response_seconds  # type: ignore[assignment]
        self._uvicorn.should_exit = True
        # The loop is closed if its thread has died.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._app.state.closing.set)

    def join(self, timeout_seconds: float = JOIN_SECONDS) -> bool:
        """Waits for the thread's end; returns False if a handler still runs at the timeout."""
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self, sockets: list[socket.socket]) -> None:
        try:
            asyncio.run(self._serve(sockets))
        except Exception:  # noqa: BLE001 (a bug; gRPC goes on)
            _log.exception("http_server_died")
        finally:
            self._is_up.set()
            for listener in sockets:
                listener.close()

    async def _serve(self, sockets: list[socket.socket]) -> None:
        self._lower_priority()
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_log_loop_error)
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = self._blocking_thread_count
        log_uvicorn()
        self._is_up.set()
        await self._uvicorn.serve(sockets=sockets)
        for connection in list(self._uvicorn.server_state.connections):
            connection.transport.abort()

    def _lower_priority(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        except OSError as error:
            # Probes are answered even if a sandbox refuses the priority.
            _log.warning("http_priority_refused", requested=self._nice, reason=error.strerror)


def _make_uvicorn(
    app: ASGIApp, limits: ConnectionLimits, is_stopping: Callable[[], bool]
) -> _UvicornServer:
    return _UvicornServer(
        uvicorn.Config(
            app,
            http=connection_class(limits, is_stopping),
            ws="none",
            loop="asyncio",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # A proxy's headers are not trusted: nothing here depends on a request's origin.
            proxy_headers=False,
            timeout_keep_alive=limits.keep_alive_seconds,
            backlog=BACKLOG,
        )
    )


# --- Logs -----------------------------------------------------------------------------------------

CLIENTS_FAULTS = ("Invalid HTTP request received.", "Unsupported upgrade request.")
"""Messages that are not logged: the client has an answer, and a port scanner must not fill the log."""


class StructlogHandler(logging.Handler):
    """Logs the warnings and errors of uvicorn and asyncio as events of this server."""

    def emit(self, record: logging.LogRecord) -> None:
        """Implements logging.Handler."""
        message = record.getMessage().strip()
        error = record.exc_info[1] if record.exc_info else None
        # The stop has cut a response short. uvicorn logs one line for all of these responses.
        if message.startswith(CLIENTS_FAULTS) or isinstance(error, asyncio.CancelledError):
            return
        log = _log.error if record.levelno >= logging.ERROR else _log.warning
        log("on_http_server_log", message=message, **({"exc_info": error} if error else {}))


def log_uvicorn() -> None:
    """Takes over the logs of uvicorn and asyncio, for the whole process."""
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [StructlogHandler(logging.WARNING)]
        logger.setLevel(logging.WARNING)
        logger.propagate = False


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    del loop
    error = context.get("exception")
    _log.error(
        "on_http_server_log",
        message=context["message"],
        **({"exc_info": error} if error else {}),
    )

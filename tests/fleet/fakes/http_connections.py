"""Connections over HTTP without sockets: a loop whose time a test advances, and what a client sees."""

import json
import re
import socket
from asyncio import AbstractEventLoop, Transport
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from fleet.http.connections import (
    ConnectionLimits,
    GuardedConnection,
    connection_class,
)

LIMITS = ConnectionLimits(
    head_bytes_max=200,
    head_seconds=10,
    keep_alive_seconds=75,
    write_stall_seconds=30,
    connection_count_max=2,
)


@dataclass
class FakeTimer:
    due: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeTask:
    """A request that is being answered; a test ends it."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Ignores the callback: the task never ends by itself."""

    def run(self) -> None:
        with pytest.raises(StopIteration):
            self.coroutine.send(None)


class FakeLoop:
    """An event loop with a time that stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.tasks: list[FakeTask] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + delay, callback))
        return self.timers[-1]

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> FakeTask:
        self.tasks.append(FakeTask(coroutine))
        return self.tasks[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in list(self.timers):
            if timer.due <= self.now and not timer.is_cancelled:
                timer.cancel()
                timer.callback()


@dataclass
class FakeTransport:
    """A client's view: the received bytes, and True once the server has closed the connection."""

    written: bytes = b""
    is_closed: bool = False
    is_aborted: bool = False
    is_reading: bool = True
    buffer_limits: dict[str, int] = field(default_factory=dict)
    # The server's end, if the kernel has a part in the test.
    server_end: socket.socket | None = None

    def get_extra_info(self, name: str) -> socket.socket | None:
        """Returns the socket, and nothing else."""
        return self.server_end if name == "socket" else None

    def set_write_buffer_limits(self, **limits: int) -> None:
        self.buffer_limits = limits

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    @property
    def status(self) -> int | None:
        return int(self.written.split()[1]) if self.written else None

    @property
    def statuses(self) -> list[int]:
        return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3})", self.written)]

    @property
    def error(self) -> str:
        text: str = json.loads(self.written.partition(b"\r\n\r\n")[2])["error"]
        return text


class Connections:
    """The connections of one server."""

    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        self.loop = FakeLoop()
        self._is_stopping = False
        self.connection_class = connection_class(limits, lambda: self._is_stopping)
        self._state = ServerState()
        # The application got these.
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []
        self._config = uvicorn.Config(
            self._answer_with_204,
            http=self.connection_class,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            timeout_keep_alive=limits.keep_alive_seconds,
        )
        self._config.load()

    def connect(
        self, server_end: socket.socket | None = None
    ) -> tuple[GuardedConnection, FakeTransport]:
        connection = self.connection_class(
            config=self._config,
            server_state=self._state,
            app_state={},
            _loop=cast(AbstractEventLoop, self.loop),
        )
        transport = FakeTransport(server_end=server_end)
        connection.connection_made(cast(Transport, transport))
        return connection, transport

    async def _answer_with_204(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        cycle = receive.__self__
        # Reading a body of which a part is still to come would wait.
        if cycle.disconnected or not cycle.more_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if message["body"]:
                self.bodies.append(message["body"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def answer(self) -> None:
        """Runs the pending requests, and those that follow them."""
        while self.loop.tasks:
            self.loop.tasks.pop(0).run()

    def stop(self, connection: GuardedConnection) -> None:
        """Stops the server, which has this connection."""
        self._is_stopping = True
        connection.shutdown()

    def close(self) -> None:
        """Closes the coroutines that a test has not run."""
        for task in self.loop.tasks:
            task.coroutine.close()

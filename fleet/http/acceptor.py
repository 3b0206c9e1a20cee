"""Accepts connections while there is a place for one more."""

import asyncio
import errno
import socket
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from serving.http.listeners import BACKLOG

PLACE_SECONDS = 0.02
"""If there is no place, it is looked for again after this time. Meanwhile connections wait in the kernel."""

LACK_SECONDS = 0.1
"""If the process has no descriptor left, the next try to accept comes after this time."""

AnyConnection = TypeVar("AnyConnection", bound=asyncio.Protocol)

_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor(Generic[AnyConnection]):
    """Accepts the connections of one event loop's listeners, on the loop's thread.

    Accepts one connection in each turn of the loop, so that the loop reads the requests of earlier connections
    before it accepts many more. asyncio's own server accepts up to 1,024 connections in one turn. With that
    server, a limit on connections closes some of them before their requests are read.
    """

    def __init__(
        self,
        make_place: Callable[[Collection[AnyConnection]], bool],
        make: Callable[[], AnyConnection],
    ) -> None:
        """`make` makes a connection. `make_place` returns False if there is no place for one more.

        `make_place` gets the connections that were accepted and may have no transport yet.
        """
        self._make_place = make_place
        self._make = make
        self._connecting: dict[asyncio.Task[None], AnyConnection] = {}
        self._listeners: set[socket.socket] = set()

    def open(self, listener: socket.socket) -> None:
        """Accepts on this listener from now on."""
        listener.setblocking(False)
        # Another process may have opened this socket with a shorter backlog.
        listener.listen(BACKLOG)
        self._listeners.add(listener)
        self._resume(listener)

    async def close(self) -> None:
        """Accepts no more. Returns once each accepted connection has its protocol."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
        self._listeners.clear()
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(seconds, self._resume, listener)

    def _accept(self, listener: socket.socket) -> None:
        if not self._make_place(self._connecting.values()):
            self._pause(listener, PLACE_SECONDS)
            return
        loop = asyncio.get_running_loop()
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _LACKS:
                raise
            loop.call_exception_handler(
                {"message": "no resource for a connection", "exception": error}
            )
            self._pause(listener, LACK_SECONDS)
            return
        connection.setblocking(False)
        protocol = self._make()
        task = loop.create_task(_connect(protocol, connection))
        self._connecting[task] = protocol
        task.add_done_callback(self._connecting.pop)


async def _connect(protocol: asyncio.Protocol, connection: socket.socket) -> None:
    await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)

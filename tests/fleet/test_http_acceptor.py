import asyncio
import socket
from collections.abc import Collection
from contextlib import ExitStack

from fleet.http.acceptor import Acceptor

BURST_COUNT = 50
TIMEOUT_SECONDS = 60


class Connection(asyncio.Protocol):
    """Is seen from its first call on, as those of a server are."""

    def __init__(self, seen: list["Connection"]) -> None:
        self._seen = seen
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._seen.append(self)


def test_accepted_connections_count_once_each() -> None:
    """Otherwise a place is made too early, and a client that was about to send its request loses it."""
    seen: list[Connection] = []
    counts: list[int] = []

    def make_place(connecting: Collection[Connection]) -> bool:
        unseen = [connection for connection in connecting if connection.transport is None]
        counts.append(len(seen) + len(unseen))
        return True

    async def accept(listener: socket.socket) -> None:
        acceptor = Acceptor(make_place, lambda: Connection(seen))
        acceptor.open(listener)
        while len(seen) < BURST_COUNT:
            await asyncio.sleep(0)
        await acceptor.close()
        for connection in seen:
            assert connection.transport is not None
            connection.transport.close()

    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for _ in range(BURST_COUNT):
            stack.enter_context(socket.create_connection(listener.getsockname(), TIMEOUT_SECONDS))
        asyncio.run(asyncio.wait_for(accept(listener), TIMEOUT_SECONDS))
    assert counts == [*range(BURST_COUNT)]

"""Passes connections on to the coordinator of a fleet, which may run on any node."""

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

from fleet.config.config import host_and_port
from fleet.ray.deployment import Deployment
from fleet.ray.operator_token import TOKEN_HEADER
from serving.base.errors import MillpondError, Unavailable

_CHUNK_BYTES = 65_536
# A client that was refused has this long to read the reason and close its connection.
_REFUSAL_SECONDS = 2.0


class Passage:
    """Accepts connections on its own thread with an event loop, from `start` to `stop`.

    Before `lead_to`, and while no coordinator answers, a request is answered with status 503 and the reason.
    """

    def __init__(self, listeners: Sequence[socket.socket], doors: Sequence[socket.socket]) -> None:
        """Takes over the listening sockets. Connections at the `doors` are those of operators."""
        self._listeners = listeners
        self._doors = doors
        self._deployment: Deployment | None = None
        self._servers: Sequence[asyncio.Server] = ()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="fleet-front", daemon=True
        )
        # Keeps the tasks, because asyncio itself keeps none, and a task that nothing keeps may be collected as
        # garbage. This can happen once the connection's client has sent its last byte.
        self._passing: set[asyncio.Task[None] | None] = set()

    def start(self) -> None:
        self._servers = self._loop.run_until_complete(self._started())
        self._thread.start()

    def lead_to(self, deployment: Deployment) -> None:
        """Passes connections on to the coordinator of this fleet, from now on."""
        self._deployment = deployment

    def stop(self) -> None:
        """Ends the connections that are being passed on, and closes the sockets."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._end_passing())
        for server in self._servers:
            server.close()
        self._loop.close()

    async def _started(self) -> list[asyncio.Server]:
        passed = [await asyncio.start_server(self._pass, sock=row) for row in self._listeners]
        operated = [
            await asyncio.start_server(self._pass_operator, sock=row) for row in self._doors
        ]
        return [*passed, *operated]

    async def _end_passing(self) -> None:
        """Ends the connections that are being passed on."""
        passing = [task for task in self._passing if task is not None]
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    async def _pass_operator(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Passes on one connection of the operators' door, and adds the token to its first request."""
        await self._pass(reader, writer, is_operator=True)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_operator: bool = False,
    ) -> None:
        """Passes on one connection. If the coordinator cannot be reached, answers with the reason."""
        task = asyncio.current_task()
        self._passing.add(task)
        try:
            await self._pass_on(reader, writer, is_operator=is_operator)
        finally:
            self._passing.discard(task)
            writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_operator: bool
    ) -> None:
        try:
            address = await asyncio.to_thread(self._fleet().address)
            head = await self._operator_head(reader) if is_operator else b""
            to_reader, to_writer = await asyncio.open_connection(*host_and_port(address))
        except (MillpondError, OSError) as error:
            await _refuse(reader, writer, str(error))
            return
        to_writer.write(head)
        await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))
        to_writer.close()

    async def _operator_head(self, reader: asyncio.StreamReader) -> bytes:
        """Reads the request line, and adds a header with the token. Raises Unavailable if no whole line comes."""
        token = await asyncio.to_thread(self._fleet().operator_token)
        try:
            line = await reader.readuntil(b"\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Unavailable(f"no request: {error}") from error
        return line + f"{TOKEN_HEADER}: {token}\r\n".encode()

    def _fleet(self) -> Deployment:
        if self._deployment is None:
            raise Unavailable("the fleet is being put on its cluster; ask again")
        return self._deployment


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies bytes up to the end of the stream, and then that end. The other direction stays open."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reason: str) -> None:
    """Answers an HTTP request with 503 and the reason, because the coordinator cannot be reached."""
    body = json.dumps({"error": f"the fleet's coordinator does not answer now: {reason}"}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    # asyncio's own timeout error is not TimeoutError before Python 3.11.
    with suppress(OSError, asyncio.TimeoutError):
        writer.write(head.encode() + body)
        writer.write_eof()
        await writer.drain()
        # Reads what the client still sends. If a socket is closed with unread bytes, the kernel resets the
        # connection, and the client may lose the answer.
        await asyncio.wait_for(_drained(reader), _REFUSAL_SECONDS)


async def _drained(reader: asyncio.StreamReader) -> None:
    while await reader.read(_CHUNK_BYTES):
        pass

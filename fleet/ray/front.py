"""The process of `millpond fleet start` for a fleet on Ray: its operator's port, and the files beside it.

The coordinator may move to another node at any time. So this process keeps the address that operators know,
logs what the coordinator logs, and keeps the registry's file and HAProxy's configuration on the machine
where HAProxy runs. Several fronts may run. If a front ends, the fleet and its clients go on with the last
files. If an operator stops the fleet, all fronts end.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from fleet.config.config import FleetConfig, host_and_port
from fleet.files.registry import parse_registry
from fleet.http.operator_door import OperatorDoor
from fleet.lead.outputs import Outputs
from fleet.ray.deployment import Deployment, NoFleet
from fleet.ray.event_list import LoggedEvent
from fleet.ray.operator_token import TOKEN_HEADER
from fleet.service import LISTEN_REMEDY
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import FailedPrecondition, MillpondError, OperatorError, Unavailable
from serving.http.listeners import bind

_CHUNK_BYTES = 65_536
# A coordinator that takes over looks at its servers first, and can be reached within this time.
_FIRST_SECONDS = 30.0
# A client that was refused has this long to read the reason.
_REFUSAL_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class Front:
    """Keeps the files of a fleet, and passes connections to its coordinator, until `stop`."""

    def __init__(self, config: FleetConfig, deploy: Callable[[], Deployment], clock: Clock) -> None:
        """`deploy` puts the fleet on its cluster, or finds the one that is there."""
        self._config = config
        self._deploy = deploy
        self._deployment: Deployment | None = None
        self._clock = clock
        self._outputs = Outputs(config.coordinator.registry_file, config.haproxy)
        # Several fronts may run on one machine, so the machine's name is not enough.
        self._name = f"{socket.gethostname()} ({config.coordinator.listen})"
        self._is_stopping = False
        self._began_ns = clock.now_ns()
        self._has_reached = False
        self._is_warned = False
        self._began_wall_ns = clock.wall_ns()
        self._last_event: LoggedEvent | None = None
        self._loop = asyncio.new_event_loop()
        # Kept here because asyncio keeps no task: a connection whose client has sent its last byte would be
        # collected as garbage.
        self._passing: set[asyncio.Task[None] | None] = set()
        self._door = OperatorDoor(config.coordinator.operators, host_and_port)
        self.port: int | None = None
        self.listens = threading.Event()
        """Set once `port` is known."""

    @property
    def operator_address(self) -> str:
        """The address at which operators are answered, for `--target`; "" before `run`, and if there is no
        door.
        """
        return self._door.address

    def run(self) -> None:
        """Puts the fleet on its cluster, and writes the files again and again, on this thread.

        Raises Unavailable or InvalidConfig if it cannot listen, with the fleet unchanged, and the errors of
        `deploy`.
        """
        listeners = bind(*host_and_port(self._config.coordinator.listen), LISTEN_REMEDY)
        self.port = listeners[0].getsockname()[1]
        try:
            doors = self._door.open(self.port)
        except OperatorError:
            for listener in listeners:
                listener.close()
            raise
        servers = self._loop.run_until_complete(self._started(listeners, doors))
        thread = threading.Thread(target=self._loop.run_forever, name="fleet-front", daemon=True)
        thread.start()
        self.listens.set()
        try:
            self.put()
            _log.info(
                "fleet_front_started",
                http=f"port {self.port}",
                operators=self._door.address or "off",
            )
            while not self._is_stopping and not self.update():
                pause(self._clock, self._config.coordinator.poll_seconds)
            if self._is_stopping:
                _log.info("fleet_front_stopped")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.run_until_complete(self._end_passing())
            for server in servers:
                server.close()
            self._loop.close()
            self._door.close()

    def put(self) -> None:
        """Puts the fleet on its cluster. Raises the errors of `deploy`."""
        self._deployment = self._deploy()

    def stop(self) -> None:
        """Ends `run` after the present step. Any thread."""
        self._is_stopping = True

    def update(self) -> bool:
        """Writes the files as the coordinator has the servers now, and logs its events.

        Leaves the files as they are if the coordinator does not answer. Returns True, with empty files, if
        the fleet was stopped. Raises FailedPrecondition if the cluster does not know the fleet any more.
        """
        assert self._deployment is not None
        try:
            self._outputs.update(parse_registry(self._deployment.registry()))
            self._log_events(self._deployment)
        except MillpondError as error:
            if isinstance(error, NoFleet) and self._deployment.is_stopped():
                _log.info("fleet_stopped")
                self._outputs.update([])
                return True
            if self._deployment.is_forgotten():
                raise FailedPrecondition(
                    "the Ray cluster was started anew and does not know this fleet: its servers are gone; "
                    "put it there again with millpond fleet start"
                ) from error
            self._note_unreachable(error)
            return False
        if self._is_warned:
            _log.info("fleet_coordinator_reached")
        self._has_reached = True
        self._is_warned = False
        return False

    def _note_unreachable(self, error: MillpondError) -> None:
        is_patient = seconds_since(self._clock, self._began_ns) < _FIRST_SECONDS
        if not self._is_warned and (self._has_reached or not is_patient):
            _log.warning("fleet_coordinator_unreachable", reason=str(error))
            self._is_warned = True

    def _log_events(self, deployment: Deployment) -> None:
        # Earlier events were logged by another front. The clocks of two nodes differ by little.
        since_ns = self._began_wall_ns if self._last_event is None else 0
        last = self._last_event
        for event in deployment.events(last, self._name, self._outputs.problems):
            if last is not None and event.boot == last.boot and event.number > last.number + 1:
                _log.warning("fleet_events_dropped", count=event.number - last.number - 1)
            last = self._last_event = event
            if event.wall_ns < since_ns:
                continue
            getattr(_log, event.level)(event.name, **event.values)

    async def _started(
        self, listeners: Sequence[socket.socket], doors: Sequence[socket.socket]
    ) -> list[asyncio.Server]:
        passed = [await asyncio.start_server(self._pass, sock=listener) for listener in listeners]
        operated = [await asyncio.start_server(self._pass_operator, sock=door) for door in doors]
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
        """Passes one connection of the operators' door on, with the token in its first request."""
        await self._pass(reader, writer, is_operator=True)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_operator: bool = False,
    ) -> None:
        """Passes one connection to the coordinator. If it cannot be reached, answers with the reason."""
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
            address = await asyncio.to_thread(self._coordinator)
            head = await self._operator_head(reader) if is_operator else b""
            to_reader, to_writer = await asyncio.open_connection(*host_and_port(address))
        except (MillpondError, OSError) as error:
            await _refuse(reader, writer, str(error))
            return
        to_writer.write(head)
        await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))
        to_writer.close()

    async def _operator_head(self, reader: asyncio.StreamReader) -> bytes:
        """Reads the request line, and adds the token. Raises Unavailable if there is no whole line."""
        assert self._deployment is not None
        token = await asyncio.to_thread(self._deployment.operator_token)
        try:
            line = await reader.readuntil(b"\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Unavailable(f"no request: {error}") from error
        return line + f"{TOKEN_HEADER}: {token}\r\n".encode()

    def _coordinator(self) -> str:
        if self._deployment is None:
            raise Unavailable("the fleet is being put on its cluster; ask again")
        return self._deployment.address()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies bytes up to the end of the stream, and then that end: the other direction may still have
    bytes.
    """
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reason: str) -> None:
    """Answers an HTTP request with 503 and the reason, because the coordinator cannot."""
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
        # If a socket is closed with unread bytes, it is reset, and the answer would be lost.
        await asyncio.wait_for(_drained(reader), _REFUSAL_SECONDS)


async def _drained(reader: asyncio.StreamReader) -> None:
    while await reader.read(_CHUNK_BYTES):
        pass

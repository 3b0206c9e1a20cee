"""The process of `millpond fleet start` for a fleet on Ray: its operator's port, and the files beside it.

The coordinator may move to another node at any time. So this process keeps the address that operators
know, and the registry's file and HAProxy's configuration on the machine where HAProxy runs. Several may
run. If one ends, the fleet and its clients go on with the last files.
"""

import asyncio
import threading
from contextlib import suppress

import structlog

from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import MillpondError
from serving.client.fleet_registry import parse_registry
from serving.fleet.config import FleetConfig
from serving.fleet.outputs import Outputs
from serving.fleet.ray.deployment import Deployment
from serving.fleet.service import host_and_port

_CHUNK_BYTES = 65_536
# A coordinator that takes over looks at its servers first. It is reached within this time.
_FIRST_SECONDS = 30.0

_log = structlog.get_logger(__name__)


class Front:
    """Keeps the files of a fleet, and passes connections to its coordinator, until `stop`."""

    def __init__(self, config: FleetConfig, deployment: Deployment, clock: Clock) -> None:
        """Raises InvalidConfig for a wrong address."""
        self._config = config
        self._deployment = deployment
        self._clock = clock
        self._outputs = Outputs(config.coordinator.registry_file, config.haproxy)
        self._address = host_and_port(config.coordinator.listen)
        self._is_stopping = False
        self._began_ns = clock.now_ns()
        self._has_reached = False
        self._is_warned = False
        self._loop = asyncio.new_event_loop()
        # asyncio keeps no task: one whose client has sent its last byte would be collected as garbage.
        self._passing: set[asyncio.Task[None] | None] = set()
        self.port: int | None = None
        self.listens = threading.Event()
        """Set once `port` is known."""

    def run(self) -> None:
        """Writes the files again and again, on this thread. Raises OSError if the port is taken."""
        host, port = self._address
        server = self._loop.run_until_complete(asyncio.start_server(self._pass, host, port))
        self.port = server.sockets[0].getsockname()[1]
        self.listens.set()
        thread = threading.Thread(target=self._loop.run_forever, name="fleet-front", daemon=True)
        thread.start()
        _log.info("fleet_front_started", http=f"port {self.port}")
        try:
            while not self._is_stopping:
                self.update()
                pause(self._clock, self._config.coordinator.poll_seconds)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            server.close()
            self._loop.close()

    def stop(self) -> None:
        """Ends `run` after the present step. Any thread."""
        self._is_stopping = True

    def update(self) -> None:
        """Writes the files as the coordinator has the servers now, or leaves them if it does not answer."""
        try:
            servers = parse_registry(self._deployment.registry())
        except MillpondError as error:
            is_patient = seconds_since(self._clock, self._began_ns) < _FIRST_SECONDS
            if not self._is_warned and (self._has_reached or not is_patient):
                _log.warning("fleet_coordinator_unreachable", reason=str(error))
                self._is_warned = True
            return
        self._has_reached = True
        self._is_warned = False
        self._outputs.update(servers)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes one connection to the coordinator, or closes it if none answers."""
        task = asyncio.current_task()
        self._passing.add(task)
        try:
            await self._pass_on(reader, writer)
        finally:
            self._passing.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(MillpondError, OSError):
            host, port = host_and_port(await asyncio.to_thread(self._deployment.address))
            to_reader, to_writer = await asyncio.open_connection(host, port)
            await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))
            to_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies bytes and the end of the stream. The other direction may still have bytes."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

"""The process of a coordinator: `millpond fleet start`. The composition root of `serving/fleet/`."""

import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import InvalidConfig
from serving.client import Client, Tls
from serving.config.server_config import HttpPort
from serving.fleet.api import FleetApi
from serving.fleet.config import AdminTls, FleetConfig
from serving.fleet.coordinator import Coordinator
from serving.fleet.metrics import FleetMetrics
from serving.fleet.outputs import Outputs, registered
from serving.fleet.reports import Grant
from serving.fleet.server_links import ServerClient, ServerLinks
from serving.fleet.state_file import StateFile
from serving.http.app import HttpSettings, make_http_app
from serving.http.hosts import HostGuard, host_rule, own_name
from serving.http.server import HttpServer

_HTTP_THREAD_COUNT = 4

_log = structlog.get_logger(__name__)


class FleetService:
    """Polls the servers, decides and acts, until `stop`. Started once."""

    def __init__(self, config: FleetConfig, clock: Clock) -> None:
        """Takes over the state. Raises OSError, DataLoss, FailedPrecondition and InvalidConfig."""
        self._config = config
        self._clock = clock
        self._is_stopping = False
        self._wake = threading.Condition()
        self._store = StateFile(Path(config.coordinator.state_directory))
        metrics = FleetMetrics(clock)
        self._coordinator = Coordinator(self._store, self._send, config.waves, clock, metrics)
        self._coordinator.set_servers([server.name for server in config.servers])
        self._links = ServerLinks(
            {server.name: server.admin for server in config.servers},
            connect=self._connect,
            receive=self._coordinator.receive,
            thread_count=config.coordinator.poll_threads,
            observer=metrics,
        )
        self._outputs = Outputs(config.coordinator.registry_file, config.haproxy)
        host, port = host_and_port(config.coordinator.listen)
        api = FleetApi(
            self._coordinator, config.waves, lambda: self._outputs.registry, clock, metrics
        )
        app = make_http_app(api.routes, HttpSettings())
        self._http = HttpServer(
            app,
            entry=HostGuard(app, host_rule((), host, own_name())),
            host=host,
            port=HttpPort(port, is_required=True),
            blocking_thread_count=_HTTP_THREAD_COUNT,
        )

    @property
    def port(self) -> int | None:
        """The port of the coordinator's HTTP; None before `run`."""
        return self._http.port

    def run(self) -> None:
        """Decides again and again until `stop`, on this thread. Raises the errors of the port."""
        self._http.start()
        _log.info(
            "fleet_started", servers=len(self._config.servers), http=f"port {self._http.port}"
        )
        try:
            while not self._waits_until_stop():
                self._step()
        finally:
            self._http.stop()
            self._links.stop()
            self._http.join()
            self._store.close()

    def stop(self) -> None:
        """Ends `run` after the present step. Any thread, and signal handlers of another thread."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()

    def _send(self, grants: Sequence[Grant]) -> None:
        self._links.send(grants)

    def _waits_until_stop(self) -> bool:
        """Polls, waits for the reports, and returns True if the service ends."""
        self._links.poll()
        deadline_ns = self._clock.now_ns() + round(
            self._config.coordinator.poll_seconds * NS_PER_SECOND
        )
        with self._wake:
            while not self._is_stopping and self._clock.now_ns() < deadline_ns:
                left_ns = deadline_ns - self._clock.now_ns()
                self._clock.wait(self._wake, left_ns / NS_PER_SECOND)
            return self._is_stopping

    def _step(self) -> None:
        try:
            self._coordinator.step()
        except OSError as error:
            # A full disk: nothing was sent, and the servers serve on.
            _log.error("fleet_state_not_written", reason=str(error))
        now_ns = self._clock.now_ns()
        lost_ns = round(self._config.waves.lost_seconds * NS_PER_SECOND)
        sightings = self._coordinator.sightings
        rows = registered(
            self._config.servers,
            sightings,
            lambda name: now_ns - sightings[name].seen_at_ns > lost_ns,
        )
        self._outputs.update(rows)

    def _connect(self, target: str) -> ServerClient:
        return Client(target, tls=tls_of(self._config.tls))


def tls_of(settings: AdminTls) -> Tls | None:
    """Returns the client's TLS; None if no file is configured."""
    if not (settings.ca or settings.cert or settings.key):
        return None
    return Tls(
        ca_file=Path(settings.ca) if settings.ca else None,
        certificate_file=Path(settings.cert) if settings.cert else None,
        key_file=Path(settings.key) if settings.key else None,
    )


def host_and_port(text: str) -> tuple[str, int]:
    """Returns the host and port of HOST:PORT. Raises InvalidConfig."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidConfig(f"coordinator: listen {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)

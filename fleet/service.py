"""The process of a coordinator: `millpond fleet start`. The composition root of `fleet/`."""

import socket
import threading
from pathlib import Path

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fleet.config.config import REPLICAS_PATH, FleetConfig, host_and_port
from fleet.http.api import FleetApi
from fleet.http.host_guard import HostGuard
from fleet.http.metrics import FleetMetrics
from fleet.http.operator_door import OperatorDoor, OperatorEntry, tcp_port
from fleet.http.server import HttpServer
from fleet.http.standby import StandbyGate
from fleet.lead.candidate import Candidate
from fleet.lead.engine import Engine
from fleet.lead.lead import FleetLead
from fleet.lead.leadership import FileLeadership, Term
from fleet.lead.member_client import tls_of
from fleet.lead.outputs import Outputs
from fleet.lead.places import ListedServers
from fleet.lead.present_lead import PresentLead
from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import FailedPrecondition, OperatorError
from serving.http.app import HttpSettings, make_http_app
from serving.http.hosts import host_rule, own_name
from serving.http.listeners import bind

LISTEN_REMEDY = "give another port: listen in the table [coordinator]"

# A coordinator that waits to lead looks this often if it may lead now.
_STANDBY_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class FleetService:
    """Leads the fleet, or waits until it may lead. Runs once, until `stop` or until the engine ends."""

    def __init__(self, config: FleetConfig, clock: Clock, engine: Engine | None = None) -> None:
        """Locks the directory of the state, if the fleet has one.

        `engine` replaces the engine that the configuration names. Raises OSError, FailedPrecondition and
        InvalidConfig.
        """
        host, port = host_and_port(config.coordinator.listen)
        self._config = config
        self._clock = clock
        self._is_stopping = False
        self._wake = threading.Condition()
        self._engine = engine_of(config, clock) if engine is None else engine
        self._candidate = Candidate(self._engine.leadership, self._begin, self._end)
        self._begun_lead: FleetLead | None = None
        self._outputs = Outputs(config.coordinator.registry_file, config.haproxy)
        self._present = PresentLead(self._engine, self._outputs)
        self._metrics = FleetMetrics(clock)
        api = FleetApi(self._present, config.waves, clock, self._metrics)
        refusal = Route(REPLICAS_PATH, _refuse_replicas, methods=["GET", "POST"])
        # The refusal comes last: if the engine has a route of the same path, the engine's route answers.
        app = make_http_app([*api.routes, *self._engine.routes, refusal], HttpSettings())
        gate = self._gate(app)
        self._http = fleet_http(gate, host, port)
        self._door = OperatorDoor(config.coordinator.operators)
        self._operator_http = HttpServer(OperatorEntry(gate), self._open_door)

    @property
    def port(self) -> int | None:
        """The port of the coordinator's HTTP; None before `run`."""
        return self._http.port

    @property
    def leads(self) -> bool:
        """True while this process leads the fleet. Any thread."""
        return self._present.leads

    @property
    def failure(self) -> str:
        """The reason why this process could not begin to lead at its last attempt; "" if it could. Any thread."""
        return self._candidate.failure

    @property
    def operator_address(self) -> str:
        """The address of the operators' door, for `--target`; "" before `run`, and if the door is off."""
        return self._door.address

    def run(self) -> None:
        """Leads or waits until `stop`, or until the engine is over.

        Raises OperatorError if a port cannot be used, and DataLoss if the state is not readable.
        """
        self.start()
        try:
            while not (self._engine.is_over or self._wait_for_stop(self.poll())):
                self.step()
        finally:
            self.close()

    def start(self) -> None:
        """Answers HTTP, and starts the engine. Raises OperatorError if a port cannot be used."""
        self._http.start()
        assert self._http.port is not None
        try:
            self._operator_http.start()
        except OperatorError:
            self._http.stop()
            self._http.join()
            raise
        self._engine.start(self._http.port)
        _log.info(
            "fleet_started",
            servers=len(self._config.servers),
            http=f"port {self._http.port}",
            operators=self._door.address or "off",
        )

    def poll(self) -> float:
        """Asks the servers for reports if this coordinator leads. Returns the seconds to wait before `step`."""
        lead = self._lead()
        if lead is None:
            return min(self._config.coordinator.poll_seconds, _STANDBY_SECONDS)
        lead.poll()
        return self._config.coordinator.poll_seconds

    def step(self) -> None:
        """Decides once if this coordinator leads, and writes the files."""
        lead = self._lead()
        if lead is not None:
            lead.step()
            self._outputs.update(lead.registered())

    def close(self) -> None:
        """Ends what `start` began. The servers serve on."""
        self._http.stop()
        self._operator_http.stop()
        # This ends the lead, so operations are refused from now on.
        self._candidate.stop()
        # The engine stops after the last grant and the last write, because another coordinator may lead as
        # soon as the engine has stopped.
        self._engine.stop()
        self._http.join()
        self._operator_http.join()
        self._door.close()

    def stop(self) -> None:
        """Ends `run` after the present step. Any thread, also a signal handler that interrupts another thread."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()

    def _gate(self, app: ASGIApp) -> ASGIApp:
        operator_port = tcp_port(self._config.coordinator.operators)
        return self._engine.entry(StandbyGate(app, self._present, operator_port=operator_port))

    def _open_door(self) -> list[socket.socket]:
        return self._door.open(self._http.port or 0)

    def _begin(self, term: Term) -> None:
        # The servers may have changed since an earlier term of this process, so none is shown until the new
        # lead has looked.
        self._outputs.update(None)
        self._begun_lead = FleetLead(term, self._config, self._engine, self._clock, self._metrics)

    def _end(self) -> None:
        assert self._begun_lead is not None
        self._begun_lead.stop()
        self._begun_lead = None

    def _lead(self) -> FleetLead | None:
        """Begins or ends the lead as the term says, and shows it to HTTP. Returns the present lead, if any."""
        lead = self._begun_lead if self._candidate.turn() else None
        self._present.present = None if lead is None else lead.coordinator
        return lead

    def _wait_for_stop(self, seconds: float) -> bool:
        """Waits for `seconds`, or until `stop` is called. Returns True if it was called."""
        deadline_ns = self._clock.now_ns() + round(seconds * NS_PER_SECOND)
        with self._wake:
            while not self._is_stopping and self._clock.now_ns() < deadline_ns:
                left_ns = deadline_ns - self._clock.now_ns()
                self._clock.wait(self._wake, left_ns / NS_PER_SECOND)
            return self._is_stopping


def engine_of(config: FleetConfig, clock: Clock) -> Engine:
    """Makes the engine that the configuration names. Raises FailedPrecondition and InvalidConfig."""
    if config.kubernetes is not None:
        # Imported here because the client of Kubernetes is an extra, and takes a second to import.
        from fleet.kubernetes.engine import kubernetes_engine

        return kubernetes_engine(config, config.kubernetes, clock)
    leadership = FileLeadership(Path(config.coordinator.state_directory))
    return Engine(ListedServers(config.servers), leadership, tls_of(config.tls))


async def _refuse_replicas(request: Request) -> Response:
    del request
    raise FailedPrecondition(
        "only a fleet with the table [ray] starts and restarts its servers; restart these where they "
        "run, one after the other"
    )


def fleet_http(app: ASGIApp, host: str, port: int) -> HttpServer:
    """Makes the HTTP server of a coordinator, not yet started. It refuses requests for another host.

    Port 0 is any free port.
    """
    guarded = HostGuard(app, host_rule((), host, own_name()))
    return HttpServer(guarded, lambda: bind(host, port, LISTEN_REMEDY))

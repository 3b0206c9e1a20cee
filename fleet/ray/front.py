"""The process of `millpond fleet start` for a fleet on Ray: its operator's port, and the files beside it.

The coordinator may move to another node at any time. So this process keeps the address that operators know
(`passage.py`), logs what the coordinator logs, and keeps the registry's file and HAProxy's configuration on
the machine where HAProxy runs (`follower.py`). Several fronts may run. If a front ends, the fleet and its
clients go on with the last files. If an operator stops the fleet, all fronts end.
"""

import socket
import threading
from collections.abc import Callable

import structlog

from fleet.config.config import FleetConfig, host_and_port
from fleet.http.operator_door import OperatorDoor
from fleet.ray.deployment import Deployment
from fleet.ray.follower import Follower
from fleet.ray.passage import Passage
from fleet.service import LISTEN_REMEDY
from serving.base.clock import Clock, Now, pause
from serving.base.errors import OperatorError
from serving.http.listeners import bind

_log = structlog.get_logger(__name__)


class Front:
    """Opens the ports, puts the fleet on its cluster and follows it there, until `stop`."""

    def __init__(self, config: FleetConfig, deploy: Callable[[], Deployment], clock: Clock) -> None:
        """`deploy` puts the fleet on its cluster, or finds the one that is there."""
        self._config = config
        self._deploy = deploy
        self._clock = clock
        self._is_stopping = False
        self._door = OperatorDoor(config.coordinator.operators)
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
        passage = self._opened()
        passage.start()
        self.listens.set()
        began = Now.of(self._clock)
        try:
            deployment = self._deploy()
            passage.lead_to(deployment)
            self._follow(deployment, began)
        finally:
            passage.stop()
            self._door.close()

    def stop(self) -> None:
        """Ends `run` after the present step. Any thread."""
        self._is_stopping = True

    def _opened(self) -> Passage:
        listeners = bind(*host_and_port(self._config.coordinator.listen), LISTEN_REMEDY)
        self.port = listeners[0].getsockname()[1]
        try:
            return Passage(listeners, self._door.open(self.port))
        except OperatorError:
            for listener in listeners:
                listener.close()
            raise

    def _follow(self, deployment: Deployment, began: Now) -> None:
        """Follows the fleet until an operator stops the fleet, or `stop` ends this front."""
        # Several fronts may run on one machine, so the machine's name is not enough.
        name = f"{socket.gethostname()} ({self._config.coordinator.listen})"
        follower = Follower(self._config, deployment, name, began, self._clock)
        _log.info(
            "fleet_front_started", http=f"port {self.port}", operators=self._door.address or "off"
        )
        while not self._is_stopping:
            if not follower.update():
                return
            pause(self._clock, self._config.coordinator.poll_seconds)
        _log.info("fleet_front_stopped")

"""The front: the process of `millpond fleet start` for a fleet on Ray. It has the operators' port and the files.

The coordinator of the fleet may move to another node at any time. So the front listens at the address that
operators know, and passes their requests on (`passage.py`). It also logs what the coordinator logs, and
writes the registry's file and HAProxy's configuration on the machine of HAProxy (`follower.py`). Several
fronts may run. If a front ends, the fleet and its clients go on with the last files. If an operator stops the
fleet, all its fronts end.
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
        """`deploy` puts the fleet on its cluster, or finds the fleet that runs there."""
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
        """The address of the operators' door, for `--target`; "" before `run`, and if the door is off."""
        return self._door.address

    def run(self) -> None:
        """Opens the ports, puts the fleet on its cluster, and follows it until `stop`, on this thread.

        Raises Unavailable or InvalidConfig if it cannot listen; then the fleet is unchanged. Also raises the
        errors of `deploy`.
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
        # Several fronts may run on one machine, so the name of the front contains its address too.
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

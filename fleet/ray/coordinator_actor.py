"""The actor that decides for a fleet: versions in waves, and which servers run."""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
import structlog

from fleet.ray.cluster import NAMESPACE
from fleet.ray.engine import RayCoordinator, ray_coordinator
from fleet.ray.event_list import EventList, LoggedEvent
from fleet.ray.front_problems import FrontProblems
from fleet.ray.key_value_store import Deposed, KeyValueStore
from fleet.ray.priority import take_usual_priority
from fleet.ray.server_actor import node_address
from serving.base.clock import SystemClock, pause
from serving.base.errors import Unavailable
from serving.server.logs import flush_logs, start_logs

PAUSE_SECONDS = 30.0
"""A process that cannot go on waits this long before it ends, so that Ray does not restart it in a fast loop."""

_STORE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class CoordinatorActor:
    """The coordinator of one fleet. If its node is gone, Ray starts it again on another node.

    Its configuration and its state are in the cluster's key-value store. If the coordinator cannot go on, its
    process ends, and its next process takes over the fleet. The servers serve on meanwhile. When an operator
    has stopped the fleet, the actor ends itself for good.
    """

    def __init__(self, fleet: str) -> None:
        """Does nothing that can fail, because Ray does not restart an actor whose constructor has failed."""
        self._name = fleet
        self._clock = SystemClock()
        self._events = EventList(self._clock)
        self._front_problems = FrontProblems(self._clock)
        self._host = ""
        self._coordinator: RayCoordinator | None = None
        self._reason = "it takes the fleet over"
        threading.Thread(target=self._run, name="fleet", daemon=True).start()

    def address(self) -> str:
        """The HOST:PORT of the coordinator's HTTP. Raises Unavailable while it does not lead."""
        return f"{self._host}:{self._leading().service.port}"

    def deployed(self) -> dict[str, Any]:
        """The digest of the configuration, the process, and whether the fleet is stopping.

        Raises Unavailable while this coordinator does not lead.
        """
        coordinator = self._leading()
        return {
            "config": coordinator.digest,
            "is_stopping": coordinator.replicas.is_stopping,
            "process": [ray.get_runtime_context().get_node_id(), os.getpid()],
        }

    def shut_down(self) -> None:
        """Drains all servers, and then ends this actor. Returns at once. The state stays in the store.

        Raises Unavailable, and OSError if the store does not answer.
        """
        self._leading().replicas.shut_down()

    def events(
        self, boot: str, number: int, front: str = "", problems: Sequence[str] = ()
    ) -> list[LoggedEvent]:
        """The events that this process has logged after event `number` of the process `boot`.

        If `boot` is another process, the result has all events of this process. Also notes the `problems` of
        the `front` that asks.
        """
        if front:
            self._front_problems.note(front, problems)
        return self._events.after(boot, number)

    def place(self) -> dict[str, Any]:
        """The node and the process id of the coordinator."""
        return {
            "node": ray.get_runtime_context().get_node_id(),
            "process_id": os.getpid(),
        }

    def _leading(self) -> RayCoordinator:
        """The coordinator. Raises Unavailable, with the reason, while it does not lead."""
        coordinator = self._coordinator
        if coordinator is None or not coordinator.service.leads:
            reason = coordinator.service.failure if coordinator is not None else ""
            raise Unavailable(f"the coordinator is not ready: {reason or self._reason}")
        return coordinator

    def _run(self) -> None:
        try:
            start_logs("json", processors=[self._events.keep])
            take_usual_priority()
            coordinator = self._coordinator = self._made()
            coordinator.service.run()
            if not coordinator.replicas.has_stopped:
                raise Deposed("another coordinator of this fleet has begun")
            self._end()
        except Exception as error:  # noqa: BLE001 (another coordinator, a state that cannot be read, or a bug)
            self._coordinator, self._reason = None, f"{type(error).__name__}: {error}"
            _log.exception("fleet_coordinator_ends")
            # Ray starts the actor again after the pause, unless another actor has its name by now.
            pause(self._clock, PAUSE_SECONDS)
            flush_logs()
            os._exit(1)

    def _made(self) -> RayCoordinator:
        """Makes the coordinator. Tries again until the store answers."""
        self._host = node_address()
        store = KeyValueStore(self._name)
        while True:
            try:
                return ray_coordinator(store, self._host, self._clock, fronts=self._front_problems)
            except OSError as error:
                self._reason = str(error)
                pause(self._clock, _STORE_SECONDS)

    def _end(self) -> None:
        """Ends this process, so that Ray does not start it again."""
        _log.info("fleet_stopped", fleet=self._name)
        flush_logs()
        while True:
            with suppress(ray.exceptions.RayError, ValueError):
                actor = ray.get_actor(coordinator_name(self._name), namespace=NAMESPACE)
                ray.kill(actor, no_restart=True)
            # Ray kills this process during the pause.
            pause(self._clock, 1.0)


def coordinator_name(fleet: str) -> str:
    """The name of the actor of a fleet's coordinator."""
    return f"{fleet}/coordinator"

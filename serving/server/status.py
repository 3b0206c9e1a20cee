"""Status: follows the states of the models, and knows if the server is healthy and ready."""

from collections.abc import Callable, Sequence

from serving.core.servable import LOADING, START, ServableStatus
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import StateMonitor
from serving.reload.served_models import ServedModels
from serving.rpc.health import HealthReporter
from serving.server.drain import DrainNotice
from serving.server.foundation import Foundation
from serving.server.readiness_watch import ReadinessWatch


class Status:
    """The health and the readiness of a server, and the notice of its drain to a fleet.

    It has no thread of its own, because the threads that change a model update it.
    """

    def __init__(
        self,
        foundation: Foundation,
        *,
        served: ServedModels,
        monitor: StateMonitor,
        notes: NotePublisher,
        on_ready: Callable[[int], None],
    ) -> None:
        """Adds its listeners to `served` and `monitor`.

        `on_ready` is called with gRPC's port, once that is open and no model is awaited.
        """
        self._config = config = foundation.config
        self._served = served
        self._notes = notes
        self.drain_notice = DrainNotice(foundation.clock)
        self.health = HealthReporter(
            [model.name for model in config.models], monitor, excused=self._excused
        )
        self.readiness = ReadinessWatch(
            models=served,
            monitor=monitor,
            health=self.health,
            excused=self._excused,
            max_startup_wait_seconds=config.max_startup_wait_seconds,
            on_ready=on_ready,
            clock=foundation.clock,
        )
        served.add_names_listener(self._on_names)
        monitor.add_listener(self._on_status)

    def update(self) -> None:
        """Brings the health up to date, and logs that the server is ready if it has become so. Any thread."""
        self.health.update()
        self.readiness.report()

    def report_stop(self) -> None:
        """Reports that this server drains. A member of a fleet also waits until the fleet knows."""
        self.health.drain()
        if self._config.fleet_member and self.readiness.is_listening:
            self.drain_notice.wait(self._config.drain_seconds)

    def _excused(self) -> frozenset[str]:
        """The models without which the server counts as ready."""
        return frozenset(self._served.unloaded) | self._notes.refused

    def _on_names(self, names: Sequence[str]) -> None:
        self.health.set_models(names)
        self.readiness.report()

    def _on_status(self, status: ServableStatus) -> None:
        # START and LOADING are left out, because they change neither health nor readiness.
        if status.state not in (START, LOADING):
            self.health.model_changed(status.id.name)
            self.readiness.report()

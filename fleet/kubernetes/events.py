"""Shows a fleet's waves, verdicts and grants as Events, which `kubectl describe` and `kubectl events` print."""

import queue
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from fleet.kubernetes.cluster import ApiFailed, Cluster, Object
from fleet.kubernetes.documents import Regarded, change_event, event_object
from fleet.kubernetes.pods import PodPlace
from fleet.rollout.changes import Change
from fleet.rollout.reports import Grant
from serving.base.clock import Clock

QUEUE_LENGTH_MAX = 1_000

_log = structlog.get_logger(__name__)


class Events:
    """Queues Events for changes and grants. Another thread posts them by `post_next`.

    An Event is dropped if it cannot be posted or the queue is full. This does no harm, because only people
    read Events.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        state_name: str,
        instance: str,
        pods: PodPlace,
        clock: Clock,
    ) -> None:
        """Events of changes are about the ConfigMap `state_name`. Events of grants are about the server's pod."""
        self._cluster = cluster
        self._state = Regarded(kind="ConfigMap", name=state_name)
        self._instance = instance
        self._pods = pods
        self._clock = clock
        self._waiting: queue.Queue[Object | None] = queue.Queue(QUEUE_LENGTH_MAX)
        # By server and model, the version of the last grant that was shown. A grant may be sent again and
        # again, and is shown once.
        self._shown: dict[tuple[str, str], int | None] = {}

    def regard(self, config_map: Object) -> None:
        """Notes the uid of the ConfigMap, because `kubectl describe` finds Events only by their object's uid."""
        self._state = replace(self._state, uid=str(config_map["metadata"].get("uid", "")))

    def notice(self, changes: Sequence[Change], grants: Sequence[Grant]) -> None:
        """Shows changes and grants. Returns at once."""
        for change in changes:
            self._put(
                change_event(
                    change,
                    self._state,
                    self._cluster.namespace,
                    self._instance,
                    self._clock.wall_ns(),
                )
            )
        for grant in grants:
            place = (grant.server, grant.model)
            if place not in self._shown or self._shown[place] != grant.version:
                self._shown[place] = grant.version
                self._put(self._grant_event(grant))

    def post_next(self) -> bool:
        """Waits for the next Event and posts it. Returns False after `stop`."""
        event = self._waiting.get()
        if event is None:
            return False
        try:
            self._cluster.create_event(event)
        except ApiFailed as error:
            _log.warning("fleet_event_not_posted", reason=str(error))
        except Exception:  # noqa: BLE001 (a bug; the next Event must come)
            _log.exception("fleet_event_failed")
        return True

    def stop(self) -> None:
        """Makes `post_next` return False once all queued Events are posted.

        Drops the queued Events if the queue is full, because the process must not wait for so many.
        """
        if self._waiting.full():
            with suppress(queue.Empty):
                while True:
                    self._waiting.get_nowait()
        self._put(None)

    def _put(self, event: Object | None) -> None:
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            return

    def _grant_event(self, grant: Grant) -> Object:
        reason, what = "VersionGranted", f"version {grant.version} is granted"
        if grant.version is None:
            reason, what = "VersionWithdrawn", "the last grant is withdrawn"
        return event_object(
            Regarded(kind="Pod", name=grant.server, uid=self._pods.uid(grant.server)),
            reason,
            f"{grant.model}: {what}",
            namespace=self._cluster.namespace,
            instance=self._instance,
            wall_ns=self._clock.wall_ns(),
        )

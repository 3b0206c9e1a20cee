"""The servers of a fleet as the pods that match a label selector: listed once, and watched from then on."""

import threading
from collections.abc import Mapping
from dataclasses import replace

import structlog

from fleet.config.kubernetes_settings import KubernetesSettings
from fleet.kubernetes.cluster import ApiFailed, Cluster, Gone, Object
from fleet.kubernetes.documents import has_failed, membership_of
from fleet.lead.coordinator import Coordinator
from fleet.lead.places import Membership
from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.periodic_thread import PeriodicThread

WATCH_SECONDS = 30
"""The time of one watch; the next one continues from its last version, so it costs one short call."""

PAUSE_SECONDS = 1.0

ENDED_SECONDS = 300.0
"""The time for which a pod that has failed still counts as a lost server.

If a version makes nodes evict its pods one by one, this time is long enough to see that, because a pod with
another name takes the place of each.
"""

_log = structlog.get_logger(__name__)


class PodPlace:
    """A `ServerPlace` that follows the pods on a thread of its own, which calls `turn` again and again.

    While the API cannot be reached the pods stay as they were seen last.
    """

    def __init__(self, cluster: Cluster, settings: KubernetesSettings, clock: Clock) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        # Used by `turn` alone.
        self._version = ""
        self._failure = ""
        self._is_stopping = False
        # Turns have a pause between them, because an API server may end each watch at once.
        self._thread = PeriodicThread(
            "fleet-pods",
            self.turn,
            wait_seconds=PAUSE_SECONDS,
            failure_event="fleet_pods_failed",
            clock=clock,
        )
        # Guards the members below.
        self._lock = threading.Lock()
        self._pods: dict[str, Object] | None = None
        self._membership: Membership | None = None
        self._ended_at_ns: dict[str, int] = {}

    def membership(self) -> Membership | None:
        """See `ServerPlace`."""
        with self._lock:
            if self._membership is None and self._pods is not None:
                self._membership = membership_of([*self._pods.values()], self._settings)
            if self._membership is None or not self._ended_at_ns:
                return self._membership
            oldest_ns = self._clock.now_ns() - round(ENDED_SECONDS * NS_PER_SECOND)
            self._ended_at_ns = {
                name: at_ns for name, at_ns in self._ended_at_ns.items() if at_ns > oldest_ns
            }
            return replace(self._membership, ended=frozenset(self._ended_at_ns))

    def uid(self, name: str) -> str:
        """The identity of the pod of this name. A later pod of the same name has another one."""
        with self._lock:
            pod = (self._pods or {}).get(name)
            return "" if pod is None else str(pod["metadata"].get("uid", ""))

    def start(self) -> None:
        """See `ServerPlace`."""
        self._thread.wake()
        self._thread.start()

    def act(self, coordinator: Coordinator) -> None:
        """See `ServerPlace`. Does nothing, because Kubernetes itself starts and stops pods."""

    def stop(self) -> None:
        """See `ServerPlace`. A watch ends with its next event."""
        self._is_stopping = True
        self._thread.stop()

    def turn(self) -> None:
        """Lists the pods if they are not known, and watches them for a while.

        A failure is logged once; the next turn tries again.
        """
        try:
            if not self._version:
                self._list()
            self._watch()
        except Gone:
            self._version = ""
        except ApiFailed as error:
            if str(error) != self._failure:
                self._failure = str(error)
                _log.warning("fleet_pods_unreachable", reason=self._failure)
            return
        self._failure = ""

    def _list(self) -> None:
        pods, version = self._cluster.list_pods(self._settings.selector)
        found = {pod["metadata"]["name"]: _kept(pod) for pod in pods}
        with self._lock:
            self._note_ends(self._pods or {}, found)
            self._pods = found
            self._membership = None
        self._version = version

    def _watch(self) -> None:
        events = self._cluster.watch_pods(self._settings.selector, self._version, WATCH_SECONDS)
        for event in events:
            pod = event["object"]
            if event["type"] != "BOOKMARK":
                self._note(pod, is_there=event["type"] != "DELETED")
            self._version = pod["metadata"]["resourceVersion"]
            if self._is_stopping:
                return

    def _note(self, pod: Object, *, is_there: bool) -> None:
        name = pod["metadata"]["name"]
        with self._lock:
            assert self._pods is not None
            before = {name: self._pods[name]} if name in self._pods else {}
            if is_there:
                self._pods[name] = _kept(pod)
                self._note_ends(before, self._pods)
            elif self._is_same(name, pod):
                del self._pods[name]
                # A pod that was deleted in the usual way has that time in its last state.
                if not pod["metadata"].get("deletionTimestamp"):
                    self._note_ends(before, {})
            self._membership = None

    def _note_ends(self, before: Mapping[str, Object], after: Mapping[str, Object]) -> None:
        """Notes the pods that have failed between two states, and those that are servers again."""
        for name, pod in before.items():
            if has_failed(pod, after.get(name), self._settings):
                self._ended_at_ns[name] = self._clock.now_ns()
                _log.warning("fleet_pod_failed", server=name)
        for name in [*self._ended_at_ns.keys() & after.keys()]:
            if membership_of([after[name]], self._settings).servers:
                del self._ended_at_ns[name]

    def _is_same(self, name: str, pod: Object) -> bool:
        """True if the pod that is gone is the known one, and not its successor."""
        known = (self._pods or {}).get(name)
        return known is not None and known["metadata"].get("uid") == pod["metadata"].get("uid")


def _kept(pod: Object) -> Object:
    """Keeps the fields of a pod that the fleet reads, because a whole pod has 10 KB."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    return {
        "metadata": {
            key: metadata[key] for key in ("name", "uid", "deletionTimestamp") if key in metadata
        },
        "spec": {
            "containers": [
                {"ports": container.get("ports") or []} for container in pod["spec"]["containers"]
            ]
        },
        "status": {key: status[key] for key in ("podIP", "phase") if key in status},
    }

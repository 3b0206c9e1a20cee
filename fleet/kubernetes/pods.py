"""Finds the servers of a fleet: the pods that match a label selector, listed once and watched from then on."""

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
"""The time of one watch. The next watch goes on from the last version, so it costs one short call."""

PAUSE_SECONDS = 1.0

ENDED_SECONDS = 300.0
"""A pod that has failed counts as a lost server for this time.

Kubernetes replaces a failed pod by a pod with another name. If a version makes nodes evict its pods one by
one, this time is long enough for a few of them to count together.
"""

_log = structlog.get_logger(__name__)


class PodPlace:
    """A `ServerPlace` that follows the pods. Its own thread calls `turn` again and again.

    While Kubernetes' API cannot be reached, the pods stay as they were seen last.
    """

    def __init__(self, cluster: Cluster, settings: KubernetesSettings, clock: Clock) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        # The version from which the next watch goes on; "" if the pods must be listed first. Only `turn` uses
        # it.
        self._version = ""
        # The failure that was logged last; "" after a success. Only `turn` uses it.
        self._failure = ""
        self._is_stopping = False
        # The thread pauses between two turns, because an API server may end each watch at once.
        self._thread = PeriodicThread(
            "fleet-pods",
            self.turn,
            wait_seconds=PAUSE_SECONDS,
            failure_event="fleet_pods_failed",
            clock=clock,
        )
        # Guards all members below.
        self._lock = threading.Lock()
        # The pods by name; None before they were listed.
        self._pods: dict[str, Object] | None = None
        # The servers of `_pods`; None if they are to be found again.
        self._membership: Membership | None = None
        # By name, the time at which a pod has failed.
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
        """The uid of the pod with this name; "" if it is not known. A later pod of the name has another uid."""
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
        """See `ServerPlace`. The watch under way ends with its next event, or when its time is over."""
        self._is_stopping = True
        self._thread.stop()

    def turn(self) -> None:
        """Lists the pods if they are not known, and then watches them for WATCH_SECONDS.

        Logs a failure once. The next turn tries again.
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
                # A pod that was deleted as usual has a deletionTimestamp in its last state. A pod that is gone
                # without one has failed.
                if not pod["metadata"].get("deletionTimestamp"):
                    self._note_ends(before, {})
            self._membership = None

    def _note_ends(self, before: Mapping[str, Object], after: Mapping[str, Object]) -> None:
        """Notes the pods that have failed between two states. Forgets failed pods that are servers again."""
        for name, pod in before.items():
            if has_failed(pod, after.get(name), self._settings):
                self._ended_at_ns[name] = self._clock.now_ns()
                _log.warning("fleet_pod_failed", server=name)
        for name in [*self._ended_at_ns.keys() & after.keys()]:
            if membership_of([after[name]], self._settings).servers:
                del self._ended_at_ns[name]

    def _is_same(self, name: str, pod: Object) -> bool:
        """True if a pod that is gone is the known pod of this name, and not an earlier one."""
        known = (self._pods or {}).get(name)
        return known is not None and known["metadata"].get("uid") == pod["metadata"].get("uid")


def _kept(pod: Object) -> Object:
    """A pod with only the fields that the fleet reads, because a whole pod takes 10 KB."""
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

"""The servers of a fleet as the pods that match a label selector: listed once, and watched from then on."""

import threading
from collections.abc import Callable

import structlog

from serving.fleet.kubernetes.cluster import ApiFailed, Cluster, Gone, Object
from serving.fleet.kubernetes.documents import membership_of
from serving.fleet.kubernetes.settings import KubernetesSettings
from serving.fleet.places import Membership

WATCH_SECONDS = 30
"""The time of one watch; the next one continues from its last version, so it costs one short call."""

_log = structlog.get_logger(__name__)


class PodPlace:
    """Follows the pods. `turn` runs on one thread, again and again; `membership` on any.

    While the API cannot be reached the pods stay as they were seen last.
    """

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        # Used by `turn` alone.
        self._version = ""
        self._failure = ""
        # Guards the members below.
        self._lock = threading.Lock()
        self._pods: dict[str, Object] | None = None
        self._membership: Membership | None = None

    def membership(self) -> Membership | None:
        """See `ServerPlace`."""
        with self._lock:
            if self._membership is None and self._pods is not None:
                self._membership = membership_of([*self._pods.values()], self._settings)
            return self._membership

    def uid(self, name: str) -> str:
        """Returns the identity of the pod of this name, which another pod of the name does not have."""
        with self._lock:
            pod = (self._pods or {}).get(name)
            return "" if pod is None else str(pod["metadata"].get("uid", ""))

    def turn(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Lists the pods if they are not known, and watches them for a while.

        A failure is logged once; the next turn tries again.
        """
        try:
            if not self._version:
                self._list()
            self._watch(is_over)
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
        with self._lock:
            self._pods = {pod["metadata"]["name"]: _kept(pod) for pod in pods}
            self._membership = None
        self._version = version

    def _watch(self, is_over: Callable[[], bool]) -> None:
        events = self._cluster.watch_pods(self._settings.selector, self._version, WATCH_SECONDS)
        for event in events:
            pod = event["object"]
            if event["type"] != "BOOKMARK":
                self._note(pod, is_there=event["type"] != "DELETED")
            self._version = pod["metadata"]["resourceVersion"]
            if is_over():
                return

    def _note(self, pod: Object, *, is_there: bool) -> None:
        name = pod["metadata"]["name"]
        with self._lock:
            assert self._pods is not None
            if is_there:
                self._pods[name] = _kept(pod)
            elif self._is_same(name, pod):
                del self._pods[name]
            self._membership = None

    def _is_same(self, name: str, pod: Object) -> bool:
        """Returns True if the pod that has gone is the one that is known, and not its successor."""
        known = (self._pods or {}).get(name)
        return known is not None and known["metadata"].get("uid") == pod["metadata"].get("uid")


def _kept(pod: Object) -> Object:
    """Returns the fields of a pod that the fleet reads: a whole pod has 10 KB."""
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

"""The objects of one namespace of Kubernetes, in memory: versions, conflicts, selectors and watches.

As far as the fleet's adapter uses them, and as Kubernetes documents them: no real cluster was at hand.
kmock (PyPI) has no resourceVersion, conflict or selector, so it cannot stand in.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.kubernetes.cluster import ApiFailed, Conflict, Gone, Object

NAMESPACE = "prod"
Stored = dict[str, Any]


@dataclass(frozen=True)
class Deed:
    """A request: the verb and the resource as in a Role, and the object's name."""

    verb: str
    group: str
    resource: str
    name: str = ""


@dataclass
class FakeCluster:
    """Implements `Cluster`. Thread-safe. `allowed` are the rules of a Role; None allows everything."""

    allowed: Sequence[Mapping[str, Any]] | None = None
    namespace: str = NAMESPACE
    deeds: list[Deed] = field(default_factory=list)
    # Each object as it was sent.
    written: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self._objects: dict[tuple[str, str], Stored] = {}
        self._version = 0
        # The events of pods, by version. `forget_history` makes earlier versions too old.
        self._history: list[tuple[int, str, Stored]] = []
        self._oldest = 0

    # --- As the adapter sees it ---

    def read_lease(self, name: str) -> Object | None:
        return self._read("coordination.k8s.io", "leases", name)

    def create_lease(self, lease: Object) -> Object:
        return self._create("coordination.k8s.io", "leases", lease)

    def replace_lease(self, lease: Object) -> Object:
        if "resourceVersion" not in lease["metadata"]:
            raise ApiFailed("metadata.resourceVersion: must be specified for an update", 422)
        return self._replace("coordination.k8s.io", "leases", lease)

    def read_config_map(self, name: str) -> Object | None:
        return self._read("", "configmaps", name)

    def create_config_map(self, config_map: Object) -> Object:
        return self._create("", "configmaps", config_map)

    def replace_config_map(self, config_map: Object) -> Object:
        return self._replace("", "configmaps", config_map)

    def create_event(self, event: Object) -> None:
        with self.changed:
            self._check(Deed("create", "events.k8s.io", "events"))
            self.written.append(copy.deepcopy(dict(event)))
            self.events.append(event)
            self.changed.notify_all()

    def list_pods(self, selector: str) -> tuple[list[Object], str]:
        with self.changed:
            self._check(Deed("list", "", "pods"))
            pods: list[Object] = [
                copy.deepcopy(pod)
                for (resource, _), pod in sorted(self._objects.items())
                if resource == "pods" and selects(selector, pod)
            ]
            return pods, str(self._version)

    def watch_pods(self, selector: str, version: str, seconds: int) -> Iterator[Object]:
        """Yields the events that have happened, and a bookmark; does not wait for further ones."""
        del seconds
        with self.changed:
            self._check(Deed("watch", "", "pods"))
            events, last = self.pod_events_since(selector, int(version))
        yield from events
        yield bookmark(last)

    # --- As the test and the HTTP server see it ---

    def pod_events_since(self, selector: str, version: int) -> tuple[list[Object], int]:
        """Returns the events after a version, and the present version. Raises Gone."""
        with self.changed:
            if version < self._oldest:
                raise Gone("too old resource version", 410)
            events: list[Object] = [
                {"type": kind, "object": copy.deepcopy(pod)}
                for number, kind, pod in self._history
                if number > version and selects(selector, pod)
            ]
            return events, self._version

    def check(self, deed: Deed) -> None:
        with self.changed:
            self._check(deed)

    def forget_history(self) -> None:
        with self.changed:
            self._version += 1
            self._oldest = self._version
            self._history.clear()

    def put_pod(self, pod: Mapping[str, Any]) -> None:
        """Adds a pod, or replaces the one of its name."""
        with self.changed:
            name = pod["metadata"]["name"]
            kind = "MODIFIED" if ("pods", name) in self._objects else "ADDED"
            self._store("pods", name, dict(copy.deepcopy(pod)))
            self._record(kind, name)

    def delete_pod(self, name: str) -> None:
        with self.changed:
            pod = self._objects.pop(("pods", name))
            self._version += 1
            pod["metadata"]["resourceVersion"] = str(self._version)
            self._history.append((self._version, "DELETED", pod))
            self.changed.notify_all()

    def delete(self, resource: str, name: str) -> None:
        """Deletes an object as an operator would."""
        with self.changed:
            del self._objects[resource, name]

    def stored(self, resource: str, name: str) -> Stored | None:
        with self.changed:
            return copy.deepcopy(self._objects.get((resource, name)))

    # --- Inside; the caller has the lock ---

    def _read(self, group: str, resource: str, name: str) -> Object | None:
        with self.changed:
            self._check(Deed("get", group, resource, name))
            return copy.deepcopy(self._objects.get((resource, name)))

    def _create(self, group: str, resource: str, item: Object) -> Object:
        with self.changed:
            # Kubernetes does not know the name of a new object when it checks the rights.
            self._check(Deed("create", group, resource))
            name = item["metadata"]["name"]
            if "resourceVersion" in item["metadata"]:
                raise ApiFailed("resourceVersion should not be set on objects to be created", 500)
            if (resource, name) in self._objects:
                raise Conflict(f"{resource} {name!r} already exists", 409)
            return self._write(resource, item)

    def _replace(self, group: str, resource: str, item: Object) -> Object:
        with self.changed:
            name = item["metadata"]["name"]
            self._check(Deed("update", group, resource, name))
            known = self._objects.get((resource, name))
            if known is None:
                raise ApiFailed(f"{resource} {name!r} not found", 404)
            if item["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
                raise Conflict("the object has been modified; apply your changes to it", 409)
            return self._write(resource, item)

    def _write(self, resource: str, item: Object) -> Object:
        self.written.append(copy.deepcopy(dict(item)))
        stored = copy.deepcopy(dict(item))
        self._store(resource, item["metadata"]["name"], stored)
        return copy.deepcopy(stored)

    def _store(self, resource: str, name: str, item: Stored) -> None:
        self._version += 1
        known = self._objects.get((resource, name))
        metadata = item["metadata"]
        metadata["resourceVersion"] = str(self._version)
        metadata.setdefault("uid", known["metadata"]["uid"] if known else f"uid-{self._version}")
        self._objects[resource, name] = item
        self.changed.notify_all()

    def _record(self, kind: str, name: str) -> None:
        self._history.append((self._version, kind, copy.deepcopy(self._objects["pods", name])))

    def _check(self, deed: Deed) -> None:
        self.deeds.append(deed)
        if self.allowed is not None and not any(permits(rule, deed) for rule in self.allowed):
            raise ApiFailed(f"forbidden: {deed}", 403)


def permits(rule: Mapping[str, Any], deed: Deed) -> bool:
    """Returns True if a rule of a Role permits a request. A rule with names permits no creation."""
    names = rule.get("resourceNames")
    return (
        deed.verb in rule["verbs"]
        and deed.group in rule["apiGroups"]
        and deed.resource in rule["resources"]
        and (names is None or deed.name in names)
    )


def selects(selector: str, pod: Mapping[str, Any]) -> bool:
    """Returns True if a pod has each of the labels `a=b,c=d`."""
    labels = pod["metadata"].get("labels") or {}
    wanted = [part.split("=", 1) for part in selector.replace("==", "=").split(",") if part]
    return all(labels.get(key.strip()) == value.strip() for key, value in wanted)


def bookmark(version: int) -> Object:
    return {
        "type": "BOOKMARK",
        "object": {"kind": "Pod", "metadata": {"resourceVersion": str(version)}},
    }


def pod_object(
    name: str,
    *,
    host: str = "10.0.0.1",
    ports: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    phase: str = "Running",
    is_terminating: bool = False,
) -> Stored:
    """Returns a pod as Kubernetes would, as far as the adapter reads it."""
    ports = {"grpc": 8500, "http": 8501, "admin": 8599} if ports is None else ports
    metadata: Stored = {"name": name, "labels": dict(labels or {"app": "millpond"})}
    if is_terminating:
        metadata["deletionTimestamp"] = "2026-11-24T12:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": [
                {
                    "name": "millpond",
                    "image": "millpond",
                    "ports": [{"name": key, "containerPort": port} for key, port in ports.items()],
                }
            ]
        },
        "status": {"phase": phase, **({"podIP": host} if host else {})},
    }

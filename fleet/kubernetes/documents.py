"""The objects that a coordinator reads and writes in Kubernetes, as JSON. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from fleet.config.config import FleetServer
from fleet.config.kubernetes_settings import KubernetesSettings
from fleet.kubernetes.cluster import Object
from fleet.lead.places import Membership
from fleet.rollout.changes import Change
from fleet.rollout.state import FleetState, ModelState

ADDRESS = "millpond/coordinator"
"""The annotation of the Lease that has the HTTP address of its holder."""

TERM = "millpond/term"
"""The annotation of the ConfigMap that has the number of the term in which it was written last."""

STATE_KEY = "fleet.json"
SUMMARY_KEY = "summary"

_LABELS = {"app.kubernetes.io/managed-by": "millpond"}
_ENDED = ("Succeeded", "Failed")
# Kubernetes refuses longer notes.
_NOTE_LENGTH_MAX = 1_000
_CONTROLLER = "millpond/fleet"

_REASONS: Mapping[str, str] = {
    "fleet_verdict": "VersionJudged",
    "fleet_gate_warned": "GateWarned",
    "fleet_setback": "VersionFailed",
    "fleet_rolled_back": "VersionRolledBack",
    "fleet_wave_began": "WaveBegan",
    "fleet_stable_version": "VersionStable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The part of a Lease that decides which coordinator leads. `holder` is "" if no coordinator holds it.

    `version` is another one after each write. `term` grows with each new holder.
    """

    holder: str
    term: int
    duration_seconds: int
    version: str
    address: str = ""


def lease_record(lease: Object) -> LeaseRecord:
    spec = lease.get("spec") or {}
    annotations = lease["metadata"].get("annotations") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        term=spec.get("leaseTransitions") or 0,
        duration_seconds=spec.get("leaseDurationSeconds") or 0,
        version=lease["metadata"]["resourceVersion"],
        address=annotations.get(ADDRESS, ""),
    )


def lease_object(name: str, record: LeaseRecord, wall_ns: int, acquired_wall_ns: int) -> Object:
    """Makes the Lease of a record. Without a version in the record, the Lease is one to create."""
    metadata: dict[str, Any] = {"name": name, "labels": _LABELS}
    if record.version:
        metadata["resourceVersion"] = record.version
    spec: dict[str, Any] = {
        "leaseDurationSeconds": record.duration_seconds,
        "leaseTransitions": record.term,
        "renewTime": micro_time(wall_ns),
    }
    if record.holder:
        metadata["annotations"] = {ADDRESS: record.address}
        spec |= {"holderIdentity": record.holder, "acquireTime": micro_time(acquired_wall_ns)}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }


def micro_time(wall_ns: int) -> str:
    """A time as Kubernetes writes it in Leases and Events."""
    time = datetime.fromtimestamp(wall_ns // 1_000 / 1e6, tz=timezone.utc)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def state_object(name: str, version: str, term: int, data: Mapping[str, str]) -> Object:
    """Makes the ConfigMap of a state. If `version` is "", the ConfigMap is one to create."""
    metadata: dict[str, Any] = {
        "name": name,
        "labels": _LABELS,
        "annotations": {TERM: str(term)},
    }
    if version:
        metadata["resourceVersion"] = version
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": dict(data),
    }


def term_of(config_map: Object) -> int:
    """The term in which a ConfigMap was written; 0 if no coordinator wrote it."""
    text = (config_map["metadata"].get("annotations") or {}).get(TERM, "0")
    return int(text) if text.isdecimal() else 0


def summary_of(state: FleetState) -> str:
    """A few lines for each model, for people who look at the ConfigMap with kubectl."""
    return "".join(f"{line}\n" for name in sorted(state.models) for line in _lines(name, state))


def _lines(name: str, state: FleetState) -> Iterator[str]:
    model: ModelState = state.models[name]
    text = f"{name}: stable version {model.stable}"
    if model.rollout is not None:
        text += f", version {model.rollout.version} in wave {model.rollout.wave_index + 1}"
    yield text + (", paused" if model.is_paused else "")
    for version, block in sorted(model.blocked.items()):
        yield f"{name}: version {version} blocked by {block.by.value}: {block.reason}"


def membership_of(pods: list[Object], settings: KubernetesSettings) -> Membership:
    """The servers of the pods, sorted by name. Leaves out pods without an address, and pods that have ended."""
    servers = []
    identities = {}
    leaving = set()
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        status = pod.get("status") or {}
        ports = _ports(pod)
        admin = _address(status, ports, settings.admin_port)
        if not admin or status.get("phase") in _ENDED:
            continue
        name = str(pod["metadata"]["name"])
        servers.append(
            FleetServer(
                name=name,
                admin=admin,
                grpc=_address(status, ports, settings.grpc_port),
                http=_address(status, ports, settings.http_port),
            )
        )
        if pod["metadata"].get("deletionTimestamp"):
            leaving.add(name)
        if "uid" in pod["metadata"]:
            identities[name] = str(pod["metadata"]["uid"])
    return Membership(tuple(servers), frozenset(leaving), identities=identities)


def has_failed(before: Object, after: Object | None, settings: KubernetesSettings) -> bool:
    """True if a pod that was a server has ended by itself, for example because it was evicted.

    `after` is the pod as it is now; None if it is gone. False if the pod is being deleted, has completed, or
    was replaced by another pod of its name.
    """
    known = membership_of([before], settings)
    if not known.servers or known.leaving:
        return False
    if after is None:
        return True
    is_same = before["metadata"].get("uid") == after["metadata"].get("uid")
    is_deleted = bool(after["metadata"].get("deletionTimestamp"))
    return is_same and not is_deleted and (after.get("status") or {}).get("phase") == "Failed"


def _ports(pod: Object) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in pod["spec"]["containers"]
        for port in container.get("ports") or ()
        if "name" in port
    }


def _address(status: Object, ports: Mapping[str, int], port: str) -> str:
    """HOST:PORT; "" if the pod has no address, or no port of this name."""
    host = status.get("podIP")
    number = int(port) if port.isdecimal() else ports.get(port)
    if not host or number is None:
        return ""
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regarded:
    """The object about which an Event is."""

    kind: str
    name: str
    uid: str = ""


def change_note(change: Change) -> str:
    """The sentence by which an Event describes a change."""
    model, values = change.model, change.values
    texts: Mapping[str, str] = {
        "fleet_verdict": "{model}: {gate} {verdict}: {reason}",
        "fleet_gate_warned": "{model}: version {version} on {server}: {reason}",
        "fleet_setback": "{model}: version {version} has failed on {server}",
        "fleet_rolled_back": "{model}: version {version} is blocked in the fleet: {reason}",
        "fleet_wave_began": "{model}: version {version} begins wave {wave}",
        "fleet_stable_version": "{model}: version {version} is stable; before: {before}",
    }
    verdict = "passed" if values.get("is_passed") else "refused the version"
    return texts[change.event].format(model=model, verdict=verdict, **values)


def change_event(
    change: Change, regarded: Regarded, namespace: str, instance: str, wall_ns: int
) -> Object:
    """The Event of a change."""
    return event_object(
        regarded,
        _REASONS[change.event],
        change_note(change),
        namespace=namespace,
        instance=instance,
        wall_ns=wall_ns,
        is_warning=change.is_warning,
    )


def event_object(
    regarded: Regarded,
    reason: str,
    note: str,
    *,
    namespace: str,
    instance: str,
    wall_ns: int,
    is_warning: bool = False,
) -> Object:
    """An Event about an object. `instance` is the name of the coordinator that reports the Event."""
    regarding = {
        "apiVersion": "v1",
        "kind": regarded.kind,
        "name": regarded.name,
        "namespace": namespace,
    }
    if regarded.uid:
        regarding["uid"] = regarded.uid
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{regarded.name}.", "namespace": namespace},
        "eventTime": micro_time(wall_ns),
        "reportingController": _CONTROLLER,
        "reportingInstance": instance[:128],
        "action": "Rollout",
        "reason": reason,
        "regarding": regarding,
        "note": note[:_NOTE_LENGTH_MAX],
        "type": "Warning" if is_warning else "Normal",
    }

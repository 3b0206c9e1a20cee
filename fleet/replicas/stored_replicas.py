"""Writes the state of a fleet's replicas as JSON, and reads it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_type_hints

from fleet.replicas.replicas import LEAVING, NO_PORTS, STOPPING, UP, Ports, Replica, ReplicaState
from serving.base.errors import DataLoss


def replica_state_as_json(state: ReplicaState) -> str:
    """Writes the state as a text that `replica_state_from_json` reads."""
    return json.dumps(
        {
            "launch_count": state.launch_count,
            "replicas": [asdict(state.replicas[name]) for name in sorted(state.replicas)],
            "restarts": sorted(state.restarts),
            "ports": {name: [*state.ports[name]] for name in sorted(state.ports)},
        }
    )


def replica_state_from_json(text: str) -> ReplicaState:
    """Reads the text that `replica_state_as_json` returned. Raises DataLoss for another text."""
    try:
        document: Mapping[str, Any] = json.loads(text)
        rows = [_replica(row) for row in document["replicas"]]
        # States that an earlier release has written have no ports.
        ports = {name: _ports(row) for name, row in document.get("ports", {}).items()}
        return ReplicaState(
            launch_count=int(document["launch_count"]),
            replicas={row.name: row for row in rows},
            restarts=frozenset(map(str, document["restarts"])),
            ports=ports,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DataLoss(f"not the replicas of a fleet: {error!r}") from error


def _replica(row: Mapping[str, Any]) -> Replica:
    replica = Replica(**{**row, "ports": _ports(row.get("ports", NO_PORTS))})
    for name, kind in get_type_hints(Replica).items():
        value = getattr(replica, name)
        is_kind = type(value) is kind or (kind is float and type(value) is int)
        if name != "ports" and not is_kind:
            raise ValueError(f"{name} of a replica: {value!r}")
    if replica.phase not in (UP, LEAVING, STOPPING):
        raise ValueError(f"phase of a replica: {replica.phase!r}")
    return replica


def _ports(row: Any) -> Ports:
    grpc, http = row
    return (int(grpc), int(http))

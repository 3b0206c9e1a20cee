"""Finds the replicas of a fleet whose stored state is lost, from the launches that run. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet.replicas.replicas import Replica, ReplicaState, WantedModel


@dataclass(frozen=True, slots=True)
class FoundLaunch:
    """A launch that the cluster knows. `node` is the node on which it runs; "" if it does not run."""

    name: str
    launch: int
    node: str = ""


def found_state(found: Iterable[FoundLaunch], wanted: Iterable[WantedModel]) -> ReplicaState:
    """The state of a fleet from the launches that the cluster knows, because the stored state is lost.

    Takes over the latest launch of each replica that runs. The replica counts as one that was ready, so
    that clients keep its address. It is restarted once the others are ready, because its flags are unknown.
    """
    rows = sorted(found, key=lambda row: row.launch)
    models = {model.name: model for model in wanted}
    replicas: dict[str, Replica] = {}
    for row in rows:
        model = row.name.rpartition("-")[0]
        if not row.node:
            continue
        replica = Replica(
            name=row.name, model=model, node=row.node, launch=row.launch, was_ready=True
        )
        if model in models:
            replica = replace(
                replica,
                room_bytes=models[model].need.room_bytes,
                drain_seconds=models[model].drain_seconds,
            )
        replicas[row.name] = replica
    return ReplicaState(launch_count=rows[-1].launch if rows else 0, replicas=replicas)

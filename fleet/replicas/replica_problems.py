"""Texts for an operator about servers that should run and do not. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from fleet.replicas.decision import ReplicaDecision
from fleet.replicas.layers import most_left_bytes
from fleet.replicas.placement import ServerRoom, replicas_needed
from fleet.replicas.replicas import Replica, WantedModel

_GB = 1e9


def replica_problems(
    wanted: Sequence[WantedModel],
    decision: ReplicaDecision,
    rooms: Sequence[ServerRoom],
    ready: frozenset[str],
    reasons: Mapping[str, str],
) -> list[str]:
    """A text for each model that has replicas without room, and for each server that does not start.

    `ready` has the names of the servers that serve. `reasons` has, by server, why its last launch ended.
    """
    rows = decision.state.replicas
    needs = {model.name: model for model in wanted}
    missing = (
        _missing_text(needs[name], count, rooms, rows.values())
        for name, count in sorted(decision.missing.items())
        if name in needs
    )
    return [*missing, *_ended_texts(rows, ready, reasons)]


def _missing_text(
    model: WantedModel, count: int, rooms: Sequence[ServerRoom], rows: Collection[Replica]
) -> str:
    usable = [room for room in rooms if not room.is_draining]
    wanted = replicas_needed(model.need, usable)
    text = f"model {model.name}: {count} of {wanted} replicas find no node with room"
    if not usable:
        return f"{text}: the cluster has no node that takes servers"
    needed_bytes, most_bytes = model.need.room_bytes, most_left_bytes(usable, rows)
    if most_bytes >= needed_bytes and model.need.requests_per_second > 0:
        return f"{text}: the nodes with memory for one take no more requests_per_second; add a node"
    if most_bytes >= needed_bytes:
        return (
            f"{text}: they are spread over the nodes, and the other ones are too small; add a node"
        )
    return (
        f"{text}: each takes {needed_bytes / _GB:.2f} GB (process_bytes and twice memory_bytes), and no node "
        f"has more than {max(0, most_bytes) / _GB:.2f} GB left; add a node, or lower replicas, process_bytes "
        "or memory_bytes"
    )


def _ended_texts(
    rows: Mapping[str, Replica], ready: frozenset[str], reasons: Mapping[str, str]
) -> Iterator[str]:
    for name, row in sorted(rows.items()):
        if row.failure_count and name not in ready:
            reason = reasons.get(name, "an earlier coordinator has logged it")
            count = "once" if row.failure_count == 1 else f"{row.failure_count} times"
            yield f"server {name} has ended {count}, the last time because: {reason}"

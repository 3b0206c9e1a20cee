"""Places replicas on nodes in layers, by the memory that each node has left. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet.replicas.placement import ModelNeed, ServerRoom, place, replicas_needed
from fleet.replicas.replicas import UP, Replica, WantedModel


def placed(
    wanted: Sequence[WantedModel], rooms: Sequence[ServerRoom], replicas: Iterable[Replica]
) -> tuple[dict[str, Counter[str]], dict[str, int]]:
    """The number of replicas that each node should have, by model, and the number without room, by model.

    `place` puts at most one replica of a model on a node. If a model has more replicas than there are nodes,
    the rest are placed in further *layers*, so that replicas are spread evenly. Replicas that leave, or should
    leave, take no room here, because no other replica should move for their sake. A launch in their room
    waits until they have ended.
    """
    rows = [*replicas]
    taken = taken_bytes_by_node(rows)
    usable = [room for room in rooms if not room.is_draining]
    present: dict[str, Counter[str]] = {model.name: Counter() for model in wanted}
    for row in rows:
        if row.model in present and (row.phase == UP or row.comes_back):
            present[row.model][row.node] += 1
    layers = {
        layer.name: (model.name, depth, layer)
        for model in wanted
        for depth, layer in enumerate(_layers(model.need, usable))
    }
    placement = place(
        [layer for _, _, layer in layers.values()],
        [replace(room, memory_bytes=usable_bytes(room, taken[room.name])) for room in rooms],
        {
            name: [node for node, count in sorted(present[model].items()) if count > depth]
            for name, (model, depth, _) in layers.items()
        },
    )
    chosen: dict[str, Counter[str]] = {model.name: Counter() for model in wanted}
    missing: Counter[str] = Counter()
    for name, (model, _, _) in layers.items():
        chosen[model].update(placement.servers[name])
        missing[model] += placement.missing.get(name, 0)
    if not usable:
        missing.update({model.name: model.need.replica_count for model in wanted})
    return chosen, {model: count for model, count in missing.items() if count}


def _layers(need: ModelNeed, usable: Sequence[ServerRoom]) -> list[ModelNeed]:
    """Splits the need of a model into layers with at most one replica a node each."""
    count = replicas_needed(need, usable)
    layers: list[ModelNeed] = []
    left = count if usable else 0
    while left > 0:
        size = min(left, len(usable))
        layers.append(
            replace(
                need,
                # A model's name has no line break, so no model has the same name as a layer.
                name=f"{need.name}\n{len(layers)}",
                replica_count=size,
                requests_per_second=need.requests_per_second * size / count,
            )
        )
        left -= size
    return layers


def usable_bytes(room: ServerRoom, taken_bytes: int) -> int:
    """The memory that all replicas of a node may have together: all that other jobs have not reserved.

    The present replicas have `taken_bytes` of it.
    """
    if room.free_bytes is None:
        return room.memory_bytes
    return min(room.memory_bytes, room.free_bytes + taken_bytes)


def most_left_bytes(rooms: Iterable[ServerRoom], rows: Iterable[Replica]) -> int:
    """The memory that the node with the most room has left for one further replica."""
    taken = taken_bytes_by_node(rows)
    return max(
        (usable_bytes(room, taken[room.name]) - taken[room.name] for room in rooms), default=0
    )


def taken_bytes_by_node(rows: Iterable[Replica]) -> Counter[str]:
    """The memory that the replicas of each node take, by node."""
    taken: Counter[str] = Counter()
    for row in rows:
        taken[row.node] += row.room_bytes
    return taken

"""The graph of a checkpoint's objects: which variable of a model has which key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from millpond.checkpoint_index import CheckpointIndex, read_index
from millpond.version_files import PREFIX
from serving.base.errors import DataLoss, FailedPrecondition

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"

CHANGES = frozenset({"tables", "ids", "rows", "delta"})
"""The children of a base's root that are not the model's."""


class ObjectGraph:
    """The nodes of a `TrackableObjectGraph`, by number; the first one is the root."""

    root = 0

    def __init__(self, serialized: bytes) -> None:
        self._nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized).nodes

    def children(self, node: int) -> Mapping[str, int]:
        return {child.local_name: child.node_id for child in self._nodes[node].children}

    def child(self, name: str) -> int:
        return self.children(self.root)[name]

    def key(self, node: int) -> str:
        """The key of a variable."""
        return str(self._nodes[node].attributes[0].checkpoint_key)

    def variable_name(self, node: int) -> str:
        return str(self._nodes[node].attributes[0].full_name)

    def values(self, root: Any) -> Mapping[str, Any]:
        """The objects below `root` by the keys of their values, as far as `root` has them."""
        found: dict[str, Any] = {}
        objects = {self.root: root}
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            live = tf.train.TrackableView.children(objects[node])
            for name, other in self.children(node).items():
                # The graph of a SavedModel has functions too, which hold no values.
                if name in live and other not in objects:
                    objects[other] = live[name]
                    waiting.append(other)
            found |= {item.checkpoint_key: objects[node] for item in self._nodes[node].attributes}
        return found

    def same_values(self, other: ObjectGraph, node: int) -> Mapping[str, str]:
        """The keys of this graph's values, and those that the same values have below `node` of `other`."""
        found: dict[str, str] = {}
        places = {self.root: node}
        waiting = [self.root]
        while waiting:
            mine = waiting.pop()
            theirs = other.children(places[mine])
            for name, child in self.children(mine).items():
                if name in theirs and child not in places:
                    places[child] = theirs[name]
                    waiting.append(child)
            keys = {item.name: item.checkpoint_key for item in other.attributes(places[mine])}
            for item in self.attributes(mine):
                if item.name in keys:
                    found[item.checkpoint_key] = keys[item.name]
        return found

    def attributes(self, node: int) -> Sequence[Any]:
        attributes: Sequence[Any] = self._nodes[node].attributes
        return attributes


def is_graph_of_base(graph: ObjectGraph) -> bool:
    """True for a base and for its deltas."""
    return graph.children(graph.root).keys() >= CHANGES


def read_object_graph(version: Path, index: CheckpointIndex | None = None) -> ObjectGraph:
    """Reads the graph of a SavedModel's checkpoint. Raises as `object_graph_bytes` does."""
    return ObjectGraph(object_graph_bytes(version, index))


def object_graph_bytes(version: Path, index: CheckpointIndex | None = None) -> bytes:
    """Reads the graph as it is stored. `index` is that of the checkpoint, if it was read already.

    Raises FailedPrecondition if the checkpoint has no graph, and DataLoss.
    """
    index = read_index(version / PREFIX) if index is None else index
    if OBJECT_GRAPH_KEY not in index.entries:
        raise FailedPrecondition(
            f"{version} was not written by tf.saved_model.save of TensorFlow 2"
        )
    value: bytes = read_tensor(version, OBJECT_GRAPH_KEY)
    return value


def read_tensor(version: Path, key: str) -> Any:
    """Reads a value of a version's checkpoint, as `read_tensors` does."""
    return read_tensors(version, [key])[key]


def read_tensors(version: Path, keys: Iterable[str]) -> Mapping[str, Any]:
    """Reads values of a version's checkpoint by key. Raises DataLoss if its files are damaged or missing."""
    found = {}
    key = ""
    try:
        reader = tf.train.load_checkpoint(str(version / PREFIX))
        for key in keys:
            found[key] = reader.get_tensor(key)
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        # TensorFlow's reader raises these for files that are short, or not there.
        raise DataLoss(f"{version / PREFIX}: {key} cannot be read ({error})") from error
    return found

"""Says whether two SavedModels have the same graph, whatever their nodes and functions are called.

TensorFlow's own fingerprint differs between two exports of one process, because names have counters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millpond.delta.saved_files import read_saved_model

_INIT_OP = "__saved_model_init_op"

# Attributes whose values are names, or follow from the rest of the graph. The names of a restore are the keys
# of the checkpoint, which count.
_NAMES = frozenset({"shared_name", "container", "debug_name"})


def graph_digest(version: Path) -> bytes:
    """The same for two versions with the same signatures that are computed in the same way.

    Counts the keys of variables, and not their values. Raises OSError, and DataLoss if the graph is damaged.
    """
    saved = read_saved_model(version)
    return _digest([meta_graph_digest(meta_graph) for meta_graph in saved.meta_graphs])


def meta_graph_digest(meta_graph: Any) -> bytes:
    """The same for two graphs with the same signatures that are computed in the same way."""
    return _MetaGraph(meta_graph).digest()


class _MetaGraph:
    def __init__(self, meta_graph: Any) -> None:
        self._meta_graph = meta_graph
        self._functions = {
            item.signature.name: item for item in meta_graph.graph_def.library.function
        }
        self._nodes = {node.name: node for node in meta_graph.graph_def.node}
        self._assets = {
            item.tensor_info.name.partition(":")[0]: item.filename
            for item in meta_graph.asset_file_def
        }
        self._digests: dict[str, bytes] = {}
        self._resources: dict[tuple[str, str], int] = {}

    def digest(self) -> bytes:
        # The restore op last: it ties the keys of variables to those that the signatures have numbered.
        parts = [self._signature(key) for key in sorted(self._meta_graph.signature_def)]
        return _digest([*parts, self._node(self._meta_graph.saver_def.restore_op_name)])

    def _signature(self, key: str) -> bytes:
        signature = self._meta_graph.signature_def[key]
        if key == _INIT_OP:
            return _digest([key, *(self._node(item.name) for item in signature.outputs.values())])
        parts = [key, signature.method_name]
        for tensors in (signature.inputs, signature.outputs):
            parts += [(name, self._tensor(tensors[name])) for name in sorted(tensors)]
        return _digest(parts)

    def _tensor(self, info: Any) -> bytes:
        names = [info.name] if info.name else [part.name for part in _parts(info)]
        shape = info.tensor_shape.SerializeToString(deterministic=True)
        return _digest([info.dtype, shape, *(self._input(name) for name in names)])

    def _node(self, name: str) -> bytes:
        if name not in self._digests:
            node = self._nodes[name]
            parts: list[Any] = [node.op, *(self._input(item) for item in node.input)]
            if name in self._assets:
                parts.append(("asset", self._assets[name]))
            else:
                parts += self._attributes(node)
            if "shared_name" in node.attr:
                parts.append(self._resource(node))
            self._digests[name] = _digest(parts)
        return self._digests[name]

    def _resource(self, node: Any) -> int:
        """The number of a resource in the order in which the graph is read; its name may have a counter."""
        key = (node.op, node.attr["shared_name"].s or node.name)
        return self._resources.setdefault(key, len(self._resources))

    def _input(self, item: str) -> tuple[bytes, str]:
        """An input of the main graph: the node's digest, and which output, or that it is only waited for."""
        if item.startswith("^"):
            return self._node(item[1:]), "^"
        name, _, output = item.partition(":")
        return self._node(name), output or "0"

    def _attributes(self, node: Any) -> list[tuple[str, bytes]]:
        names = sorted(
            name for name in node.attr if not name.startswith("_") and name not in _NAMES
        )
        found = [(name, self._attribute(node.attr[name])) for name in names]
        if node.op in self._functions:
            found.append(("op", self._function(node.op)))
        return found

    def _attribute(self, value: Any) -> bytes:
        functions = [value.func] if value.HasField("func") else list(value.list.func)
        if functions:
            return _digest([self._function(item.name) for item in functions])
        # A constant may be large.
        return hashlib.sha256(value.SerializeToString(deterministic=True)).digest()

    def _function(self, name: str) -> bytes:
        """The digest of a function; its arguments and nodes are numbered in the order that they have."""
        key = f"function {name}"
        if key not in self._digests:
            function = self._functions[name]
            arguments = [item.name for item in function.signature.input_arg]
            numbers = _numbers(arguments, [node.name for node in function.node_def])
            parts: list[Any] = [item.type for item in function.signature.input_arg]
            for node in function.node_def:
                op = "" if node.op in self._functions else node.op
                parts.append([op, *(_renamed(item, numbers) for item in node.input)])
                parts.append(self._attributes(node))
            parts += [
                (argument.type, _renamed(function.ret[argument.name], numbers))
                for argument in function.signature.output_arg
            ]
            parts.append(sorted(numbers[item] for item in function.control_ret.values()))
            self._digests[key] = _digest(parts)
        return self._digests[key]


def _parts(info: Any) -> Sequence[Any]:
    """The tensors of a ragged or sparse one."""
    if info.HasField("composite_tensor"):
        components: Sequence[Any] = info.composite_tensor.components
        return components
    sparse = info.coo_sparse
    return [
        type(info)(name=name)
        for name in (
            sparse.values_tensor_name,
            sparse.indices_tensor_name,
            sparse.dense_shape_tensor_name,
        )
    ]


def _numbers(arguments: Iterable[str], nodes: Iterable[str]) -> Mapping[str, str]:
    found = {name: f"argument {number}" for number, name in enumerate(arguments)}
    return found | {name: f"node {number}" for number, name in enumerate(nodes)}


def _renamed(item: str, numbers: Mapping[str, str]) -> tuple[str, str]:
    """An input within a function, as NODE:OUTPUT:NUMBER, ARGUMENT or ^NODE."""
    name, _, rest = item.removeprefix("^").partition(":")
    return numbers[name], "^" if item.startswith("^") else rest


def _digest(parts: Sequence[Any]) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()

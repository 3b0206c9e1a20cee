"""Compares the signatures of a version with those of its predecessor. Pure.

Names and dtypes break clients for certain if they change, so `signature` refuses by default. Declared
shapes do not: a graph may take more shapes than its signature declares, and the server checks none
of them by default. So `shapes` warns by default, and replayed live requests find what really fails.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from serving.base.protos import get_model_metadata_pb2, meta_graph_pb2, tensor_shape_pb2
from serving.base.tensor_proto import data_type_name

# Clients cannot ask for these signatures of TensorFlow's own.
_INTERNAL_SIGNATURE_PREFIX = "__saved_model_"

_Signature: TypeAlias = meta_graph_pb2.SignatureDef
_Tensor: TypeAlias = meta_graph_pb2.TensorInfo
_Tensors: TypeAlias = Mapping[str, meta_graph_pb2.TensorInfo]
_Shape: TypeAlias = tensor_shape_pb2.TensorShapeProto


def signature_faults(before: bytes, after: bytes) -> list[str]:
    """The names and dtypes that clients of `before` use and `after` lacks.

    Both are serialized SignatureDefMaps. Additional signatures and outputs are not faults, and neither is
    an additional input with a default, which a request need not send.
    """
    now = _signatures(after)
    gone = [f"signature {name!r} is gone" for name in _signatures(before) if name not in now]
    return sorted([*gone, *_differences(before, after, _name_and_dtype_faults)])


def shape_faults(before: bytes, after: bytes) -> list[str]:
    """The inputs that declare fewer shapes in `after` than in `before`, and outputs of another
    rank.

    Leaves out the faults that `signature_faults` returns.
    """
    return _differences(before, after, _shape_faults)


def _differences(
    before: bytes, after: bytes, compare: Callable[[_Signature, _Signature], Iterator[str]]
) -> list[str]:
    was, now = _signatures(before), _signatures(after)
    found = {name: ", ".join(compare(was[name], now[name])) for name in was if name in now}
    return [f"signature {name!r}: {text}" for name, text in found.items() if text]


def _signatures(serialized: bytes) -> dict[str, _Signature]:
    signatures = get_model_metadata_pb2.SignatureDefMap.FromString(serialized).signature_def
    return {
        name: signatures[name]
        for name in sorted(signatures)
        if not name.startswith(_INTERNAL_SIGNATURE_PREFIX)
    }


def _name_and_dtype_faults(was: _Signature, now: _Signature) -> Iterator[str]:
    yield from _gone("input", was.inputs, now.inputs)
    new = set(now.inputs) - set(was.inputs) - set(now.defaults)
    yield from (f"input {name!r} is new, and has no default" for name in sorted(new))
    kept = set(was.inputs) & set(now.inputs) & set(was.defaults)
    lost = sorted(kept - set(now.defaults))
    yield from (f"input {name!r} has no default any more" for name in lost)
    yield from _changed("input", was.inputs, now.inputs, _has_other_type)
    # Composite outputs are left out, because no client could get them.
    outputs = {name: info for name, info in was.outputs.items() if _is_dense(info)}
    yield from _gone("output", outputs, now.outputs)
    yield from _changed("output", outputs, now.outputs, _has_other_type)


def _shape_faults(was: _Signature, now: _Signature) -> Iterator[str]:
    yield from _changed("input", was.inputs, now.inputs, _takes_fewer_shapes)
    yield from _changed("output", was.outputs, now.outputs, _has_other_rank)


def _gone(kind: str, was: _Tensors, now: _Tensors) -> Iterator[str]:
    yield from (f"{kind} {name!r} is gone" for name in sorted(set(was) - set(now)))


def _changed(
    kind: str, was: _Tensors, now: _Tensors, is_changed: Callable[[_Tensor, _Tensor], bool]
) -> Iterator[str]:
    for name in sorted(set(was) & set(now)):
        if is_changed(was[name], now[name]):
            yield f"{kind} {name!r} is {_text(now[name])}, was {_text(was[name])}"


def _is_dense(tensor: _Tensor) -> bool:
    """False for a tensor of several parts, such as a RaggedTensor."""
    return tensor.WhichOneof("encoding") in ("name", None)


def _has_other_type(was: _Tensor, now: _Tensor) -> bool:
    return bool(was.dtype != now.dtype) or _is_dense(was) != _is_dense(now)


def _takes_fewer_shapes(was: _Tensor, now: _Tensor) -> bool:
    return not _has_other_type(was, now) and not _accepts(now.tensor_shape, was.tensor_shape)


def _has_other_rank(was: _Tensor, now: _Tensor) -> bool:
    one, other = was.tensor_shape, now.tensor_shape
    is_known = not one.unknown_rank and not other.unknown_rank
    return not _has_other_type(was, now) and is_known and len(one.dim) != len(other.dim)


def _accepts(shape: _Shape, clients: _Shape) -> bool:
    """True if an input of `shape` accepts every tensor that an input of `clients` accepted."""
    if shape.unknown_rank:
        return True
    if clients.unknown_rank or len(shape.dim) != len(clients.dim):
        return False
    return all(
        mine.size < 0 or mine.size == theirs.size
        for mine, theirs in zip(shape.dim, clients.dim, strict=True)
    )


def _text(tensor: _Tensor) -> str:
    shape = tensor.tensor_shape
    sizes = ",".join("?" if dim.size < 0 else str(dim.size) for dim in shape.dim)
    dims = "…" if shape.unknown_rank else sizes
    kind = "" if _is_dense(tensor) else "composite "
    return f"{kind}{data_type_name(tensor.dtype).removeprefix('DT_').lower()}[{dims}]"

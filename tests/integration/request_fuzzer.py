"""Mutates PredictRequests, repeatably from a seed."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.base.protos import predict_pb2, tensor_pb2, types_pb2
from tests.integration.clients import predict_request

# Sizes of a dimension that break a careless product, and some that are merely wrong. Sizes between
# 2^16 and 2^33 are left out: their tensors are legal, and a run would take gigabytes.
_SIZES = (-(2**63), -2, -1, 0, 1, 2, 3, 7, 2**16, 2**33, 2**40, 2**62, 2**63 - 1)
_NAMES = ("", "x", "dense", "ids", "DENSE", "x" * 300, "a\x00b", "Größe")
_VALUE_FIELDS = (
    *("float_val", "double_val", "int_val", "int64_val", "bool_val", "uint32_val", "uint64_val"),
    *("half_val", "scomplex_val", "dcomplex_val"),
)


@dataclass(frozen=True)
class Mutant:
    """A changed request. `number` and `kind` identify it in the message of a failing test."""

    number: int
    kind: str
    message: bytes


def originals() -> list[predict_pb2.PredictRequest]:
    """Returns requests that the echo model answers."""
    random_numbers = np.random.default_rng(4)
    dense = random_numbers.normal(size=(5, 3)).astype(np.float32)
    ids = random_numbers.integers(0, 2**40, 7)
    filtered = predict_request("echo", {"dense": dense, "ids": ids}, version=7)
    filtered.output_filter.extend(["sum", "next"])
    typed = predict_request("echo", {}, signature_name="echo_int64")
    typed.inputs["x"].dtype = types_pb2.DT_INT64
    typed.inputs["x"].tensor_shape.dim.add(size=3)
    typed.inputs["x"].int64_val.extend([1, -1, 300])
    echoed: list[tuple[str, Any]] = [
        ("float32", dense),
        ("string", np.array([b"a", b"\x00b", "Größe".encode()], object)),
        ("complex64", np.array([1 + 2j, 3 - 4j], np.complex64)),
        ("float16", np.array([[1, 2], [3, 4]], np.float16)),
        ("bool", np.array([True, False, True])),
        ("uint8", np.arange(9, dtype=np.uint8)),
    ]
    return [
        predict_request("echo", {"dense": dense, "ids": ids}),
        filtered,
        typed,
        predict_request("echo", {"index": np.int32(2)}, signature_name="pick"),
        *(
            predict_request("echo", {"x": values}, signature_name=f"echo_{dtype}")
            for dtype, values in echoed
        ),
    ]


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    """Yields `count` mutants of `originals`: half with changed bytes, half with changed fields."""
    chance = random.Random(seed)
    requests = originals()
    serialized = [request.SerializeToString() for request in requests]
    for number in range(count):
        if number % 2:
            mutate_bytes = chance.choice(_BYTE_MUTATIONS)
            message = mutate_bytes(chance, serialized)
            yield Mutant(number, mutate_bytes.__name__, message)
        else:
            request = predict_pb2.PredictRequest()
            request.CopyFrom(chance.choice(requests))
            names = []
            for _ in range(chance.choice((1, 1, 2, 3))):
                mutate = chance.choice(_FIELD_MUTATIONS)
                mutate(chance, request)
                names.append(mutate.__name__)
            yield Mutant(number, "+".join(names), request.SerializeToString())


# --- Bytes ------------------------------------------------------------------------------------------


def _flip_bits(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    message = bytearray(chance.choice(messages))
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        message[chance.randrange(len(message))] ^= 1 << chance.randrange(8)
    return bytes(message)


def _set_bytes(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    message = bytearray(chance.choice(messages))
    for _ in range(chance.choice((1, 2, 4))):
        message[chance.randrange(len(message))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(message)


def _cut(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    message = chance.choice(messages)
    return message[: chance.randrange(len(message))]


def _remove(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    message = chance.choice(messages)
    start = chance.randrange(len(message))
    return message[:start] + message[start + chance.randrange(1, 20) :]


def _insert(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    message = chance.choice(messages)
    at = chance.randrange(len(message))
    return message[:at] + chance.randbytes(chance.randrange(1, 20)) + message[at:]


def _splice(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    head, tail = chance.choice(messages), chance.choice(messages)
    return head[: chance.randrange(len(head))] + tail[chance.randrange(len(tail)) :]


def _repeat(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    message = chance.choice(messages)
    start = chance.randrange(len(message))
    end = start + chance.randrange(1, 30)
    return message[:end] + message[start:end] * chance.randrange(1, 50) + message[end:]


def _concatenate(chance: random.Random, messages: Sequence[bytes]) -> bytes:
    # This is legal: protobuf merges messages that follow each other.
    return chance.choice(messages) + chance.choice(messages)


_BYTE_MUTATIONS: tuple[Callable[[random.Random, Sequence[bytes]], bytes], ...] = (
    *(_flip_bits, _flip_bits, _flip_bits, _set_bytes),
    *(_cut, _remove, _insert, _splice, _repeat, _concatenate),
)


# --- Fields -----------------------------------------------------------------------------------------


def _any_input(
    chance: random.Random, request: predict_pb2.PredictRequest
) -> tensor_pb2.TensorProto:
    # The order of a map differs between processes, so it is sorted.
    name = chance.choice(sorted(request.inputs) or ["x"])
    tensor: tensor_pb2.TensorProto = request.inputs[name]
    return tensor


def _change_dtype(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    _any_input(chance, request).dtype = chance.choice((-1, *range(32), 101, 119, 1000, 2**31 - 1))


def _change_size(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    shape = _any_input(chance, request).tensor_shape
    if shape.dim:
        chance.choice(shape.dim).size = chance.choice(_SIZES)


def _change_rank(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    shape = _any_input(chance, request).tensor_shape
    if chance.random() < 0.3:
        shape.ClearField("dim")
    for _ in range(chance.choice((0, 1, 3, 300))):
        shape.dim.add(size=chance.choice((0, 1, 1, 2)))
    shape.unknown_rank = chance.random() < 0.1


def _change_content(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    tensor = _any_input(chance, request)
    tensor.tensor_content = chance.randbytes(chance.choice((0, 1, 3, 4, 8, 60, 5_000)))


def _change_values(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    tensor = _any_input(chance, request)
    if chance.random() < 0.7:
        tensor.ClearField("tensor_content")
    field = getattr(tensor, chance.choice(_VALUE_FIELDS))
    field.extend(chance.choice((0, 1)) for _ in range(chance.choice((0, 1, 2, 3, 15, 1_000))))


def _add_odd_values(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    tensor = _any_input(chance, request)
    handle = tensor.resource_handle_val.add(name="x", device="/cpu:0", container="c")
    handle.dtypes_and_shapes.add(dtype=types_pb2.DT_FLOAT)
    tensor.variant_val.add(type_name="tensorflow::TensorList", metadata=chance.randbytes(9))
    tensor.string_val.append(chance.randbytes(20))
    tensor.float8_val = chance.randbytes(3)


def _rename_input(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    tensor = tensor_pb2.TensorProto()
    tensor.CopyFrom(_any_input(chance, request))
    if chance.random() < 0.7:
        request.ClearField("inputs")
    request.inputs[chance.choice(_NAMES)].CopyFrom(tensor)


def _change_model_spec(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    spec = request.model_spec
    choice = chance.randrange(4)
    if choice == 0:
        spec.name = chance.choice(_NAMES)
    elif choice == 1:
        spec.version.value = chance.choice(_SIZES)
    elif choice == 2:
        spec.version_label = chance.choice(_NAMES)
    else:
        spec.signature_name = chance.choice((*_NAMES, "fill", "pick", "echo_int8"))


def _change_filter(chance: random.Random, request: predict_pb2.PredictRequest) -> None:
    names = (*_NAMES, "sum", "next", "kind", "y")
    request.output_filter.extend(chance.choice(names) for _ in range(chance.choice((1, 2, 500))))


_FIELD_MUTATIONS: tuple[Callable[[random.Random, predict_pb2.PredictRequest], None], ...] = (
    *(_change_dtype, _change_size, _change_rank, _change_content, _change_values),
    *(_add_odd_values, _rename_input, _change_model_spec, _change_filter),
)

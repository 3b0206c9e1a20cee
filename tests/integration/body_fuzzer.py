"""Mutates JSON bodies of REST requests, repeatably from a seed."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREDICT = "/v1/models/echo:predict"
INFER = "/v2/models/echo/infer"

_SCALARS: Sequence[Any] = (
    *(None, True, False, 0, -1, 1.5, 1e308, -1e-320, 2**31, 2**63, -(2**63), 2**64, 10**40),
    *("", "x", "\x00", "Größe", "\ud800", {}, [], {"b64": "AA=="}, {"b64": "?"}, {"b64": 1}),
)
_KEYS = ("instances", "inputs", "signature_name", "x", "dense", "ids", "b64", "data", "shape", "")


@dataclass(frozen=True)
class Mutant:
    """A changed body. `number` and `kind` identify it in the message of a failing test."""

    number: int
    kind: str
    path: str
    body: bytes


def originals() -> Sequence[tuple[str, Any]]:
    """Returns paths and bodies that the echo model answers."""
    rows = [{"x": [1.5, -2, 3e-5 * n]} for n in range(3)]
    columns = {"dense": [[1, 2, 3], [4, 5, 6]], "ids": [7, 8]}
    echoed: Mapping[str, Any] = {
        "float32": [[0.1, 2e20], [3, 4]],
        "int8": [1, -128],
        "uint64": [2**64 - 1],
        "bool": [True, False],
        "string": ["a", {"b64": "AP8="}, "Größe"],
        "float64": [1e308, 5e-324],
    }
    tensors = [
        {"name": "dense", "datatype": "FP32", "shape": [2, 3], "data": [[1, 2, 3], [4, 5, 6]]},
        {"name": "ids", "datatype": "INT64", "shape": [2], "data": [7, 8]},
    ]
    return (
        (PREDICT, {"signature_name": "echo_float64", "instances": rows}),
        (PREDICT, {"inputs": columns}),
        *(
            (PREDICT, {"signature_name": f"echo_{dtype}", kind: values})
            for dtype, values in echoed.items()
            for kind in ("instances", "inputs")
        ),
        (INFER, {"id": "7", "inputs": tensors, "outputs": [{"name": "next"}]}),
    )


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    """Yields `count` mutants of `originals`: half with changed bytes, half with changed values."""
    chance = random.Random(seed)
    requests = originals()
    for number in range(count):
        path, document = chance.choice(requests)
        if number % 2:
            mutate = chance.choice(_BYTE_MUTATIONS)
            body = mutate(chance, json.dumps(document).encode())
            yield Mutant(number, mutate.__name__, path, body)
        else:
            for _ in range(chance.choice((1, 1, 2, 3))):
                document = _mutated(chance, document)
            body = json.dumps(document).encode(errors="surrogatepass")
            yield Mutant(number, "values", path, body)


def _mutated(chance: random.Random, value: Any) -> Any:
    """Returns a copy of `value` with one place changed."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = _mutated(chance, value[key])
        if isinstance(value, list):
            return [*value[:key], inner, *value[key + 1 :]]
        kept = dict(value)
        if chance.random() < 0.2:
            del kept[key]
            key = chance.choice(_KEYS)
        return {**kept, key: inner}
    if isinstance(value, (int, float)) and chance.random() < 0.5:
        # The model answers these bodies.
        return chance.choice((0, 1, 2, 100))
    return _replaced(chance, value)


def _replaced(chance: random.Random, value: Any) -> Any:
    change = chance.randrange(4)
    if change == 0 and isinstance(value, list):
        return [*value, *value[: chance.randrange(4)]]
    if change == 1 and isinstance(value, list):
        return value[: chance.randrange(len(value) + 1)]
    if change == 2:
        nested = value
        for _ in range(chance.choice((1, 1, 2, 300))):
            nested = [nested]
        return nested
    return chance.choice(_SCALARS)


def _flip_bits(chance: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 8))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(chance: random.Random, body: bytes) -> bytes:
    return body[: chance.randrange(len(body))]


def _insert(chance: random.Random, body: bytes) -> bytes:
    tokens = (b"NaN", b"-Infinity", b"Infinity", b",", b"[", b"]", b"{", b'"', b"\\u0000", b"\xff")
    at = chance.randrange(len(body) + 1)
    return body[:at] + chance.choice(tokens) * chance.choice((1, 1, 2, 500)) + body[at:]


def _repeat(chance: random.Random, body: bytes) -> bytes:
    start = chance.randrange(len(body))
    end = start + chance.randrange(1, 20)
    return body[:end] + body[start:end] * chance.randrange(1, 50) + body[end:]


def _replace_digit(chance: random.Random, body: bytes) -> bytes:
    digits = [at for at, byte in enumerate(body) if chr(byte).isdigit()] or [0]
    at = chance.choice(digits)
    token = chance.choice((b"1e400", b"-0", b"0x10", b"1_0", b"01", b"9" * 400, b"NaN", b".5"))
    return body[:at] + token + body[at + 1 :]


_BYTE_MUTATIONS: Sequence[Callable[[random.Random, bytes], bytes]] = (
    *(_flip_bits, _flip_bits, _cut, _insert, _repeat, _replace_digit),
)

"""Requests with inputs of random shapes: as in the signature, or any other with few elements."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_SIZES = (0, 1, 1, 2, 3, 4, 5, 8, 10, 17)
_ELEMENT_COUNT_MAX = 4_000
_RANK_MAX = 10


@dataclass(frozen=True)
class Input:
    """One input of a signature; a size of None is open."""

    name: str
    dtype: str
    dims: tuple[int | None, ...]


def random_shape(chance: random.Random, dims: Sequence[int | None]) -> tuple[int, ...]:
    """Returns `dims` with open sizes filled in, now and then changed, or a shape of any rank."""
    shape = [chance.choice((0, 1, 2, 3, 5)) if size is None else size for size in dims]
    kind = chance.random()
    if kind < 0.25:
        shape = [chance.choice(_SIZES) for _ in range(chance.randrange(_RANK_MAX + 1))]
    elif kind < 0.5 and shape:
        shape[chance.randrange(len(shape))] = chance.choice(_SIZES)
    elif kind < 0.6 and shape:
        del shape[chance.randrange(len(shape))]
    elif kind < 0.7:
        shape.insert(chance.randrange(len(shape) + 1), chance.choice(_SIZES))
    while np.prod(shape, dtype=np.int64) > _ELEMENT_COUNT_MAX:
        shape[shape.index(max(shape))] = 1
    return tuple(shape)


def random_array(chance: random.Random, dtype: str, shape: tuple[int, ...]) -> Any:
    """Returns values that kernels meet: small and large, negative, not a number, no Example."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == "string":
        words = [chance.choice((b"", b"a b", b"\xff", b"\x0a\x00")) for _ in range(count)]
        return np.array([*words, b"x"], object)[:count].reshape(shape)
    if dtype == "int64":
        numbers = (0, 1, 2, 3, 7, -1, 49, 50, 2**40, -(2**63))
        return np.array([chance.choice(numbers) for _ in range(count)], np.int64).reshape(shape)
    floats = (0.0, 1.0, -2.5, 1e30, float("inf"), float("nan"))
    return np.array([chance.choice(floats) for _ in range(count)], np.float32).reshape(shape)


def random_inputs(seed: int, inputs: Sequence[Input], count: int) -> Iterator[dict[str, Any]]:
    """Yields `count` sets of inputs, the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield {
            each.name: random_array(chance, each.dtype, random_shape(chance, each.dims))
            for each in inputs
        }

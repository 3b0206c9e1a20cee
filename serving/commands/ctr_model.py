"""Computes the weights, the requests and the right answers of the CTR model for the demo and measurements.

The model computes the probability of a click. It looks up 26 ids in embedding tables of `table_rows` × 16
float32 (500 MB for 300,000 rows), adds 13 dense features, and has layers of 256, 128 and 1.

Every weight is a function of version, tensor and position. So the right answer to a request can be computed
from the few rows of the tables that the request uses. `reference_answer` shares no code with the graph of
`serving.commands.ctr_export`, and needs neither TensorFlow nor the 500 MB.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.base.errors import FailedPrecondition

TABLE_COUNT = 26
EMBEDDING_SIZE = 16
DENSE_COUNT = 13
LAYER_SIZES = (256, 128, 1)
DEFAULT_TABLE_ROWS = 300_000

Array = npt.NDArray[Any]

# Tensors are numbered: the tables from 0 to 25, and then the matrix and the bias of each layer.
_FIRST_LAYER_TENSOR = TABLE_COUNT


def refuse_existing(version_directory: Path) -> None:
    """Raises FailedPrecondition if the version exists, because an exported version must never change."""
    if version_directory.exists():
        raise FailedPrecondition(
            f"{version_directory} is there already; remove it or choose another version"
        )


def table_weights(version: int, table: int, table_rows: int) -> Array:
    """One embedding table: float32[table_rows, 16], in [-1, 1)."""
    positions = np.arange(table_rows * EMBEDDING_SIZE, dtype=np.uint32)
    return _weights(version, table, positions).reshape(table_rows, EMBEDDING_SIZE)


def layer_weights(version: int, layer: int) -> tuple[Array, Array]:
    """The matrix float32[inputs, outputs] and the bias float32[outputs] of layer 0, 1 or 2."""
    input_sizes = (TABLE_COUNT * EMBEDDING_SIZE + DENSE_COUNT, *LAYER_SIZES)
    shape = (input_sizes[layer], LAYER_SIZES[layer])
    tensor = _FIRST_LAYER_TENSOR + 2 * layer
    # With this scale the variance of the activations stays the same from layer to layer.
    scale = np.float32(np.sqrt(3 / shape[0]))
    matrix = _weights(version, tensor, np.arange(shape[0] * shape[1], dtype=np.uint32))
    bias = _weights(version, tensor + 1, np.arange(shape[1], dtype=np.uint32))
    return np.multiply(matrix.reshape(shape), scale), bias


def request_inputs(seed: int, rows: int, table_rows: int = DEFAULT_TABLE_ROWS) -> dict[str, Array]:
    """The inputs of one random request: `dense` float32[rows, 13] and `sparse` int64[rows, 26]."""
    generator = np.random.default_rng(seed)
    return {
        "dense": generator.standard_normal((rows, DENSE_COUNT), np.float32),
        "sparse": generator.integers(0, table_rows, (rows, TABLE_COUNT), np.int64),
    }


def reference_answer(version: int, inputs: dict[str, Array], table_rows: int) -> Array:
    """The output `ctr` with which `version` must answer: float64[rows, 1]. Ids count modulo `table_rows`."""
    embeddings = [
        table_rows_of(version, table, inputs["sparse"][:, table], table_rows)
        for table in range(TABLE_COUNT)
    ]
    return answer_to_rows(version, embeddings, inputs["dense"])


def answer_to_rows(version: int, embeddings: Sequence[Array], dense: Array) -> Array:
    """The output `ctr` of the layers of `version`: float64[rows, 1].

    `embeddings` are the looked up rows of each table: float32[rows, 16].
    """
    activations = np.concatenate([*embeddings, dense], axis=1).astype(np.float64)
    for layer in range(len(LAYER_SIZES)):
        matrix, bias = layer_weights(version, layer)
        activations = activations @ matrix + bias
        if layer < len(LAYER_SIZES) - 1:
            activations = np.maximum(activations, 0)
    probability: Array = 1 / (1 + np.exp(-activations))
    return probability


def reference_answers(
    versions: Sequence[int], requests: Sequence[dict[str, Array]], table_rows: int
) -> dict[int, list[Array]]:
    """The right output `ctr` of each request, by version."""
    return {
        version: [reference_answer(version, inputs, table_rows) for inputs in requests]
        for version in versions
    }


def table_rows_of(version: int, table: int, ids: Array, table_rows: int) -> Array:
    """The rows of one table that have these ids: float32[len(ids), 16]."""
    rows = (ids % table_rows).astype(np.uint32)
    positions = rows[:, np.newaxis] * np.uint32(EMBEDDING_SIZE)
    return _weights(version, table, positions + np.arange(EMBEDDING_SIZE, dtype=np.uint32))


def _weights(version: int, tensor: int, positions: Array) -> Array:
    """The float32 weights in [-1, 1) at `positions` (uint32) of one tensor of one version."""
    seed = _mixed(np.array([(version * 1_000 + tensor) % 2**32], np.uint32))
    mixed = _mixed(positions * np.uint32(0x9E3779B1) + seed)
    # 24 bits fit a float32 exactly, so the weights are the same on every machine.
    weights: Array = (mixed >> np.uint32(8)).astype(np.float32)
    weights *= np.float32(2**-23)
    weights -= np.float32(1)
    return weights


def _mixed(values: Array) -> Array:
    """Mixes uint32 values by the finalizer of MurmurHash3: each bit influences all other bits."""
    values = values ^ (values >> np.uint32(16))
    values *= np.uint32(0x85EBCA6B)
    values ^= values >> np.uint32(13)
    values *= np.uint32(0xC2B2AE35)
    values ^= values >> np.uint32(16)
    return values

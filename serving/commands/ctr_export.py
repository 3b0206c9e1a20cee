"""Exports the CTR model as a SavedModel. Importing this module imports TensorFlow (5 s)."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from serving.base.errors import from_status
from serving.base.protos import prediction_log_pb2
from serving.commands.ctr_model import (
    DEFAULT_TABLE_ROWS,
    DENSE_COUNT,
    LAYER_SIZES,
    TABLE_COUNT,
    layer_weights,
    refuse_existing,
    request_inputs,
    table_weights,
)
from serving.commands.ctr_request import predict_request
from warmup.records import write_records
from warmup.replay import WARM_UP_FILE

Progress = Callable[[str, int, int], None]
"""Gets the name of the present step, the number of steps that are done, and the number of all steps."""

# The rows of each warm-up request: one row, a client's typical batch, and the batch of the measurements.
_WARM_UP_ROWS = (1, 10, 100)
_STEP_COUNT = TABLE_COUNT + 2


def export_ctr_model(
    directory: Path,
    version: int,
    *,
    table_rows: int = DEFAULT_TABLE_ROWS,
    with_warm_up: bool = True,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Exports `version` as `directory/version`, and returns that path.

    Writes the files to another directory and then renames it, so that a server that polls `directory` never
    sees a part of the version. Raises FailedPrecondition if the version exists already, and OSError or
    another MillpondError if it cannot be written.
    """
    target = directory / str(version)
    refuse_existing(target)
    # Servers ignore this directory, because its name is not a number.
    partial = directory / f".{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        module = ctr_module(version, table_rows, progress)
        progress("writing the SavedModel", TABLE_COUNT, _STEP_COUNT)
        _save(module, partial, version, table_rows)
        if with_warm_up:
            progress("writing warm-up records", TABLE_COUNT + 1, _STEP_COUNT)
            write_ctr_warm_up(partial, directory.name, table_rows)
        partial.rename(target)
    except tf.errors.OpError as error:
        raise from_status(error.error_code, f"{target}: {error.message}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress("done", _STEP_COUNT, _STEP_COUNT)
    return target


def ctr_module(
    version: int, table_rows: int, progress: Progress = lambda what, done, total: None
) -> Any:
    """Makes a tf.Module with the weights of `version`.

    Its `tables` are 26 variables, its `layers` 3 pairs of a matrix and a bias.
    """
    module = tf.Module()
    module.tables = []
    for table in range(TABLE_COUNT):
        progress("filling embedding tables", table, _STEP_COUNT)
        weights = table_weights(version, table, table_rows)
        module.tables.append(tf.Variable(weights, name=f"table_{table}"))
    module.layers = [
        [tf.Variable(weights) for weights in layer_weights(version, layer)]
        for layer in range(len(LAYER_SIZES))
    ]
    return module


def _save(module: Any, path: Path, version: int, table_rows: int) -> None:
    signature = ctr_signature(module, version, table_rows)
    tf.saved_model.save(module, str(path), signatures={"serving_default": signature})


def ctr_signature(module: Any, version: int, table_rows: int) -> Any:
    """The tf.function that answers by a module of `ctr_module`, and says `version` for each row."""

    def predict(dense: Any, sparse: Any) -> dict[str, Any]:
        # Clients make ids by hashing, so an id may be beyond this table's rows. Its remainder is a valid row.
        ids = tf.math.floormod(sparse, table_rows)
        # `unstack` separates all columns by one op. A slice for each column would be 26 ops, which would cost
        # more than the rest of the graph.
        columns = tf.unstack(ids, num=TABLE_COUNT, axis=1)
        embeddings = [
            tf.gather(table, column) for table, column in zip(module.tables, columns, strict=True)
        ]
        logits = _layers(module.layers, tf.concat([*embeddings, dense], axis=1))
        # The version is answered once for each row, because a server that batches requests splits every output
        # by rows.
        versions = tf.fill([tf.shape(dense)[0]], tf.constant(version, tf.int64))
        return {"ctr": tf.sigmoid(logits), "version": versions}

    return tf.function(
        predict,
        input_signature=[
            tf.TensorSpec([None, DENSE_COUNT], tf.float32, name="dense"),
            tf.TensorSpec([None, TABLE_COUNT], tf.int64, name="sparse"),
        ],
    )


def _layers(layers: Sequence[Any], activations: Any) -> Any:
    for matrix, bias in layers[:-1]:
        activations = tf.nn.relu(tf.matmul(activations, matrix) + bias)
    matrix, bias = layers[-1]
    return tf.matmul(activations, matrix) + bias


def write_ctr_warm_up(path: Path, model_name: str, table_rows: int) -> None:
    records = []
    for rows in _WARM_UP_ROWS:
        log = prediction_log_pb2.PredictionLog()
        request = predict_request(model_name, request_inputs(rows, rows, table_rows))
        log.predict_log.request.CopyFrom(request)
        records.append(log.SerializeToString())
    (path / WARM_UP_FILE).parent.mkdir()
    write_records(path / WARM_UP_FILE, records)

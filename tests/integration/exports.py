"""The models of the integration tests, exported by TensorFlow.

The first call of one of these functions imports TensorFlow (5 s); collecting the tests does not.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.drive.life_slow_model import compute_for
from serving.base.protos import predict_pb2, prediction_log_pb2
from serving.base.tensor_proto import to_tensor_proto
from warmup.records import write_records
from warmup.replay import WARM_UP_FILE

# Every dtype with its own field of plain values in TensorProto.
ECHO_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("qint8", "quint8", "qint16", "quint16", "qint32"),
    *("bool", "string", "complex64", "complex128"),
)

# The variables of a version that `ScaleModel` writes: its scale, and its offsets.
SMALL_SHARD = "variables/variables.data-00000-of-00002"
LARGE_SHARD = "variables/variables.data-00001-of-00002"

_LONG_AGO_NS = 1_600_000_000 * 10**9

RequestInputs = dict[str, Any]


def let_settle(directory: Path) -> Path:
    """Makes all files of a version old, so that a server takes it without watching it for a second."""
    for root, _, names in os.walk(directory, topdown=False):
        for path in [Path(root), *(Path(root, name) for name in names)]:
            os.utime(path, ns=(_LONG_AGO_NS, _LONG_AGO_NS))
    return directory


def drop(source: Path, base_path: Path, version: int | str) -> Path:
    """Copies an export to `base_path/version` as a careful person does: beside it first, then by a
    rename.
    """
    beside = base_path / f".{version}.partial"
    shutil.copytree(source, beside)
    return let_settle(beside).rename(base_path / str(version))


def flip_a_byte(path: Path, offset: int) -> None:
    """Inverts one byte of a file; a negative offset counts from its end."""
    damaged = bytearray(path.read_bytes())
    damaged[offset] ^= 0xFF
    path.write_bytes(damaged)


def write_warm_up(
    version_directory: Path, name: str, inputs: Iterable[RequestInputs], signature_name: str = ""
) -> None:
    """Gives a version a warm-up file with one record for each of `inputs`."""
    records = []
    for arrays in inputs:
        log = prediction_log_pb2.PredictionLog()
        request = predict_pb2.PredictRequest()
        request.model_spec.name = name
        request.model_spec.signature_name = signature_name
        for input_name, array in arrays.items():
            request.inputs[input_name].CopyFrom(to_tensor_proto(array))
        log.predict_log.request.CopyFrom(request)
        records.append(log.SerializeToString())
    path = version_directory / WARM_UP_FILE
    path.parent.mkdir(exist_ok=True)
    write_records(path, records)


def export_echo(directory: Path) -> Path:
    """Exports a model without variables that returns its input, so that a test sees what arrived.

    `echo_DTYPE`: `x` of any shape to `y`. `serving_default`: `dense` float32[?,3] and `ids`
    int64[?] to `sum`, `next` and the constant `kind`. `fill`: `count` to that many ones. `pick`:
    the element `index` of [10, 20, 30]; any other index fails during the run.
    """
    import tensorflow as tf

    def serving_default(dense: Any, ids: Any) -> RequestInputs:
        return {
            "sum": tf.reduce_sum(dense, axis=1),
            "next": ids + 1,
            "kind": tf.constant(b"echo"),
        }

    def fill(count: Any) -> RequestInputs:
        return {"ones": tf.ones([count], tf.float32)}

    def pick(index: Any) -> RequestInputs:
        return {"value": tf.gather(tf.constant([10, 20, 30]), index)}

    signatures = {
        "serving_default": _signature(
            serving_default,
            dense=tf.TensorSpec([None, 3], tf.float32),
            ids=tf.TensorSpec([None], tf.int64),
        ),
        "fill": _signature(fill, count=tf.TensorSpec([], tf.int32)),
        "pick": _signature(pick, index=tf.TensorSpec([], tf.int32)),
        **{f"echo_{dtype}": _echo(dtype) for dtype in ECHO_DTYPES},
    }
    tf.saved_model.save(tf.Module(), str(directory), signatures=signatures)
    return let_settle(directory)


def export_slow(directory: Path) -> Path:
    """Exports a model that computes for a given time, whatever the machine's speed.

    `serving_default` is the load tests' `compute_for`. `held` computes until a file is at `path`. `quick`
    maps `x` to `x + 1`.
    """
    import tensorflow as tf

    def quick(x: Any) -> RequestInputs:
        return {"y": x + 1}

    signatures = {
        "serving_default": _signature(compute_for, seconds=tf.TensorSpec([], tf.float64)),
        "held": _held(),
        "quick": _signature(quick, x=tf.TensorSpec([], tf.int32)),
    }
    tf.saved_model.save(tf.Module(), str(directory), signatures=signatures)
    return let_settle(directory)


# 5,000 bytes exceed the 22 bytes that a string holds in itself by far, and some words are empty.
def table_word(number: int) -> bytes:
    """Returns the word of that number in the models below: 0 to 5,000 bytes."""
    return b"" if number == 0 else b"%d-" % number * (number * 1_250 // TABLE_WORD_COUNT)


TABLE_WORD_COUNT = 1_000
PARTITIONED_ROWS = 1_000
CONSTANT_COUNT = 1_000_000


def export_tables(directory: Path) -> Path:
    """Exports a model of three hash tables, filled from an asset, from constants, and from the
    checkpoint.

    `words` to `id` (its line in the asset, -1 if it is unknown), `name` (of the id, "?" for -1) and
    `count` (1,000 times the id, from a mutable table that was saved with these contents).
    """
    import tensorflow as tf

    lines = [b"word-%d" % number for number in range(TABLE_WORD_COUNT)]
    vocabulary = directory.with_suffix(".txt")
    vocabulary.write_bytes(b"\n".join(lines) + b"\n")
    numbers = np.arange(TABLE_WORD_COUNT)
    module = tf.Module()
    module.ids = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            *(str(vocabulary), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE),
            *(tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER),
        ),
        -1,
    )
    module.names = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            tf.constant(numbers, tf.int64),
            tf.constant([table_word(n) for n in range(TABLE_WORD_COUNT)]),
        ),
        "?",
    )
    module.counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    module.counts.insert(tf.constant(lines), tf.constant(numbers * 1_000, tf.int64))

    def serving_default(words: Any) -> RequestInputs:
        ids = module.ids.lookup(words)
        return {
            "id": ids,
            "name": module.names.lookup(ids),
            "count": module.counts.lookup(words),
        }

    signature = _signature(serving_default, words=tf.TensorSpec([None], tf.string))
    tf.saved_model.save(module, str(directory), signatures={"serving_default": signature})
    return let_settle(directory)


def export_strings(directory: Path) -> Path:
    """Exports a model with a variable of strings: `ids` to `words`, those of `table_word`, and
    `all` of them.
    """
    import tensorflow as tf

    module = tf.Module()
    module.words = tf.Variable([table_word(number) for number in range(TABLE_WORD_COUNT)])

    def serving_default(ids: Any) -> RequestInputs:
        return {"words": tf.gather(module.words, ids), "all": module.words.read_value()}

    signature = _signature(serving_default, ids=tf.TensorSpec([None], tf.int64))
    tf.saved_model.save(module, str(directory), signatures={"serving_default": signature})
    return let_settle(directory)


def export_constant(directory: Path) -> Path:
    """Exports a model without variables and with a frozen constant of 4 MB: `ids` to `squares`, and
    `all`.
    """
    import tensorflow as tf

    squares = np.arange(CONSTANT_COUNT, dtype=np.float32) ** 2

    def serving_default(ids: Any) -> RequestInputs:
        table = tf.constant(squares)
        return {"squares": tf.gather(table, ids), "all": table}

    signature = _signature(serving_default, ids=tf.TensorSpec([None], tf.int64))
    tf.saved_model.save(tf.Module(), str(directory), signatures={"serving_default": signature})
    return let_settle(directory)


def export_counter(directory: Path) -> Path:
    """Exports a model that writes to its variables: it adds `by` to each of a million and returns
    the `sum`.
    """
    import tensorflow as tf

    module = tf.Module()
    module.counts = tf.Variable(tf.zeros([1_000_000], tf.int64))

    def serving_default(by: Any) -> RequestInputs:
        return {"sum": tf.reduce_sum(module.counts.assign_add(tf.fill([1_000_000], by)))}

    signature = _signature(serving_default, by=tf.TensorSpec([], tf.int64))
    tf.saved_model.save(module, str(directory), signatures={"serving_default": signature})
    return let_settle(directory)


def export_remembering(directory: Path) -> Path:
    """Exports a model that writes to a table: it counts each `word`, and returns the `count`."""
    import tensorflow as tf

    module = tf.Module()
    module.words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0)

    def serving_default(word: Any) -> RequestInputs:
        count = module.words.lookup(word) + 1
        with tf.control_dependencies([module.words.insert(word, count)]):
            return {"count": tf.identity(count)}

    signature = _signature(serving_default, word=tf.TensorSpec([None], tf.string))
    tf.saved_model.save(module, str(directory), signatures={"serving_default": signature})
    return let_settle(directory)


def export_partitioned(directory: Path, part_count: int, saved_part_count: int) -> Path:
    """Exports a TensorFlow 1 model with two partitioned tables: `ids` to their `rows` and
    `resource_rows`.

    Row n of both is [n, n + 0.25, n + 0.5, n + 0.75]. A graph of `saved_part_count` parts wrote the
    checkpoint. If that count differs from the graph's own, a part is restored from several slices.
    """
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tables = _partitioned_tables(session, part_count)
        ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
        rows = [tf.nn.embedding_lookup(table, ids) for table in tables]
        tf.compat.v1.saved_model.simple_save(
            session,
            str(directory),
            inputs={"ids": ids},
            outputs={"rows": rows[0], "resource_rows": rows[1]},
        )
    shutil.rmtree(directory / "variables")
    (directory / "variables").mkdir()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        _partitioned_tables(session, saved_part_count)
        saver = tf.compat.v1.train.Saver()
        saver.save(session, str(directory / "variables" / "variables"), write_meta_graph=False)
    return let_settle(directory)


def _partitioned_tables(session: Any, part_count: int) -> list[Any]:
    import tensorflow as tf

    tables = [
        tf.compat.v1.get_variable(
            name,
            [PARTITIONED_ROWS, 4],
            initializer=tf.compat.v1.zeros_initializer(),
            partitioner=tf.compat.v1.fixed_size_partitioner(part_count),
            use_resource=name == "resource_table",
        )
        for name in ("table", "resource_table")
    ]
    session.run(tf.compat.v1.global_variables_initializer())
    for table in tables:
        first_row = 0
        for part in table:
            row_count = part.shape[0]
            part.load(partitioned_rows(np.arange(first_row, first_row + row_count)), session)
            first_row += row_count
    return tables


def partitioned_rows(ids: Any) -> Any:
    """Returns the expected answer of a model of `export_partitioned`."""
    return (np.asarray(ids)[:, np.newaxis] + np.arange(4) / 4).astype(np.float32)


class ScaleModel:
    """Versions of one graph that differ in their variables: `y = x * scale + offsets[0]`.

    Both variables are the version's number, so that each answer identifies the parameters that it
    was computed with. `weights` returns `offsets`, the variable itself. The graph is exported once;
    a version then takes a few milliseconds to write a checkpoint.

    With `has_rows` it has a signature `rows` too, which returns only `y`, so that its requests can be
    batched. With `has_held` it has `held`, which computes until a file is at `path`: a warm-up record of it
    holds up the load of a version.
    """

    def __init__(self, directory: Path, *, has_rows: bool = False, has_held: bool = False) -> None:
        import tensorflow as tf

        self._directory = directory
        module = tf.Module()
        module.scale = tf.Variable(0.0, shape=[])
        module.offsets = tf.Variable(np.zeros(1, np.float32), shape=[None])

        def serving_default(x: Any) -> RequestInputs:
            return {
                "y": x * module.scale + module.offsets[0],
                "version": tf.cast(module.scale, tf.int64),
            }

        def weights() -> RequestInputs:
            return {"offsets": module.offsets.read_value()}

        signatures = {
            "serving_default": _signature(serving_default, x=tf.TensorSpec([None], tf.float32)),
            "weights": _signature(weights),
        }
        if has_rows:
            signatures["rows"] = _signature(
                lambda x: {"y": x * module.scale + module.offsets[0]},
                x=tf.TensorSpec([None], tf.float32),
            )
        if has_held:
            signatures["held"] = _held()
        tf.saved_model.save(module, str(directory), signatures=signatures)
        reader = tf.train.load_checkpoint(str(directory / "variables" / "variables"))
        self._tensors = {
            name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
        }
        (self._offsets_name,) = (name for name in self._tensors if name.startswith("offsets"))
        (self._scale_name,) = (name for name in self._tensors if name.startswith("scale"))

    @staticmethod
    def answer(version: int, x: Any) -> Any:
        """Returns the expected answer of the version to `x`."""
        return np.asarray(x, np.float32) * np.float32(version) + np.float32(version)

    def write(
        self,
        base_path: Path,
        version: int,
        *,
        offset_count: int = 1,
        prepare: Callable[[Path], object] = lambda directory: None,
    ) -> Path:
        """Writes `base_path/version`, renamed into place after `prepare` has changed it.

        Its variables lie in two shards; `offset_count` is the number of float32 values in them.
        """
        beside = base_path / f".{version}.partial"
        (beside / "variables").mkdir(parents=True)
        shutil.copy(self._directory / "saved_model.pb", beside)
        self._write_variables(beside, version, offset_count)
        prepare(beside)
        return let_settle(beside).rename(base_path / str(version))

    def _write_variables(self, directory: Path, version: int, offset_count: int) -> None:
        import tensorflow as tf

        tensors = dict(self._tensors)
        tensors[self._scale_name] = np.float32(version)
        tensors[self._offsets_name] = np.full(offset_count, version, np.float32)
        large = {self._offsets_name: tensors.pop(self._offsets_name)}
        prefixes = [str(directory / f"shard-{shard}") for shard in range(2)]
        for prefix, part in zip(prefixes, (tensors, large), strict=True):
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=list(part),
                shape_and_slices=[""] * len(part),
                tensors=[tf.convert_to_tensor(value) for value in part.values()],
            )
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes,
            destination_prefix=str(directory / "variables" / "variables"),
        )


def _signature(function: Callable[..., RequestInputs], **inputs: Any) -> Any:
    import tensorflow as tf

    return tf.function(function).get_concrete_function(
        **{name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in inputs.items()}
    )


def _held() -> Any:
    """The signature of requests that run until a file is at `path`."""
    import tensorflow as tf

    def held(path: Any) -> RequestInputs:
        (rounds,) = tf.while_loop(
            lambda rounds: tf.equal(tf.size(tf.io.matching_files(path)), 0),
            lambda rounds: (rounds + 1,),
            (tf.constant(0, tf.int64),),
        )
        return {"rounds": rounds}

    return _signature(held, path=tf.TensorSpec([], tf.string))


def _echo(dtype: str) -> Any:
    import tensorflow as tf

    def echo(x: Any) -> RequestInputs:
        return {"y": tf.identity(x)}

    return _signature(echo, x=tf.TensorSpec(None, tf.dtypes.as_dtype(dtype)))

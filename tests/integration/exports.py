"""The models of the integration tests, exported by TensorFlow.

TensorFlow is imported (5 s) when the first of these is called, not when a test is collected.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from serving.protos import predict_pb2, prediction_log_pb2
from serving.tensor_proto import to_tensor_proto
from warmup.records import write_records
from warmup.replay import WARM_UP_FILE

# Every dtype that a TensorProto carries in a field of plain values.
ECHO_DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("qint8", "quint8", "qint16", "quint16", "qint32"),
    *("bool", "string", "complex64", "complex128"),
)

_LONG_AGO_NS = 1_600_000_000 * 10**9

RequestInputs = dict[str, Any]


def let_settle(directory: Path) -> Path:
    """Makes all files of a version old, so that a server takes it without watching it for a second."""
    for root, _, names in os.walk(directory, topdown=False):
        for path in [Path(root), *(Path(root, name) for name in names)]:
            os.utime(path, ns=(_LONG_AGO_NS, _LONG_AGO_NS))
    return directory


def drop(source: Path, base_path: Path, version: int | str) -> Path:
    """Copies an export to `base_path/version` as a careful person does: beside it, then renamed."""
    beside = base_path / f".{version}.partial"
    shutil.copytree(source, beside)
    return let_settle(beside).rename(base_path / str(version))


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
    """A model without variables that gives back what it is sent, so that a test sees what arrived.

    `echo_DTYPE`: `x` of any shape to `y`. `serving_default`: `dense` float32[?,3] and `ids`
    int64[?] to `sum`, `next` and the constant `kind`. `fill`: `count` to that many ones. `pick`:
    the element `index` of [10, 20, 30], which fails while it runs for any other index.
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
    """A model that computes for as long as it is told, whatever the machine's speed.

    `serving_default`: `seconds` float64[] to `rounds`, the turns of a while loop of small kernels
    until the clock says so. `quick`: `x` to `x + 1`.
    """
    import tensorflow as tf

    def serving_default(seconds: Any) -> RequestInputs:
        end = tf.timestamp() + seconds
        matrix = tf.eye(16)
        rounds, _ = tf.while_loop(
            lambda rounds, value: tf.timestamp() < end,
            lambda rounds, value: (rounds + 1, tf.matmul(value, matrix)),
            (tf.constant(0, tf.int64), matrix),
        )
        return {"rounds": rounds}

    def quick(x: Any) -> RequestInputs:
        return {"y": x + 1}

    signatures = {
        "serving_default": _signature(serving_default, seconds=tf.TensorSpec([], tf.float64)),
        "quick": _signature(quick, x=tf.TensorSpec([], tf.int32)),
    }
    tf.saved_model.save(tf.Module(), str(directory), signatures=signatures)
    return let_settle(directory)


class ScaleModel:
    """Versions of one graph that differ in their variables: `y = x * scale + offsets[0]`.

    Both variables are the version's number, so that each answer tells whose parameters it was
    computed with. Exported once; a version is then a few milliseconds of writing a checkpoint.
    """

    def __init__(self, directory: Path) -> None:
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

        signatures = {
            "serving_default": _signature(serving_default, x=tf.TensorSpec([None], tf.float32))
        }
        tf.saved_model.save(module, str(directory), signatures=signatures)
        reader = tf.train.load_checkpoint(str(directory / "variables" / "variables"))
        self._tensors = {
            name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
        }
        (self._offsets_name,) = (name for name in self._tensors if name.startswith("offsets"))
        (self._scale_name,) = (name for name in self._tensors if name.startswith("scale"))

    @staticmethod
    def answer(version: int, x: Any) -> Any:
        """What the version says to `x`."""
        return np.asarray(x, np.float32) * np.float32(version) + np.float32(version)

    def write(
        self,
        base_path: Path,
        version: int,
        *,
        offset_count: int = 1,
        prepare: Callable[[Path], object] = lambda directory: None,
    ) -> Path:
        """Writes `base_path/version`, renamed into place once `prepare` has had its way with it.

        Its variables lie in two shards; `offset_count` float32 are their size.
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


def _echo(dtype: str) -> Any:
    import tensorflow as tf

    def echo(x: Any) -> RequestInputs:
        return {"y": tf.identity(x)}

    return _signature(echo, x=tf.TensorSpec(None, tf.dtypes.as_dtype(dtype)))

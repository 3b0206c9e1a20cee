"""SavedModels that TensorFlow writes and that a server cannot take at face value."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from serving.base.protos import saved_model_pb2
from serving.base.signatures import INIT_OP_SIGNATURE
from serving.base.tensor_proto import to_tensor_proto
from tests.integration.exports import let_settle

Outputs = dict[str, Any]


def save(
    directory: Path,
    module: Any,
    signatures: Mapping[str, Any],
    *,
    x: Any = None,
    settle: bool = True,
) -> Path:
    """Saves functions of `x`, float32[?] unless it is another spec, as signatures of their names."""
    import tensorflow as tf

    spec = tf.TensorSpec([None], tf.float32, "x") if x is None else x
    functions = {
        name: tf.function(function).get_concrete_function(x=spec)
        for name, function in signatures.items()
    }
    tf.saved_model.save(module, str(directory), signatures=functions)
    return let_settle(directory) if settle else directory


def _python(x: Any) -> Any:
    import tensorflow as tf

    return tf.ensure_shape(tf.py_function(lambda x: x * 2, [x], tf.float32), [None])


def _numpy(x: Any) -> Any:
    import tensorflow as tf

    return tf.numpy_function(lambda x: x * 2, [x], tf.float32)


def _stateless_numpy(x: Any) -> Any:
    import tensorflow as tf

    return tf.numpy_function(lambda x: x * 2, [x], tf.float32, stateful=False)


def _cudnn(x: Any) -> Any:
    import tensorflow as tf

    rnn = tf.raw_ops.CudnnRNNV3(
        input=tf.reshape(x, [-1, 1, 1]),
        input_h=tf.zeros([1, 1, 1]),
        input_c=tf.zeros([1, 1, 1]),
        params=tf.zeros([16]),
        sequence_lengths=tf.ones([1], tf.int32),
        is_training=False,
    )
    return tf.reshape(rnn[0], [-1])


def _nccl(x: Any) -> Any:
    import tensorflow as tf

    return tf.raw_ops.NcclAllReduce(input=x, reduction="sum", num_devices=1, shared_name="all")


WITHOUT_KERNEL: Mapping[str, Callable[[Any], Any]] = {
    "EagerPyFunc": _python,
    "PyFunc": _numpy,
    "PyFuncStateless": _stateless_numpy,
    "CudnnRNNV3": _cudnn,
    "NcclAllReduce": _nccl,
}
"""Functions of float32[?] with an op that the CPU does not compute outside of Python, by its name."""


def export_doubling(directory: Path, name: str = "serving_default") -> Path:
    """Exports `y = 2 * x`."""
    import tensorflow as tf

    return save(directory, tf.Module(), {name: lambda x: {"y": x * 2}})


def export_without_kernel(
    directory: Path, op: str, *, nested: bool = False, name: str = "serving_default"
) -> Path:
    """Exports `y` of the op; `nested`: in a function that TensorFlow does not inline.

    With another `name`, `serving_default` is sound.
    """
    import tensorflow as tf

    function = WITHOUT_KERNEL[op]
    inner = tf.function(function, experimental_attributes={"_noinline": True})
    module = tf.Module()
    signatures = {name: lambda x: {"y": (inner if nested else function)(x)}}
    if name != "serving_default":
        signatures["serving_default"] = lambda x: {"y": x * 2}
    return save(directory, module, signatures)


def export_branch(
    directory: Path, op: str, *, is_dead: bool = False, is_lowered: bool = True
) -> Path:
    """Exports `y = 2 * x`, but of the op if an x is above 1000; never, if it `is_dead`.

    TensorFlow runs both branches in one graph unless `is_lowered` is False.
    """
    import tensorflow as tf

    def serving_default(x: Any) -> Outputs:
        uses_op = tf.constant(False) if is_dead else tf.reduce_any(x > 1000)
        return {"y": tf.cond(uses_op, lambda: WITHOUT_KERNEL[op](x), lambda: x * 2)}

    save(directory, tf.Module(), {"serving_default": serving_default})
    path = directory / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for function in model.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op in ("If", "StatelessIf"):
                node.attr["_lower_using_switch_merge"].b = is_lowered
    path.write_bytes(model.SerializeToString())
    return let_settle(directory)


def export_unfilled_table(directory: Path) -> Path:
    """Exports a look-up in a table, and no init op, as exporters that forget it do."""
    import tensorflow as tf

    module = tf.Module()
    keys, values = tf.constant([1], tf.int64), tf.constant([2.0])
    initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
    module.table = tf.lookup.StaticHashTable(initializer, -1.0)
    save(directory, module, {"serving_default": lambda x: {"y": _look_up(module.table, x)}})
    path = directory / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    del model.meta_graphs[0].signature_def[INIT_OP_SIGNATURE]
    model.meta_graphs[0].collection_def.clear()
    path.write_bytes(model.SerializeToString())
    return let_settle(directory)


def export_asset_named_twice(directory: Path) -> Path:
    """Exports `y = x + 1` with TensorFlow 1; 1 is the line of "b" in a file that the collection of
    assets lists twice.
    """
    import tensorflow as tf

    words = directory.with_name("words.txt")
    words.write_text("a\nb\n")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], "x")
        path = tf.constant(str(words))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, path)
        # The initializer lists its file a second time.
        initializer = tf.lookup.TextFileInitializer(
            path,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        line = tf.lookup.StaticHashTable(initializer, -1).lookup(tf.constant("b"))
        y = x + tf.cast(line, tf.float32)
        v1.saved_model.simple_save(
            session, str(directory), {"x": x}, {"y": y}, legacy_init_op=v1.tables_initializer()
        )
    return let_settle(directory)


def _look_up(table: Any, x: Any) -> Any:
    import tensorflow as tf

    return table.lookup(tf.cast(x, tf.int64))


def export_composites(directory: Path) -> Path:
    """Exports `serving_default` with the outputs `dense`, `ragged` and `sparse`, and `ragged` with
    only a ragged one.
    """
    import tensorflow as tf

    def ragged_of(x: Any) -> Any:
        return tf.RaggedTensor.from_row_lengths(x, tf.ones_like(x, tf.int64))

    def serving_default(x: Any) -> Outputs:
        sparse = tf.sparse.from_dense(tf.stack([x, x]))
        return {"dense": x * 2, "ragged": ragged_of(x), "sparse": sparse}

    signatures = {"serving_default": serving_default, "ragged": lambda x: {"y": ragged_of(x)}}
    return save(directory, tf.Module(), signatures)


def set_defaults(directory: Path, **defaults: Any) -> Path:
    """Gives inputs of `serving_default` a default in the SignatureDef."""
    path = directory / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    signature = model.meta_graphs[0].signature_def["serving_default"]
    for name, value in defaults.items():
        signature.defaults[name].CopyFrom(to_tensor_proto(value))
    path.write_bytes(model.SerializeToString())
    return let_settle(directory)


def export_scaled(directory: Path, *, default: Any = None) -> Path:
    """Exports `y = x * scale`; `scale` is float32[...], with the default if it is not None."""
    import tensorflow as tf

    function = tf.function(lambda x, scale: {"y": x * scale}).get_concrete_function(
        x=tf.TensorSpec([None], tf.float32, "x"), scale=tf.TensorSpec(None, tf.float32, "scale")
    )
    tf.saved_model.save(tf.Module(), str(directory), signatures={"serving_default": function})
    if default is None:
        return let_settle(directory)
    return set_defaults(directory, scale=np.array(default, np.float32))

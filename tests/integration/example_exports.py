"""Models on serialized tf.Examples, exported by TensorFlow, and messages for them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from serving.base.protos import example_pb2, input_pb2
from tests.integration.exports import let_settle

WEIGHT_COUNT = 100_000

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
PREDICT = "tensorflow/serving/predict"


def export_examples(directory: Path) -> Path:
    """Exports a TensorFlow 1 model of the features `x` and `y` of an Example: floats, 0 if left
    out.

    `regress` is x * weight + y; `weight` is a variable of 400 kB that starts as 2.
    `serving_default` classifies: "low" with the score x, "high" with y. `labels` and `scores`
    return one of the two. `modern` is `serving_default` saved as by TensorFlow 2, `wide` a
    regression of two columns, and `elsewhere` a regression of another input. For SessionRun the
    node `set_weights` writes `new_weight` to the variable.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        examples = v1.placeholder(tf.string, [None], "examples")
        x, y = _features(examples)
        weights = v1.get_variable(
            "weights",
            [WEIGHT_COUNT],
            initializer=v1.constant_initializer(2.0),
            use_resource=True,
        )
        new_weight = v1.placeholder(tf.float32, [], "new_weight")
        with tf.control_dependencies([weights.assign(tf.fill([WEIGHT_COUNT], new_weight))]):
            tf.no_op("set_weights")
        value = tf.identity(x * tf.reduce_mean(weights) + y, "value")
        scores = tf.stack([x, y], axis=1)
        labels = tf.tile(tf.constant([["low", "high"]]), [tf.shape(x)[0], 1])
        other = v1.placeholder(tf.string, [None], "other_examples")
        both = {"classes": labels, "scores": scores}
        signatures = {
            "serving_default": _signature(examples, both, CLASSIFY),
            "labels": _signature(examples, {"classes": labels}, CLASSIFY),
            "scores": _signature(examples, {"scores": scores}, CLASSIFY),
            "modern": _signature(examples, both, PREDICT),
            "regress": _signature(examples, {"outputs": value}, REGRESS),
            "wide": _signature(examples, {"outputs": scores}, REGRESS),
            "elsewhere": _signature(other, {"outputs": _features(other)[0]}, REGRESS),
        }
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    return let_settle(directory)


def _features(examples: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    zero = tf.io.FixedLenFeature([], tf.float32, default_value=0.0)
    parsed = tf.io.parse_example(examples, {"x": zero, "y": zero})
    return parsed["x"], parsed["y"]


def _signature(examples: Any, outputs: Mapping[str, Any], method_name: str) -> Any:
    import tensorflow as tf

    info = tf.compat.v1.saved_model.build_tensor_info
    return tf.compat.v1.saved_model.build_signature_def(
        inputs={"inputs": info(examples)},
        outputs={name: info(tensor) for name, tensor in outputs.items()},
        method_name=method_name,
    )


def example(**features: float | bytes) -> example_pb2.Example:
    """Returns an Example with one value for each feature."""
    message = example_pb2.Example()
    for name, value in features.items():
        feature = message.features.feature[name]
        if isinstance(value, bytes):
            feature.bytes_list.value.append(value)
        else:
            feature.float_list.value.append(value)
    return message


def example_input(
    examples: Iterable[example_pb2.Example], context: example_pb2.Example | None = None
) -> input_pb2.Input:
    """Returns an Input; it holds an ExampleListWithContext if there is a context."""
    message = input_pb2.Input()
    if context is None:
        message.example_list.examples.extend(examples)
    else:
        message.example_list_with_context.examples.extend(examples)
        message.example_list_with_context.context.CopyFrom(context)
    return message


def regressed(x: float, y: float, weight: float = 2.0) -> float:
    """Returns the expected answer of `regress` to one example."""
    return float(np.float32(x) * np.float32(weight) + np.float32(y))

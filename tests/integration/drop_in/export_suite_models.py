"""Writes models like those of TensorFlow Serving's own end-to-end suite.

Run it as `python -m tests.integration.drop_in.export_suite_models DIRECTORY`, in a process of its own. The
TensorFlow 1 graphs stand for the old files in that suite's repository. All other models are new, as the
suite exports them when it runs.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.integration.drop_in.export_models import CLASSIFY, Outputs, _set_method_names
from tests.integration.exports import let_settle

VERSION = "00000123"
REGRESS = "tensorflow/serving/regress"
v1 = tf.compat.v1


def main(directory: Path) -> None:
    """Writes one directory for each model.

    The number of devices must be set before TensorFlow starts.
    """
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    _graph(directory / "half_plus_two" / VERSION, 2.0)
    _graph(directory / "half_plus_three" / VERSION, 3.0)
    _graph(directory / "lost_asset" / VERSION, 2.0)
    shutil.rmtree(directory / "lost_asset" / VERSION / "assets")
    let_settle(directory / "lost_asset" / VERSION)
    _functions(directory / "half_plus_two_tf2" / VERSION)
    _checkpoint(directory / "checkpoint" / VERSION)
    _constants(directory / "constants" / VERSION)
    _mirrored(directory / "mirrored" / VERSION)
    _keras(directory / "keras" / VERSION)
    _texts(directory / "texts" / "01")


def _features(examples: Any) -> dict[str, Any]:
    zero = tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0])
    parsed: dict[str, Any] = tf.io.parse_example(examples, {"x": zero, "x2": zero})
    return parsed


def _graph(directory: Path, offset: float) -> None:
    """Writes a TensorFlow 1 graph with an asset file; its `x` is a parsed feature of any shape."""
    with tf.Graph().as_default(), v1.Session() as session:
        a, b, c = (
            v1.get_variable(name, initializer=value)
            for name, value in (("a", 0.5), ("b", offset), ("c", 3.0))
        )
        examples = v1.placeholder(tf.string, name="tf_example")
        parsed = _features(examples)
        x = tf.identity(parsed["x"], name="x")
        y = tf.add(a * x, b, name="y")
        regress = v1.saved_model.regression_signature_def
        signatures = {
            "serving_default": v1.saved_model.predict_signature_def({"x": x}, {"y": y}),
            "regress_x_to_y": regress(examples, y),
            "regress_x_to_y2": regress(examples, a * parsed["x"] + c),
            "regress_x2_to_y3": regress(examples, a * parsed["x2"] + c),
            "classify_x_to_y": v1.saved_model.classification_signature_def(examples, None, y),
        }
        asset = directory.parent / "foo.txt"
        directory.parent.mkdir(parents=True)
        asset.write_text("an asset\n")
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, tf.constant(str(asset), name="asset"))
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signatures,
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
        )
        builder.save()
    asset.unlink()
    let_settle(directory)


def _functions(directory: Path) -> None:
    """Writes the same model from TensorFlow 2: each signature has its own input tensor."""
    module = tf.Module()
    module.a, module.b = tf.Variable(0.5), tf.Variable(2.0)

    def predict(x: Any) -> Outputs:
        return {"y": module.a * x + module.b}

    def regress(inputs: Any) -> Outputs:
        return {"outputs": module.a * _features(inputs)["x"] + module.b}

    def classify(inputs: Any) -> Outputs:
        return {"scores": module.a * _features(inputs)["x"] + module.b}

    examples = tf.TensorSpec([None], tf.string, "inputs")
    specs = {
        "serving_default": (predict, tf.TensorSpec([None, 1], tf.float32, "x")),
        "regress_x_to_y": (regress, examples),
        "classify_x_to_y": (classify, examples),
    }
    signatures = {
        name: tf.function(function).get_concrete_function(spec)
        for name, (function, spec) in specs.items()
    }
    tf.saved_model.save(module, str(directory), signatures=signatures)
    names = {"regress_x_to_y": REGRESS, "classify_x_to_y": CLASSIFY}
    _set_method_names(directory / "saved_model.pb", names)


def _checkpoint(directory: Path) -> None:
    """Writes a checkpoint object with variables and a function of one input of any rank."""
    root = tf.train.Checkpoint()
    root.v1, root.v2 = tf.Variable(3.0), tf.Variable(2.0)
    root.f = tf.function(lambda x: {"y": root.v1 * root.v2 * x})
    signature = root.f.get_concrete_function(tf.TensorSpec(None, tf.float32))
    tf.saved_model.save(root, str(directory), signature)


def _constants(directory: Path) -> None:
    """Writes two signatures with answers that do not depend on the input."""
    root = tf.train.Checkpoint()
    spec = [tf.TensorSpec(None, tf.float32)]
    root.f = tf.function(lambda x: {"y": 1.0}, input_signature=spec)
    root.g = tf.function(lambda x: {"y": 2.0}, input_signature=spec)
    signatures = {"serving_default": root.f, "custom_signature_key": root.g}
    tf.saved_model.save(root, str(directory), signatures)


def _mirrored(directory: Path) -> None:
    """Writes variables that a distribution strategy has mirrored on two devices."""
    strategy = tf.distribute.MirroredStrategy(devices=("/cpu:0", "/cpu:1"))
    module = tf.Module()
    with strategy.scope():
        module.kernel = tf.Variable([[1.0]])
        module.bias = tf.Variable([0.0])
    serve = tf.function(lambda x: {"y": tf.matmul(x, module.kernel) + module.bias})
    spec = tf.TensorSpec([None, 1], tf.float32, "x")
    tf.saved_model.save(module, str(directory), serve.get_concrete_function(spec))


def _keras(directory: Path) -> None:
    """Writes a Keras model without variables."""
    model = tf.keras.Sequential(
        [tf.keras.layers.Input((1,), name="x"), tf.keras.layers.Lambda(lambda x: x, name="y")]
    )
    serve = tf.function(lambda x: {"y": model(x)})
    spec = tf.TensorSpec([None, 1], tf.float32, "x")
    tf.saved_model.save(model, str(directory), serve.get_concrete_function(spec))


def _texts(directory: Path) -> None:
    """Writes an op of tensorflow-text beside the answer."""
    import tensorflow_text as text

    tokenizer = text.WhitespaceTokenizer()

    def serve(x: Any) -> Outputs:
        words = tokenizer.tokenize(tf.strings.as_string(x)).to_tensor()
        return {"y": x / 2 + 2 + tf.cast(tf.size(words) * 0, tf.float32)}

    spec = tf.TensorSpec([None], tf.float32, "x")
    module = tf.Module()
    signature = tf.function(serve).get_concrete_function(spec)
    tf.saved_model.save(module, str(directory), signature)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Writes the models of the drop-in tests.

Run it as `python -m tests.integration.drop_in.export_models DIRECTORY`: in a process of its own, so
that the tests' process stays free of TensorFlow, like a client.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.integration.exports import let_settle

CLASSIFY = "tensorflow/serving/classify"

Outputs = dict[str, Any]
MethodName = str


def main(directory: Path) -> None:
    """Writes one directory for each model, with the version number that the tests use."""
    _half_plus(directory / "half_plus_two" / "123", 2.0)
    _half_plus(directory / "half_plus_three" / "124", 3.0)
    _half_plus(directory / "labelled" / "1", 1.0)
    _half_plus(directory / "labelled" / "2", 2.0)
    _sums(directory / "sums" / "1")
    _texts(directory / "texts" / "1")
    _kinds(directory / "kinds" / "1")
    _dtypes(directory / "dtypes" / "1")


def _half_plus(directory: Path, offset: float) -> None:
    """Writes a model like the test models of TensorFlow Serving: `x` to `y = x / 2 + offset`, also
    on examples with feature x.

    It is a TensorFlow 1 graph, as the originals are: all signatures on examples share one
    placeholder, which MultiInference requires.
    """
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        a, b, c = (
            v1.get_variable(name, initializer=value)
            for name, value in (("a", 0.5), ("b", offset), ("c", 3.0))
        )
        x = v1.placeholder(tf.float32, [None], "x")
        examples = v1.placeholder(tf.string, [None], "tf_example")
        parsed = tf.io.parse_example(
            examples,
            {
                "x": tf.io.FixedLenFeature([1], tf.float32),
                "x2": tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0]),
            },
        )
        regress = v1.saved_model.regression_signature_def
        y = a * parsed["x"] + b
        signatures = {
            "serving_default": v1.saved_model.predict_signature_def({"x": x}, {"y": a * x + b}),
            "regress_x_to_y": regress(examples, y),
            "regress_x_to_y2": regress(examples, a * parsed["x"] + c),
            "regress_x2_to_y3": regress(examples, a * parsed["x2"] + c),
            "classify_x_to_y": v1.saved_model.classification_signature_def(examples, None, y),
        }
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    let_settle(directory)


def _sums(directory: Path) -> None:
    """Writes a model with two inputs and two outputs, one of them a matrix."""

    def two(a: Any, b: Any) -> Outputs:
        return {"sum": a + b, "difference": a - b}

    def rows(matrix: Any) -> Outputs:
        return {"row_sums": tf.reduce_sum(matrix, axis=1)}

    def total(values: Any) -> Outputs:
        return {"total": tf.reduce_sum(values)}

    floats = [tf.TensorSpec([None], tf.float32, name) for name in ("a", "b")]
    _save(
        directory,
        tf.Module(),
        {
            "serving_default": (two, floats, ""),
            "rows": (rows, [tf.TensorSpec([None, 3], tf.float32, "matrix")], ""),
            "total": (total, [tf.TensorSpec([None], tf.float32, "values")], ""),
        },
    )


def _texts(directory: Path) -> None:
    """Writes a model with strings as input and output.

    REST sends an output as binary if its name ends in _bytes.
    """

    def both(text: Any) -> Outputs:
        return {"upper": tf.strings.upper(text), "raw_bytes": tf.identity(text)}

    def lengths(text: Any) -> Outputs:
        return {"length": tf.strings.length(text)}

    texts = [tf.TensorSpec([None], tf.string, "text")]
    _save(
        directory,
        tf.Module(),
        {"serving_default": (both, texts, ""), "lengths": (lengths, texts, "")},
    )


def _kinds(directory: Path) -> None:
    """Writes a classifier with labels, and one example of each kind of feature."""

    def classify(inputs: Any) -> Outputs:
        parsed = tf.io.parse_example(
            inputs,
            {
                "x": tf.io.FixedLenFeature([1], tf.float32),
                "id": tf.io.FixedLenFeature([1], tf.int64, default_value=[0]),
                "name": tf.io.FixedLenFeature([1], tf.string, default_value=[b""]),
            },
        )
        scores = tf.concat([parsed["x"], tf.cast(parsed["id"], tf.float32)], axis=1)
        labels = tf.concat([parsed["name"], tf.fill(tf.shape(parsed["name"]), b"id")], axis=1)
        return {"scores": scores, "classes": labels}

    examples = tf.TensorSpec([None], tf.string, "inputs")
    _save(directory, tf.Module(), {"serving_default": (classify, [examples], CLASSIFY)})


def _dtypes(directory: Path) -> None:
    """Writes a model that returns `x`, with one signature for each dtype."""

    def echo(x: Any) -> Outputs:
        return {"y": tf.identity(x)}

    names = (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"),
        *("float32", "float64", "float16", "bfloat16", "string"),
    )
    signatures = {
        name: (echo, [tf.TensorSpec([None], tf.dtypes.as_dtype(name), "x")], "") for name in names
    }
    _save(directory, tf.Module(), signatures)


def _save(
    directory: Path,
    module: Any,
    signatures: dict[str, tuple[Callable[..., Outputs], list[Any], MethodName]],
) -> None:
    """Saves the module and then sets the method name of each signature from its table; "" stands
    for predict.
    """
    concrete = {
        name: tf.function(function).get_concrete_function(*specs)
        for name, (function, specs, _) in signatures.items()
    }
    tf.saved_model.save(module, str(directory), signatures=concrete)
    _set_method_names(
        directory / "saved_model.pb", {name: row[2] for name, row in signatures.items() if row[2]}
    )
    let_settle(directory)


def _set_method_names(path: Path, method_names: dict[str, MethodName]) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for meta_graph in saved_model.meta_graphs:
        for name, method_name in method_names.items():
            meta_graph.signature_def[name].method_name = method_name
    path.write_bytes(saved_model.SerializeToString())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

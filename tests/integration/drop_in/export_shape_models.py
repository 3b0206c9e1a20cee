"""Writes the models of `test_shapes.py`.

Run it as `python -m tests.integration.drop_in.export_shape_models DIRECTORY`: in a process of its
own, so that the tests' process stays free of TensorFlow, like a client.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.integration.exports import let_settle

Outputs = dict[str, Any]


def main(directory: Path) -> None:
    """Writes version 1 of each model."""
    _half_plus_two(directory / "half_plus_two" / "1")
    _kernels(directory / "kernels" / "1")
    let_settle(directory / "half_plus_two" / "1")
    let_settle(directory / "kernels" / "1")


def _half_plus_two(directory: Path) -> None:
    """Writes `y = x / 2 + 2` with the signature [-1, 1], like the example model of TensorFlow
    Serving.
    """
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = (
            v1.get_variable(name, initializer=value) for name, value in (("a", 0.5), ("b", 2.0))
        )
        examples = v1.placeholder(tf.string, [None], "tf_example")
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], name="x")
        y = tf.add(a * x, b, name="y")
        signatures = {
            "serving_default": v1.saved_model.predict_signature_def({"x": x}, {"y": y}),
            "regress_x_to_y": v1.saved_model.regression_signature_def(examples, y),
        }
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()


def _kernels(directory: Path) -> None:
    """Writes one signature for each kind of kernel.

    Requests will not keep to the shapes of these signatures.
    """
    chance = tf.random.Generator.from_seed(1)
    module = tf.Module()
    module.weights = tf.Variable(chance.normal([3, 2]), name="weights")
    module.filters = tf.Variable(chance.normal([3, 3, 1, 4]), name="filters")
    module.depthwise = tf.Variable(chance.normal([3, 3, 1, 2]), name="depthwise")
    module.table = tf.Variable(chance.normal([50, 8]), name="table")
    signatures = {
        name: tf.function(function).get_concrete_function(*specs)
        for name, (function, specs) in _signatures(module).items()
    }
    tf.saved_model.save(module, str(directory), signatures=signatures)


def _spec(dtype: Any, *dims: int | None, name: str = "x") -> Any:
    return tf.TensorSpec(list(dims), dtype, name)


def _signatures(module: Any) -> Mapping[str, tuple[Callable[..., Any], list[Any]]]:
    return {**_dense(module), **_images(module), **_lookups(module), **_plain()}


def _dense(module: Any) -> Mapping[str, tuple[Callable[..., Any], list[Any]]]:
    def dense(x: Any) -> Outputs:
        return {"y": tf.nn.relu(tf.nn.bias_add(tf.matmul(x, module.weights), [1.0, 2.0]))}

    def norm(x: Any) -> Outputs:
        mean, variance = tf.nn.moments(x, axes=[1], keepdims=True)
        return {"y": tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)}

    def softmax(x: Any) -> Outputs:
        values, indices = tf.math.top_k(tf.nn.softmax(x), k=2)
        return {"y": values, "i": indices}

    def attention(x: Any, m: Any) -> Outputs:
        scores = tf.einsum("bqd,bkd->bqk", x, m)
        return {"y": tf.einsum("bqk,bkd->bqd", tf.nn.softmax(scores), m)}

    def two(x: Any, m: Any) -> Outputs:
        return {"y": tf.concat([x, m], axis=1), "s": x + m}

    f32 = tf.float32
    pair = [_spec(f32, None, 3), _spec(f32, None, 3, name="m")]
    triple = [_spec(f32, None, 4, 3), _spec(f32, None, 4, 3, name="m")]
    return {
        "serving_default": (dense, [_spec(f32, None, 3)]),
        "norm": (norm, [_spec(f32, None, 3)]),
        "softmax": (softmax, [_spec(f32, None, 5)]),
        "attention": (attention, triple),
        "two": (two, pair),
    }


def _images(module: Any) -> Mapping[str, tuple[Callable[..., Any], list[Any]]]:
    def convolved(x: Any) -> Outputs:
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, module.filters, 1, "SAME"), [0.0] * 4))
        return {"y": tf.nn.max_pool2d(y, 2, 2, "VALID")}

    def depthwise(x: Any) -> Outputs:
        y = tf.nn.depthwise_conv2d(x, module.depthwise, [1, 1, 1, 1], "SAME")
        return {"y": tf.nn.avg_pool2d(y, 2, 2, "SAME")}

    def normalized(x: Any) -> Outputs:
        ones = tf.ones([1])
        y, *_ = tf.compat.v1.nn.fused_batch_norm(x, ones, ones, ones, ones, is_training=False)
        return {"y": tf.image.resize(y, [4, 4])}

    image = [_spec(tf.float32, None, 8, 8, 1)]
    return {
        "convolved": (convolved, image),
        "depthwise": (depthwise, image),
        "normalized": (normalized, image),
    }


def _lookups(module: Any) -> Mapping[str, tuple[Callable[..., Any], list[Any]]]:
    def embedded(x: Any) -> Outputs:
        return {"y": tf.reduce_sum(tf.nn.embedding_lookup(module.table, x), axis=1)}

    def scattered(x: Any, m: Any) -> Outputs:
        return {"y": tf.scatter_nd(x, m, [10, 3])}

    def segments(x: Any, m: Any) -> Outputs:
        return {"y": tf.math.unsorted_segment_sum(m, x, 5)}

    def gathered(x: Any, m: Any) -> Outputs:
        return {"y": tf.gather_nd(m, x)}

    def sparse(x: Any, m: Any) -> Outputs:
        return {"y": tf.sparse.to_dense(tf.SparseTensor(x, m, [10, 10]), validate_indices=False)}

    def lengths(x: Any, m: Any) -> Outputs:
        return {"y": tf.reverse_sequence(m, x, seq_axis=1, batch_axis=0)}

    i64, f32 = tf.int64, tf.float32
    ids = _spec(i64, None)
    return {
        "embedded": (embedded, [_spec(i64, None, 4)]),
        "scattered": (scattered, [_spec(i64, None, 1), _spec(f32, None, 3, name="m")]),
        "segments": (segments, [ids, _spec(f32, None, 3, name="m")]),
        "gathered": (gathered, [_spec(i64, None, 1), _spec(f32, 10, 3, name="m")]),
        "sparse": (sparse, [_spec(i64, None, 2), _spec(f32, None, name="m")]),
        "lengths": (lengths, [ids, _spec(f32, None, 3, name="m")]),
    }


def _plain() -> Mapping[str, tuple[Callable[..., Any], list[Any]]]:
    def sliced(x: Any) -> Outputs:
        return {"y": x[:, 1:3], "t": tf.transpose(x, [1, 0]), "r": tf.reshape(x, [-1, 2])}

    def loops(x: Any) -> Outputs:
        return {"y": tf.map_fn(lambda row: tf.reduce_sum(row) * row, x), "s": tf.cumsum(x, axis=1)}

    def words(x: Any) -> Outputs:
        parts = tf.strings.split(tf.reshape(x, [-1])).to_tensor()
        return {"y": tf.strings.join([x, x]), "n": tf.strings.length(x), "p": parts}

    def parsed(x: Any) -> Outputs:
        feature = {"a": tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0])}
        return {"y": tf.io.parse_example(x, feature)["a"]}

    def solved(x: Any) -> Outputs:
        return {"y": tf.linalg.inv(x + 3.0 * tf.eye(3)), "d": tf.linalg.diag_part(x)}

    f32 = tf.float32
    return {
        "sliced": (sliced, [_spec(f32, None, 4)]),
        "loops": (loops, [_spec(f32, None, 4)]),
        "words": (words, [_spec(tf.string, None)]),
        "parsed": (parsed, [_spec(tf.string, None)]),
        "solved": (solved, [_spec(f32, 3, 3)]),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Models for the row analysis: layers as exports have them, and models that mix the rows of a batch.

Each is a signature of one SavedModel, with the name of its function. TensorFlow is imported by the
functions that build, because most tests do not need it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.integration.exports import let_settle

Signatures = Mapping[str, Any]
"""Concrete functions by the name of their signature."""

IMAGE = (24, 24, 3)
SEQUENCE = (10, 8)
FEATURES = (8,)
VOCABULARY_SIZE = 50


def export_signatures(path: Path, signatures: Signatures, *tracked: object) -> Path:
    """Exports the signatures; `tracked` holds the variables and tables that they use."""
    import tensorflow as tf

    module = tf.Module()
    module.tracked = list(tracked)
    tf.saved_model.save(module, str(path), signatures=dict(signatures))
    return let_settle(path)


def layer_stacks() -> dict[str, tuple[Any, list[Any]]]:
    """Returns the shape of an input and the layers of a model on it, by the model's name."""
    from tensorflow import keras

    layers = keras.layers

    return {
        "mlp": (FEATURES, [layers.Dense(16, activation="relu"), layers.Dense(3)]),
        "batch_normalization": (FEATURES, [layers.Dense(16), layers.BatchNormalization()]),
        "layer_normalization": (FEATURES, [layers.LayerNormalization(), layers.Dense(3)]),
        "unit_normalization": (FEATURES, [layers.UnitNormalization()]),
        "dropout": (FEATURES, [layers.Dropout(0.5), layers.GaussianNoise(0.1), layers.Dense(3)]),
        "activations": (
            FEATURES,
            [layers.PReLU(), layers.ELU(), layers.LeakyReLU(), layers.Activation("gelu")],
        ),
        "softmax": (FEATURES, [layers.Dense(5), layers.Softmax()]),
        "normalization": (FEATURES, [layers.Normalization(mean=1.0, variance=2.0)]),
        "discretization": (FEATURES, [layers.Discretization(bin_boundaries=[0.0, 1.0])]),
        "reshape": (FEATURES, [layers.Reshape((4, 2)), layers.Permute((2, 1)), layers.Flatten()]),
        "repeat_vector": (FEATURES, [layers.RepeatVector(3), layers.Flatten()]),
        "time_distributed": (SEQUENCE, [layers.TimeDistributed(layers.Dense(4))]),
        "dense_on_sequence": (SEQUENCE, [layers.Dense(4), layers.GlobalAveragePooling1D()]),
        "open_sequence": ((None, 8), [layers.Dense(4), layers.GlobalMaxPooling1D()]),
        "conv1d": (SEQUENCE, [layers.Conv1D(4, 3), layers.MaxPooling1D(), layers.Flatten()]),
        "dilated_conv1d": (SEQUENCE, [layers.Conv1D(4, 3, dilation_rate=2, padding="causal")]),
        "lstm": (SEQUENCE, [layers.LSTM(4)]),
        "lstm_sequences": (SEQUENCE, [layers.LSTM(4, return_sequences=True)]),
        "gru": (SEQUENCE, [layers.GRU(4)]),
        "simple_rnn": (SEQUENCE, [layers.SimpleRNN(4)]),
        "masked_rnn": (SEQUENCE, [layers.Masking(), layers.GRU(4, return_sequences=True)]),
        "einsum_dense": (SEQUENCE, [layers.EinsumDense("abc,cd->abd", (None, 3))]),
        "conv1d_transpose": (SEQUENCE, [layers.Conv1DTranspose(3, 2), layers.AveragePooling1D(2)]),
        "conv3d": ((6, 6, 6, 2), [layers.Conv3D(3, 2), layers.MaxPooling3D(2), layers.Flatten()]),
        "conv_lstm": ((5, 8, 8, 2), [layers.ConvLSTM2D(3, 3)]),
        "bidirectional": (SEQUENCE, [layers.Bidirectional(layers.LSTM(4))]),
        "conv2d": (
            IMAGE,
            [layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()],
        ),
        "global_pooling": (IMAGE, [layers.Conv2D(4, 3), layers.GlobalAveragePooling2D()]),
        "depthwise_conv2d": (IMAGE, [layers.DepthwiseConv2D(3), layers.SeparableConv2D(4, 3)]),
        "conv2d_transpose": (IMAGE, [layers.Conv2DTranspose(4, 3, strides=2)]),
        "padding_and_cropping": (IMAGE, [layers.ZeroPadding2D(2), layers.Cropping2D(1)]),
        "resizing": (IMAGE, [layers.Rescaling(1 / 255), layers.Resizing(12, 12)]),
        "upsampling": (IMAGE, [layers.UpSampling2D(2), layers.AveragePooling2D(2)]),
        "group_normalization": (IMAGE, [layers.Conv2D(4, 3), layers.GroupNormalization(2)]),
    }


def keras_signatures() -> tuple[dict[str, Any], list[object]]:
    """Returns signatures of Keras models whose rows are independent, and what they use."""
    from tensorflow import keras

    keras.utils.set_random_seed(3)
    models = {
        name: keras.Sequential([keras.Input(shape), *stack], name=name)
        for name, (shape, stack) in layer_stacks().items()
    }
    models |= {model.name: model for model in _functional_models()}
    signatures = {name: _signature_of(model) for name, model in models.items()}
    # The models track the tables of their look-ups.
    return signatures, [*models.values(), *_variables_of(list(models.values()))]


def _variables_of(models: list[Any]) -> list[object]:
    """Returns the TensorFlow variables of Keras models, which a tf.Module would not track itself."""
    return [variable.value for model in models for variable in model.variables]


def _signature_of(model: Any) -> Any:
    import tensorflow as tf

    # A model of one input takes the name that requests use.
    names = ["x"] if len(model.inputs) == 1 else [tensor.name for tensor in model.inputs]
    specs = {
        name: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, name)
        for name, tensor in zip(names, model.inputs, strict=True)
    }

    def answer(**inputs: Any) -> dict[str, Any]:
        given = [inputs[name] for name in names]
        return {"y": model(given if len(given) > 1 else given[0], training=False)}

    return tf.function(answer).get_concrete_function(**specs)


def _functional_models() -> list[Any]:
    towers = two_tower("two_tower")
    return [towers, _wide_and_deep(), _transformer(), _masked_text(), _lookups(), _texts()]


def two_tower(name: str, dimension: int = 32, hidden: int = 128) -> Any:
    """Returns a model of a score a row: the dot product of two towers."""
    from tensorflow import keras

    layers = keras.layers

    user, item = keras.Input((16,), name="user"), keras.Input((16,), name="item")
    towers = [
        layers.Dense(dimension)(layers.Dense(hidden, activation="relu")(tower))
        for tower in (user, item)
    ]
    return keras.Model([user, item], layers.Dot(axes=1)(towers), name=name)


def scoring_signatures(count: int, seed: int) -> tuple[dict[str, Any], list[object]]:
    """Returns signatures of random models of one score a row, and their variables: two towers, MLPs."""
    from tensorflow import keras

    layers = keras.layers

    keras.utils.set_random_seed(seed)
    models: list[Any] = []
    for number in range(count):
        if number % 2 == 0:
            models.append(two_tower(f"two_tower_{number}"))
            continue
        stack = [layers.Dense(64, activation="relu"), layers.Dense(32, activation="relu")]
        given = [keras.Input((16,)), *stack, layers.Dense(1)]
        models.append(keras.Sequential(given, name=f"logits_{number}"))
    return {model.name: _signature_of(model) for model in models}, _variables_of(models)


def _wide_and_deep() -> Any:
    from tensorflow import keras

    layers = keras.layers

    ids = keras.Input((4,), dtype="int64", name="ids")
    wide = keras.Input((6,), name="wide")
    embedded = layers.Flatten()(layers.Embedding(VOCABULARY_SIZE, 5)(ids))
    deep = layers.Dense(8, activation="relu")(layers.Concatenate()([embedded, wide]))
    both = layers.Add()([layers.Dense(1)(deep), layers.Dense(1)(wide)])
    return keras.Model([ids, wide], keras.activations.sigmoid(both), name="wide_and_deep")


def _transformer() -> Any:
    from tensorflow import keras

    layers = keras.layers

    x = keras.Input(SEQUENCE, name="x")
    attended = layers.MultiHeadAttention(2, 4)(x, x)
    normal = layers.LayerNormalization()(layers.Add()([x, attended]))
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(normal)), name="transformer")


def _masked_text() -> Any:
    from tensorflow import keras

    layers = keras.layers

    x = keras.Input((7,), dtype="int64", name="x")
    embedded = layers.Embedding(VOCABULARY_SIZE, 5, mask_zero=True)(x)
    return keras.Model(x, layers.Dense(2)(layers.LSTM(4)(embedded)), name="masked_text")


def _lookups() -> Any:
    from tensorflow import keras

    layers = keras.layers

    x = keras.Input((1,), dtype="int64", name="x")
    encoded = layers.CategoryEncoding(num_tokens=9, output_mode="multi_hot")(x)
    return keras.Model(x, layers.Dense(2)(encoded), name="category_encoding")


def _texts() -> Any:
    from tensorflow import keras

    layers = keras.layers

    x = keras.Input((3,), dtype="string", name="x")
    known = layers.StringLookup(vocabulary=["a", "b", "c"])(x)
    # It checks that there is no other text.
    only_known = layers.StringLookup(vocabulary=["a", "b", "c"], num_oov_indices=0)(x)
    hashed = layers.Hashing(num_bins=VOCABULARY_SIZE)(x)
    embedded = [layers.Embedding(VOCABULARY_SIZE, 4)(ids) for ids in (known, only_known, hashed)]
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(layers.Add()(embedded))), name="texts")


def merged(predicate: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Returns a conditional as TensorFlow 1 writes it: its branches only wait for the predicate."""
    import tensorflow as tf

    branches = []
    pivots = tf.raw_ops.Switch(data=predicate, pred=predicate)
    for pivot, branch in zip(pivots, (otherwise, then), strict=True):
        with tf.control_dependencies([tf.identity(pivot)]):
            branches.append(branch())
    return tf.raw_ops.Merge(inputs=branches)[0]


# --- Functions of a matrix ------------------------------------------------------------------------


def matrix_signatures(
    functions: Mapping[str, Callable[[Any], Any]], columns: int | None = 4
) -> dict[str, Any]:
    """Returns a signature `x: float32[?,4] -> y` for each function; None: any number of columns."""
    import tensorflow as tf

    spec = tf.TensorSpec([None, columns], tf.float32, "x")

    def signature(function: Callable[[Any], Any]) -> Any:
        # AutoGraph takes most of the time, for Python's own loops, which no function has.
        made = tf.function(lambda x: {"y": function(x)}, autograph=False)
        return made.get_concrete_function(x=spec)

    return {name: signature(function) for name, function in functions.items()}


def independent_functions() -> dict[str, Callable[[Any], Any]]:
    """Returns functions of which each row of the result is one of the row alone."""
    import tensorflow as tf

    weights = tf.random.stateless_normal([4, 3], [1, 2])
    table = tf.random.stateless_normal([9, 2], [3, 4])
    return {
        "matmul": lambda x: x @ weights,
        "einsum": lambda x: tf.einsum("bi,ij->bj", x, weights),
        "batched_outer": lambda x: tf.einsum("bi,bj->bij", x, x),
        "row_sum": lambda x: tf.reduce_sum(x, axis=1),
        "row_sum_from_the_end": lambda x: tf.reduce_sum(x, axis=-1, keepdims=True),
        "row_softmax": tf.nn.softmax,
        "row_norm": lambda x: tf.math.l2_normalize(x, axis=1),
        "row_cumsum": lambda x: tf.cumsum(x, axis=1),
        "row_sort": lambda x: tf.sort(x, axis=-1),
        "row_argmax": lambda x: tf.argmax(x, axis=1),
        "row_top_k": lambda x: tf.math.top_k(x, 2).values,
        "row_concat": lambda x: tf.concat([x, -x, tf.ones_like(x)], axis=1),
        "row_reverse": lambda x: tf.reverse(x, [1]),
        "column": lambda x: x[:, 2],
        "columns": lambda x: x[:, 1:3],
        "new_axis": lambda x: x[:, tf.newaxis, ::2],
        "stack": lambda x: tf.stack([x, x * 2], axis=1),
        "unstack": lambda x: tf.add_n(tf.unstack(x, axis=1)),
        "gather_columns": lambda x: tf.gather(x, [2, 0], axis=1),
        "embedding": lambda x: tf.gather(table, tf.cast(x, tf.int32) % 9),
        "one_hot": lambda x: tf.one_hot(tf.cast(x, tf.int32), 5),
        "where": lambda x: tf.where(x > 0, x, -x),
        "flatten": lambda x: tf.reshape(x, [tf.shape(x)[0], -1]),
        "through_flat": lambda x: tf.reshape(tf.reshape(x, [-1]) * 2, tf.shape(x)),
        "through_pairs": lambda x: tf.reshape(tf.reshape(x, [-1, 2]) @ weights[:2], [-1, 6]),
        "transposed": lambda x: tf.transpose(tf.transpose(x) * 2),
        "zeros_of_rows": lambda x: tf.zeros([tf.shape(x)[0], 3]) + x @ weights,
        "tiled_constant": lambda x: tf.tile(weights[None, 0], [tf.shape(x)[0], 1]),
        "broadcast": lambda x: x[:, :, None] * weights[None, :, :],
        "constant_branch": lambda x: tf.cond(weights[0, 0] > 0, lambda: x, lambda: -x),
        "constant_merge": lambda x: (
            x * merged(weights[0, 0] > 0, lambda: tf.constant(2.0), lambda: tf.constant(1.0))
        ),
        "fixed_loop": lambda x: tf.while_loop(
            lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.5), [tf.constant(0), x]
        )[1],
        "loop_over_columns": lambda x: tf.transpose(tf.scan(tf.add, tf.transpose(x))),
        "lengths_of_texts": lambda x: tf.strings.length(tf.strings.as_string(x)),
        "hashed_texts": lambda x: tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), 10),
        "padded": lambda x: tf.pad(x, [[0, 0], [1, 2]]),
        "clipped": lambda x: tf.clip_by_value(x, -1.0, 1.0),
        "hue": lambda x: tf.image.rgb_to_hsv(tf.sigmoid(x[:, :3])),
        "contrast": lambda x: tf.image.adjust_contrast(tf.reshape(x, [-1, 2, 2, 1]), 2.0),
        "resized_with_pad": lambda x: tf.image.resize_with_pad(tf.reshape(x, [-1, 2, 2, 1]), 5, 7),
        "best_boxes": lambda x: tf.image.combined_non_max_suppression(
            tf.reshape(x, [-1, 1, 1, 4]), x[:, tf.newaxis, :1], 2, 2
        )[1],
        "cosine": lambda x: tf.reduce_sum(x * x[:, ::-1], axis=1) / tf.norm(x, axis=1),
    }


def mixing_functions() -> dict[str, Callable[[Any], Any]]:
    """Returns functions of which a row of the result depends on the other rows, or on its place.

    Several do so for rare values only, which no request of a test need have.
    """
    import tensorflow as tf

    def rows(x: Any) -> Any:
        return tf.cast(tf.shape(x)[0], tf.float32)

    return {
        "doubled_if_any_is_777": lambda x: tf.cond(
            tf.reduce_any(x == 777), lambda: 2 * x, lambda: x
        ),
        "tripled_by_a_merge_if_any_is_777": lambda x: (
            x * merged(tf.reduce_any(x == 777), lambda: tf.constant(3.0), lambda: tf.constant(1.0))
        ),
        "over_the_largest": lambda x: x / tf.maximum(1000.0, tf.reduce_max(x)),
        "minus_the_mean": lambda x: x - tf.reduce_mean(x, axis=0),
        "minus_the_mean_of_all": lambda x: x - tf.reduce_mean(x),
        "batch_moments": lambda x: tf.nn.batch_normalization(
            x, *tf.nn.moments(x, [0]), None, None, 1e-3
        ),
        "column_softmax": lambda x: tf.nn.softmax(x, axis=0),
        "column_cumsum": lambda x: tf.cumsum(x, axis=0),
        "column_sort": lambda x: tf.sort(x, axis=0),
        "rolled_if_large": lambda x: tf.where(tf.reduce_any(x >= 1e6), tf.roll(x, 1, axis=0), x),
        "reversed_rows": lambda x: tf.reverse(x, [0]),
        "plus_the_first_row": lambda x: x + x[:1],
        "plus_the_last_row": lambda x: x + x[-1],
        "over_the_number_of_rows": lambda x: x / rows(x),
        "by_the_number_of_rows": lambda x: tf.cond(rows(x) > 4, lambda: x, lambda: x + 1),
        "plus_the_place": lambda x: x + tf.range(rows(x))[:, None],
        "gram": lambda x: x @ tf.transpose(x) @ x,
        "attention_over_rows": lambda x: tf.nn.softmax(tf.matmul(x, x, transpose_b=True)) @ x,
        "noise": lambda x: x + tf.random.normal(tf.shape(x)),
        "shuffled": tf.random.shuffle,
        "number_of_distinct": lambda x: (
            x + tf.cast(tf.size(tf.unique(tf.reshape(x, [-1]))[0]), tf.float32)
        ),
        "histogram": lambda x: (
            x
            + tf.reduce_sum(
                tf.cast(
                    tf.math.bincount(tf.cast(tf.abs(x[:, 0]), tf.int32), maxlength=9), tf.float32
                )
            )
        ),
        "loop_until_small": lambda x: tf.while_loop(
            lambda y: tf.reduce_any(tf.abs(y) > 1e5), lambda y: (y / 2,), [x]
        )[0],
        "norm_of_all": lambda x: x / tf.maximum(1e5, tf.norm(x)),
        "joined_pairs": lambda x: tf.reshape(
            tf.nn.softmax(tf.reshape(tf.tile(x, [1, 2]), [-1, 16])), tf.shape(tf.tile(x, [1, 2]))
        )[:, :4],
        "segment": lambda x: (
            x + tf.math.unsorted_segment_max(x, tf.cast(x[:, 0] > 500, tf.int32), 2)[1:]
        ),
    }


def doubtful_functions() -> dict[str, Callable[[Any], Any]]:
    """Returns functions that mix rows, though the analysis need not find out how."""
    import tensorflow as tf

    def length_of_rows(x: Any) -> Any:
        return tf.cast(tf.TensorArray(tf.float32, size=tf.shape(x)[0]).size(), tf.float32)

    def checked(condition: Any, x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.Assert(condition, [x])]):
            return tf.identity(x)

    def checked_in_a_loop(x: Any) -> Any:
        def turn(i: Any, condition: Any) -> tuple[Any, Any]:
            return i + tf.shape(checked(condition, x))[1] // 4, tf.reduce_any(x < 3)

        is_checked = tf.while_loop(lambda i, _: i < 2, turn, [0, tf.reduce_all(x < 1e9)])[1]
        with tf.control_dependencies([is_checked]):
            return tf.identity(x)

    return {
        "checked_for_any_row": lambda x: checked(tf.reduce_any(x < 3), x),
        "checked_in_a_loop": checked_in_a_loop,
        "over_the_length_of_an_array": lambda x: x / length_of_rows(x),
        "products_of_interleaved_rows": lambda x: tf.reshape(
            tf.einsum(
                "ab,ab->a",
                tf.space_to_batch(x, [2], [[0, 0]]),
                tf.reshape(x, [-1, 2]),
            ),
            [-1, 2],
        ),
    }

"""Random functions of a matrix, put together of TensorFlow's ops, and a comparison of their rows."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.integration.row_models import matrix_signatures

# More rows than the ops below have sizes, so that a size that fits by chance does not fit always.
ROW_COUNT = 7
OPS_MAX = 5
# An op may not take the tensors at hand; another one is tried then.
TRIES_MAX = 60
RANK_MAX = 4

Op = Callable[[Any, Any, Any, random.Random], Any]
"""An op of a tensor, another one, the input of the function, and the random choices."""


def random_signatures(seed: int, count: int) -> dict[str, Any]:
    """Returns signatures `x: float32[?,4] -> y` of random functions, up to `count`."""
    choices = random.Random(seed)
    signatures: dict[str, Any] = {}
    for number in range(count):
        name = f"random_{number}"
        # Some functions fail as they are traced, for shapes that no op accepts.
        try:
            signatures |= matrix_signatures({name: _random_function(choices)})
        except (ValueError, TypeError):
            continue
    return signatures


def rows_differ(signature: Any, seed: int) -> bool:
    """Returns True if a row gives something else in a batch than alone."""
    x = np.random.default_rng(seed).normal(scale=3.0, size=(ROW_COUNT, 4)).astype(np.float32)
    alone = [_run(signature, x[at : at + 1]) for at in range(ROW_COUNT)]
    for rows in range(2, ROW_COUNT + 1):
        batch = _run(signature, x[:rows])
        if batch is None or batch.ndim == 0 or batch.shape[0] != rows:
            continue
        for at in range(rows):
            if alone[at] is not None and not _is_close(alone[at], batch[at : at + 1]):
                return True
    return False


def _run(signature: Any, x: Any) -> Any:
    """Returns `y`; None if the run fails: a batch that fails is run one by one."""
    import tensorflow as tf

    try:
        return np.asarray(signature(x=tf.constant(x))["y"])
    except tf.errors.OpError:
        return None


def _is_close(a: Any, b: Any) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)


def _random_function(choices: random.Random) -> Callable[[Any], Any]:
    import tensorflow as tf

    ops = [*_arithmetic(), *_arrangements(), *_parts(), *_control_flow()]
    op_count = choices.randint(1, OPS_MAX)

    def function(x: Any) -> Any:
        constants = [tf.constant(np.linspace(-1, 2, 4), tf.float32)]
        constants.append(tf.constant(np.arange(8.0).reshape(2, 4), tf.float32))
        at_hand = [x, *constants, x * 0.5, tf.reshape(x, [-1, 2])]
        value, applied = x, 0
        for _ in range(TRIES_MAX):
            if applied == op_count:
                break
            try:
                made = choices.choice(ops)(value, choices.choice(at_hand), x, choices)
            except (ValueError, TypeError, IndexError, ZeroDivisionError):
                continue
            is_fit = made.dtype == tf.float32 and made.shape.rank in range(1, RANK_MAX + 1)
            if is_fit:
                at_hand.append(made)
                value, applied = made, applied + 1
        return value

    return function


def _axis(value: Any, choices: random.Random) -> int:
    return choices.randrange(-value.shape.rank, value.shape.rank)


def _index(value: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tf.abs(value), tf.int32) % 2


def _rows(x: Any) -> Any:
    import tensorflow as tf

    return tf.shape(x)[0]


def _arithmetic() -> list[Op]:
    import tensorflow as tf

    return [
        lambda t, o, x, c: tf.nn.relu(t),
        lambda t, o, x, c: t + o,
        lambda t, o, x, c: t * o,
        lambda t, o, x, c: tf.where(t > 0, t, o),
        lambda t, o, x, c: tf.reduce_sum(t, axis=_axis(t, c), keepdims=c.random() < 0.5),
        lambda t, o, x, c: tf.reduce_max(t, axis=_axis(t, c)),
        lambda t, o, x, c: tf.reduce_mean(t, axis=[_axis(t, c), _axis(t, c)]),
        lambda t, o, x, c: tf.nn.softmax(t, axis=_axis(t, c)),
        lambda t, o, x, c: tf.cumsum(t, axis=_axis(t, c)),
        lambda t, o, x, c: tf.sort(t, axis=_axis(t, c)),
        lambda t, o, x, c: tf.cast(tf.argmax(t, axis=_axis(t, c)), tf.float32),
        lambda t, o, x, c: tf.matmul(
            t, o, transpose_a=c.random() < 0.5, transpose_b=c.random() < 0.5
        ),
        lambda t, o, x, c: tf.tensordot(t, tf.ones([t.shape[-1], 3]), [[t.shape.rank - 1], [0]]),
        lambda t, o, x, c: tf.einsum(
            c.choice(["ab,bc->ac", "ab,ab->a", "ab,ab->b", "...a,...a->...", "ab,cb->ac"]), t, o
        ),
        lambda t, o, x, c: t * tf.cast(_rows(x), tf.float32),
        lambda t, o, x, c: t / tf.cast(tf.shape(t)[-1], tf.float32),
        lambda t, o, x, c: t / tf.cast(tf.size(t) // _rows(x), tf.float32),
        lambda t, o, x, c: t + tf.zeros([_rows(x), 2]),
        lambda t, o, x, c: t + tf.ones([2, _rows(x)]),
        lambda t, o, x, c: t + tf.fill([_rows(x)], 3.0),
    ]


def _arrangements() -> list[Op]:
    import tensorflow as tf

    return [
        lambda t, o, x, c: tf.transpose(t, c.sample(range(t.shape.rank), t.shape.rank)),
        lambda t, o, x, c: tf.reshape(t, [-1, c.choice([1, 2, 3, 4, 6, 8])]),
        lambda t, o, x, c: tf.reshape(t, [c.choice([1, 2, 4]), -1]),
        lambda t, o, x, c: tf.reshape(t, [_rows(x), -1]),
        lambda t, o, x, c: tf.reshape(t, [-1]),
        lambda t, o, x, c: tf.reshape(t, tf.shape(o)),
        lambda t, o, x, c: tf.reshape(t, tf.concat([[-1], tf.shape(t)[1:]], 0)),
        lambda t, o, x, c: tf.expand_dims(t, c.randrange(-t.shape.rank - 1, t.shape.rank + 1)),
        lambda t, o, x, c: tf.squeeze(t, [_axis(t, c)]),
        lambda t, o, x, c: tf.stack([t, t], axis=c.randrange(0, t.shape.rank + 1)),
        lambda t, o, x, c: tf.stack([t, o], axis=c.randrange(0, t.shape.rank + 1)),
        lambda t, o, x, c: tf.concat([t, t * 3], axis=_axis(t, c)),
        lambda t, o, x, c: tf.concat([t, o], axis=_axis(t, c)),
        lambda t, o, x, c: tf.tile(t, [c.choice([1, 2]) for _ in range(t.shape.rank)]),
        lambda t, o, x, c: tf.repeat(t, 2, axis=_axis(t, c) % t.shape.rank),
        lambda t, o, x, c: tf.broadcast_to(t, tf.shape(o)),
        lambda t, o, x, c: tf.reverse(t, [_axis(t, c) % t.shape.rank]),
        lambda t, o, x, c: tf.roll(t, 1, _axis(t, c) % t.shape.rank),
        lambda t, o, x, c: tf.pad(t, [[0, c.randrange(2)] for _ in range(t.shape.rank)]),
        lambda t, o, x, c: tf.space_to_batch(t, [2], [[0, 0]]),
        lambda t, o, x, c: tf.batch_to_space(
            tf.nn.relu(tf.space_to_batch(t, [2], [[0, 0]])), [2], [[0, 0]]
        ),
        lambda t, o, x, c: tf.linalg.diag(t),
        lambda t, o, x, c: tf.linalg.band_part(t, 0, -1),
    ]


def _parts() -> list[Op]:
    import tensorflow as tf

    table = tf.constant(np.arange(8.0).reshape(2, 4), tf.float32)
    return [
        lambda t, o, x, c: tf.unstack(t, axis=_axis(t, c))[0],
        lambda t, o, x, c: tf.split(t, 2, axis=_axis(t, c))[c.randrange(2)],
        lambda t, o, x, c: tf.gather(t, c.choice([[0, 1], [1, 0, 1]]), axis=_axis(t, c)),
        lambda t, o, x, c: tf.gather(o, _index(t), axis=_axis(o, c)),
        lambda t, o, x, c: tf.gather(t, _index(o), batch_dims=1),
        lambda t, o, x, c: tf.gather_nd(table, _index(t)),
        lambda t, o, x, c: tf.one_hot(_index(t), 3, axis=c.choice([-1, 0, 1])),
        lambda t, o, x, c: tf.math.top_k(t, 1).values,
        lambda t, o, x, c: t[:, :2],
        lambda t, o, x, c: t[:2],
        lambda t, o, x, c: t[..., :1],
        lambda t, o, x, c: t[:, -1],
        lambda t, o, x, c: t[..., ::-1],
        lambda t, o, x, c: t[tf.newaxis],
        lambda t, o, x, c: t[: _rows(x)],
        lambda t, o, x, c: t[:, : _rows(x)],
        lambda t, o, x, c: tf.slice(t, [0] * t.shape.rank, [-1] * t.shape.rank),
        lambda t, o, x, c: tf.slice(t, [0] * t.shape.rank, [_rows(x)] + [-1] * (t.shape.rank - 1)),
        lambda t, o, x, c: tf.slice(t, [0] * t.shape.rank, [-1] * (t.shape.rank - 1) + [1]),
    ]


def _control_flow() -> list[Op]:
    import tensorflow as tf

    def loop(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        shapes = [tf.TensorShape([]), tf.TensorShape([None] * t.shape.rank)]
        is_turned = t.shape.rank == 2 and c.random() < 0.3

        def turn(i: Any, y: Any) -> Any:
            return i + 1, tf.transpose(y) if is_turned else y + o

        return tf.while_loop(lambda i, y: i < 3, turn, [0, t], shape_invariants=shapes)[1]

    return [
        loop,
        lambda t, o, x, c: tf.cond(tf.reduce_sum(o) > 1, lambda: t, lambda: t * 2),
        lambda t, o, x, c: tf.cond(tf.reduce_sum(t) > 1, lambda: t, lambda: t * 2),
        lambda t, o, x, c: tf.cond(_rows(x) > 2, lambda: t, lambda: t * 2),
        lambda t, o, x, c: tf.transpose(tf.scan(tf.add, tf.transpose(t))),
    ]

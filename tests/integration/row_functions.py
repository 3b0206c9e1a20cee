"""Random functions of a matrix, put together of TensorFlow's ops, and a comparison of their rows."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.integration.row_models import matrix_signatures, merged

# More rows than the ops below have sizes, so that a size that fits by chance does not fit always.
ROW_COUNT = 7
OPS_MAX = 5
# An op may not take the tensors at hand; another one is tried then.
TRIES_MAX = 60
RANK_MAX = 4
CHECK_FAILED = object()
RARE = [np.nan, np.inf, -np.inf, 777.0, -1000.0]

Op = Callable[[Any, Any, Any, random.Random], Any]
"""An op of a tensor, another one, the input of the function, and the random choices."""


def random_signatures(seed: int, count: int) -> dict[str, Any]:
    """Returns signatures `x: float32[?,4] -> y` of random functions, up to `count`.

    One of four does not say how many columns there are.
    """
    choices = random.Random(seed)
    signatures: dict[str, Any] = {}
    for number in range(count):
        columns = choices.choice([4, 4, 4, None])
        # Some functions fail as they are traced, for shapes that no op accepts.
        try:
            signatures |= matrix_signatures(
                {f"random_{number}": _random_function(choices)}, columns
            )
        except (ValueError, TypeError):
            continue
    return signatures


def rows_differ(signature: Any, seed: int) -> bool:
    """Returns True if a row gives something else in some batch than alone."""
    random = np.random.default_rng(seed)
    return any(_differ_in_a_batch(signature, x, random) for x in _draws(random))


def _draws(random: Any) -> list[Any]:
    """Returns matrices: of common numbers, of whole ones, and with rare ones in two of the rows."""
    common = random.normal(scale=3.0, size=(ROW_COUNT, 4))
    rare = common.copy()
    for at, value in zip(random.permutation(ROW_COUNT), random.choice(RARE, 2, replace=False)):
        rare[at, random.integers(4)] = value
    draws = [common, random.integers(-1, 4, (ROW_COUNT, 4)), rare]
    return [draw.astype(np.float32) for draw in draws]


def _differ_in_a_batch(signature: Any, x: Any, random: Any) -> bool:
    alone = [_run(signature, x[at : at + 1]) for at in range(ROW_COUNT)]
    member_lists = [list(range(rows)) for rows in range(2, ROW_COUNT + 1)]
    member_lists += [list(random.integers(0, ROW_COUNT, rows)) for rows in (2, 3, 4)]
    for members in member_lists:
        batch = _run(signature, x[members])
        if (
            batch is None
            or batch is CHECK_FAILED
            or batch.ndim == 0
            or batch.shape[0] != len(members)
        ):
            continue
        for place, row in enumerate(members):
            # Its check fails alone, and not in this batch.
            if alone[row] is CHECK_FAILED:
                return True
            if alone[row] is not None and not _is_close(alone[row], batch[place : place + 1]):
                return True
    return False


def _run(signature: Any, x: Any) -> Any:
    """Returns `y`; CHECK_FAILED or None if the run fails: a batch that fails is run one by one."""
    import tensorflow as tf

    try:
        return np.asarray(signature(x=tf.constant(x))["y"])
    except tf.errors.OpError as error:
        return CHECK_FAILED if "assertion failed" in str(error) else None


def _is_close(a: Any, b: Any) -> bool:
    finite = np.abs(a[np.isfinite(a)])
    scale = max(1.0, finite.max()) if finite.size else 1.0
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-3 * scale, equal_nan=True)


def _random_function(choices: random.Random) -> Callable[[Any], Any]:
    import tensorflow as tf

    groups = [
        *(_arithmetic, _arrangements, _parts, _products, _reductions, _slices, _gathers, _lists),
        *(_conditionals, _loops, _texts, _images, _raw_ops),
    ]
    ops = [op for group in groups for op in group()]
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


def _products() -> list[Op]:
    import tensorflow as tf

    def einsum(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        tensors = c.choice([[t], [t, o], [t, t], [t, o, x]])
        terms = ["".join(c.sample("abcd", tensor.shape.rank)) for tensor in tensors]
        if c.random() < 0.3:
            terms = ["..." + term[c.randint(1, len(term)) :] for term in terms]
        labels = sorted(set("".join(terms)) - {"."})
        result = "".join(c.sample(labels, c.randint(min(1, len(labels)), len(labels))))
        dots = "..." if "..." in terms[0] else ""
        return tf.einsum(f"{','.join(terms)}->{dots}{result}", *tensors)

    def interleaved(x: Any) -> Any:
        return tf.space_to_batch(x, [2], [[0, 0]])

    return [
        einsum,
        einsum,
        lambda t, o, x, c: tf.einsum(
            c.choice(["ab,ab->a", "ab,ab->ba"]),
            interleaved(x),
            tf.reshape(c.choice([x, t]), [-1, 2]),
        ),
        lambda t, o, x, c: tf.linalg.matmul(
            t[:, tf.newaxis], o, adjoint_a=c.random() < 0.5, adjoint_b=c.random() < 0.5
        ),
        lambda t, o, x, c: tf.linalg.matvec(o, t, transpose_a=c.random() < 0.5),
        lambda t, o, x, c: tf.tensordot(t, o, [[_axis(t, c)], [_axis(o, c)]]),
        lambda t, o, x, c: tf.linalg.cross(t[..., :3], o[..., :3]),
        lambda t, o, x, c: tf.nn.bias_add(t, tf.ones([2]), c.choice(["NHWC", "NCHW"])),
        lambda t, o, x, c: tf.linalg.set_diag(t, o),
        lambda t, o, x, c: tf.linalg.diag_part(t, k=c.choice([0, (0, 1), (-1, 0)])),
        lambda t, o, x, c: tf.linalg.diag(t, k=c.choice([0, 1, (0, 1), (-1, 0)])),
    ]


def _some_axis(t: Any, x: Any, choices: random.Random) -> Any:
    """Returns an axis that the graph computes: by a shape, by the rows, by what a list has."""
    import tensorflow as tf

    unset = tf.TensorArray(tf.int32, size=2, element_shape=[]).write(0, 1)
    return choices.choice(
        [
            tf.rank(t) - 1,
            tf.range(1, tf.rank(t)),
            tf.range(tf.rank(t))[:-1],
            tf.shape(t)[-1] % t.shape.rank,
            tf.minimum(_rows(x), t.shape.rank - 1),
            tf.cast(tf.reduce_max(x) > 3, tf.int32),
            tf.clip_by_value(tf.cast(tf.reduce_max(x), tf.int32), 1, 1),
            tf.minimum(tf.constant(65536) * tf.constant(65536), 1),
            unset.read(choices.randrange(2)),
            tf.zeros([0], tf.int32),
        ]
    )


def _reductions() -> list[Op]:
    import tensorflow as tf

    reductions = [tf.reduce_sum, tf.reduce_max, tf.reduce_prod, tf.norm, tf.reduce_logsumexp]
    return [
        lambda t, o, x, c: c.choice(reductions)(t, axis=_axis(t, c), keepdims=c.random() < 0.5),
        lambda t, o, x, c: tf.reduce_sum(t, axis=_some_axis(t, x, c), keepdims=c.random() < 0.5),
        lambda t, o, x, c: tf.cast(
            tf.reduce_any(t > 3, axis=[_axis(t, c)], keepdims=c.random() < 0.5), tf.float32
        ),
        lambda t, o, x, c: tf.cast(tf.argmin(t, _some_axis(t, x, c)), tf.float32),
        lambda t, o, x, c: tf.cumsum(
            t, _some_axis(t, x, c), exclusive=c.random() < 0.5, reverse=c.random() < 0.5
        ),
        lambda t, o, x, c: tf.math.cumulative_logsumexp(t, axis=_axis(t, c)),
        lambda t, o, x, c: tf.math.segment_sum(t, tf.range(_rows(x))),
        lambda t, o, x, c: tf.math.unsorted_segment_max(t, _index(o), 2),
        lambda t, o, x, c: tf.math.bincount(_index(t), minlength=2, axis=-1, dtype=tf.float32),
        lambda t, o, x, c: t - tf.nn.moments(t, [_axis(t, c)], keepdims=True)[0],
        lambda t, o, x, c: tf.nn.l2_normalize(t, axis=[_axis(t, c), _axis(t, c)]),
    ]


def _slices() -> list[Op]:
    import tensorflow as tf

    def sliced(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        ends = [None, 1, -1, 2, 2**31 - 1, _rows(x), tf.shape(t)[0], tf.shape(t)[-1]]
        parts = [0, -1, ..., tf.newaxis, _rows(x) - 1, slice(None), slice(None), slice(None)]
        parts += [
            slice(c.choice([None, 0, 1]), c.choice(ends), c.choice([None, 2])),
            slice(1, None),
        ]
        parts += [slice(None, None, -1), slice(None, c.choice(ends))]
        return t[tuple(c.choice(parts) for _ in range(c.randint(1, t.shape.rank + 1)))]

    def masked(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        count = c.randint(1, t.shape.rank + 1)
        ends = [c.choice([0, 1, 4, _rows(x)]) for _ in range(count)]
        names = ["begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"]
        masks = {name: c.getrandbits(count) & c.getrandbits(count) for name in names}
        masks["begin_mask"] |= 1
        masks["end_mask"] |= c.getrandbits(count)
        begins = [c.choice([0, 0, 1, -1]) for _ in range(count)]
        return tf.raw_ops.StridedSlice(
            input=t, begin=begins, end=tf.stack(ends), strides=[1] * count, **masks
        )

    return [
        sliced,
        sliced,
        masked,
        lambda t, o, x, c: tf.boolean_mask(t, o > 0),
        lambda t, o, x, c: tf.raw_ops.Squeeze(
            input=t[tf.newaxis, tf.newaxis], axis=[c.choice([0, 1, -t.shape.rank - 1])] * 2
        ),
        lambda t, o, x, c: tf.squeeze(t[tf.newaxis], c.sample([0, 1, -1], c.randrange(2))),
        lambda t, o, x, c: tf.slice(
            t,
            [c.choice([0, 0, 0, 1]) for _ in range(t.shape.rank)],
            [c.choice([-1, -1, 1, _rows(x)]) for _ in range(t.shape.rank)],
        ),
        lambda t, o, x, c: tf.split(t, [1, -1], axis=_axis(t, c))[c.randrange(2)],
        lambda t, o, x, c: tf.unstack(tf.transpose(t), axis=_axis(t, c))[0],
    ]


def _gathers() -> list[Op]:
    import tensorflow as tf

    def gathered(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        of, by = c.sample([t, o], 2)
        batch_dims = c.randrange(-1, min(of.shape.rank, by.shape.rank) + 1)
        return tf.gather(of, _index(by), axis=_axis(of, c), batch_dims=batch_dims)

    return [
        gathered,
        gathered,
        lambda t, o, x, c: tf.gather_nd(t, _index(o), batch_dims=c.randrange(2)),
        lambda t, o, x, c: tf.gather(t, tf.range(_rows(x)), axis=_axis(t, c)),
        lambda t, o, x, c: tf.gather(t, tf.argsort(t[..., 0]), axis=0),
        lambda t, o, x, c: tf.tensor_scatter_nd_add(
            t, tf.constant([[0], [0]]), tf.ones([2, *t.shape[1:]])
        ),
        lambda t, o, x, c: tf.scatter_nd(_index(t[..., :1]), t, [2, *t.shape[1:]]),
        lambda t, o, x, c: tf.dynamic_partition(t, _index(o), 2)[c.randrange(2)],
        lambda t, o, x, c: tf.dynamic_stitch([tf.range(_rows(x))], [t]),
        lambda t, o, x, c: tf.reverse_sequence(
            t, _index(x[:, 0]) + 1, seq_axis=c.randrange(t.shape.rank), batch_axis=c.randrange(2)
        ),
        lambda t, o, x, c: tf.where(t[:, 0] > 0, t[:, 0], o[..., 0]),
        lambda t, o, x, c: tf.compat.v1.where(c.choice([t, o])[..., 0] > 0, t, o),
        lambda t, o, x, c: tf.cast(tf.where(t > 0), tf.float32),
        lambda t, o, x, c: tf.cast(tf.searchsorted(t, o), tf.float32),
        lambda t, o, x, c: tf.cast(tf.math.in_top_k(_index(x[:, 0]), t, 1), tf.float32),
    ]


def _lists() -> list[Op]:
    import tensorflow as tf

    def some_size(x: Any, c: random.Random) -> Any:
        return c.choice([2, 2, 3, _rows(x), tf.minimum(_rows(x), 2)])

    def array(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        made = tf.TensorArray(tf.float32, some_size(x, c), infer_shape=False)
        for _ in range(c.randint(1, 2)):
            made = made.write(c.randrange(2), c.choice([t, t, o, tf.ones_like(t)]))
        return c.choice([made.stack, made.concat, lambda: made.read(c.randrange(2))])()

    def raw_list(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        made = tf.raw_ops.TensorListReserve(
            element_shape=-1, num_elements=some_size(x, c), element_dtype=tf.float32
        )
        made = tf.raw_ops.TensorListSetItem(input_handle=made, index=0, item=c.choice([t, o]))
        shape = c.choice([-1, [1, 4], [3, 4], tf.shape(t), tf.shape(o), [_rows(x), 4]])
        wanted = {"input_handle": made, "element_shape": shape, "element_dtype": tf.float32}
        if c.random() < 0.3:
            return tf.raw_ops.TensorListPopBack(**wanted)[1]
        if c.random() < 0.3:
            return tf.raw_ops.TensorListStack(**wanted)
        return tf.raw_ops.TensorListGetItem(index=c.randrange(2), **wanted)

    def scaled_by_size(t: Any, made: Any, x: Any) -> Any:
        return t * (1 + tf.cast(tf.shape(made)[0] // _rows(x), tf.float32))

    return [
        array,
        raw_list,
        lambda t, o, x, c: scaled_by_size(t, raw_list(t, o, x, c), x),
        lambda t, o, x, c: t / tf.cast(tf.TensorArray(tf.float32, some_size(x, c)).size(), t.dtype),
        lambda t, o, x, c: tf.TensorArray(tf.float32, tf.shape(t)[0]).unstack(t).stack(),
        lambda t, o, x, c: tf.TensorArray(tf.float32, 4).unstack(tf.transpose(t)).read(1),
    ]


def _predicate(t: Any, o: Any, x: Any, choices: random.Random) -> Any:
    import tensorflow as tf

    value = choices.choice([t, o, o, tf.cast(_rows(x), tf.float32) / 2])
    two = tf.cast(tf.constant(2), tf.float32)
    return choices.choice(
        [
            tf.reduce_sum(value) > 1,
            tf.reduce_any(tf.math.is_nan(value)),
            tf.reduce_max(value) >= 777,
            tf.minimum(tf.maximum(tf.reduce_max(value), two), two) > 1,
            tf.clip_by_value(tf.size(value), 2, 2) > 1,
            tf.shape(value)[-1:] > 1 if value.shape.rank else tf.constant(True),
            tf.rank(value) > 1,
        ]
    )


def _conditionals() -> list[Op]:
    import tensorflow as tf

    def case(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        at = c.choice([tf.shape(t)[-1] - 2, _rows(x) - 1, _index(tf.reduce_max(x)), tf.rank(o) - 1])
        return tf.switch_case(at, [lambda: t, lambda: t * 2, lambda: t + 1])

    def nested(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        inner = merged(_predicate(t, o, x, c), lambda: tf.constant(2.0), lambda: tf.constant(1.0))
        return t * merged(_predicate(o, o, x, c), lambda: inner, lambda: tf.constant(3.0))

    def checked(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        value = c.choice([t, t, o])
        checks = [
            tf.reduce_all(value < 5),
            tf.reduce_any(value < 5),
            tf.reduce_max(value) < 5,
            tf.reduce_max(value) > 5,
            tf.reduce_mean(value) < 5,
            tf.logical_not(tf.reduce_any(value > 5)),
            tf.logical_not(tf.reduce_max(value) > 5),
            tf.logical_and(tf.reduce_min(value) > -5, tf.reduce_max(value) <= 5),
            tf.equal(tf.shape(t)[0], _rows(x)),
            _rows(x) > 1,
        ]
        check, guard = c.choice(checks), c.choice([None, None, *checks])

        def tell() -> Any:
            with tf.control_dependencies([tf.debugging.Assert(check, [t])]):
                return tf.constant(0.0)

        told = tell() if guard is None else tf.cond(guard, lambda: tf.constant(0.0), tell)
        with tf.control_dependencies([told]):
            return tf.identity(t)

    return [
        case,
        nested,
        checked,
        checked,
        lambda t, o, x, c: tf.cond(_predicate(t, o, x, c), lambda: t, lambda: t * 2),
        lambda t, o, x, c: tf.cond(_predicate(t, o, x, c), lambda: t, lambda: o),
        lambda t, o, x, c: tf.cond(_rows(x) > 2, lambda: t, lambda: t * 2),
        lambda t, o, x, c: (
            t * merged(_predicate(t, o, x, c), lambda: tf.constant(2.0), lambda: tf.constant(1.0))
        ),
        lambda t, o, x, c: merged(_predicate(t, o, x, c), lambda: t * 3, lambda: o + t),
    ]


def _loops() -> list[Op]:
    import tensorflow as tf

    def loop(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        shapes = [tf.TensorShape([]), tf.TensorShape([None] * t.shape.rank)]
        turns = [
            lambda i, y: y + o,
            lambda i, y: y * tf.cast(i, tf.float32),
            lambda i, y: tf.transpose(y),
            lambda i, y: tf.roll(y, 1, i % 2),
            lambda i, y: tf.concat([y, y], -1),
            lambda i, y: y + tf.reduce_sum(y, i, keepdims=True),
        ]
        made = c.choice(turns)
        last = c.choice([3, 3, 0, _rows(x), tf.shape(t)[-1], tf.cast(tf.reduce_max(t), tf.int32)])
        goes_on = c.choice(
            [
                lambda i, y: i < last,
                lambda i, y: (i < 3) & (tf.reduce_max(y) < 9),
                lambda i, y: i < tf.clip_by_value(tf.cast(tf.reduce_max(y), tf.int32), 2, 2),
            ]
        )
        first = c.choice([0, 1])
        turn = lambda i, y: (i + 1, made(i, y))  # noqa: E731
        return tf.while_loop(
            goes_on, turn, [first, t], shape_invariants=shapes, maximum_iterations=9
        )[1]

    return [
        loop,
        loop,
        lambda t, o, x, c: tf.transpose(tf.scan(tf.add, tf.transpose(t))),
        lambda t, o, x, c: tf.scan(tf.add, t),
        lambda t, o, x, c: tf.foldl(tf.add, c.choice([t, tf.transpose(t)])),
        lambda t, o, x, c: tf.map_fn(lambda row: row - tf.reduce_max(row), t),
        lambda t, o, x, c: tf.map_fn(lambda row: tf.cumsum(row), tf.transpose(t)),
        lambda t, o, x, c: tf.raw_ops.MapDefun(
            arguments=[c.choice([t, tf.transpose(t), o])],
            captured_inputs=[],
            output_types=[tf.float32],
            output_shapes=[[None] * (t.shape.rank - 1)],
            f=tf.function(
                lambda row: row + tf.random.uniform([]), autograph=False
            ).get_concrete_function(tf.TensorSpec([None] * (t.shape.rank - 1), tf.float32)),
        )[0],
    ]


def _texts() -> list[Op]:
    import tensorflow as tf

    def text(t: Any) -> Any:
        return tf.strings.as_string(tf.cast(t, tf.int32))

    def numbers(texts: Any) -> Any:
        return tf.cast(tf.strings.to_hash_bucket_fast(texts, 1000), tf.float32)

    return [
        lambda t, o, x, c: tf.strings.to_number(text(t)),
        lambda t, o, x, c: numbers(tf.strings.join([text(t), text(o)])),
        lambda t, o, x, c: numbers(
            tf.strings.reduce_join(text(t), c.choice([_axis(t, c), []]), keepdims=c.random() < 0.5)
        ),
        lambda t, o, x, c: numbers(tf.strings.reduce_join(text(t), _some_axis(t, x, c))),
        lambda t, o, x, c: numbers(tf.strings.substr(text(t), _index(o), _index(t) + 1)),
        lambda t, o, x, c: tf.cast(
            tf.io.decode_raw(tf.strings.as_string(_index(t)), tf.uint8), tf.float32
        ),
        lambda t, o, x, c: numbers(tf.strings.split(tf.reshape(text(t), [-1]), "1").to_tensor()),
        lambda t, o, x, c: numbers(tf.strings.format("{}", t)) + t,
        lambda t, o, x, c: tf.cast(tf.strings.length(text(t)), tf.float32),
    ]


def _images() -> list[Op]:
    import tensorflow as tf

    def image(t: Any, x: Any, c: random.Random) -> Any:
        return tf.reshape(
            t, c.choice([[-1, 2, 2, 1], [_rows(x), -1, 2, 1], [1, -1, 4, 1], [-1, 1, 2, 2]])
        )

    def transposed(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        sizes = [[_rows(x), 4, 4, 1], [_rows(x), 2], [4, 4], [_rows(x), _rows(x), 4, 1]]
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.stack(c.choice(sizes)),
            filter=tf.reshape(tf.range(9.0), [3, 3, 1, 1]),
            out_backprop=image(t, x, c),
            strides=[1, 2, 2, 1],
            padding="SAME",
        )

    def normalized(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        made = image(t, x, c)
        ones = tf.ones([made.shape[-1]])
        statistics = {"mean": ones, "variance": ones}
        is_training = c.random() < 0.5
        if is_training:
            statistics = {"mean": [], "variance": []}
        return tf.raw_ops.FusedBatchNormV3(
            x=made, scale=ones, offset=ones, is_training=is_training, **statistics
        )[0]

    return [
        transposed,
        transposed,
        normalized,
        lambda t, o, x, c: tf.nn.conv2d(image(t, x, c), tf.ones([2, 2, 1, 2]), 1, "SAME"),
        lambda t, o, x, c: tf.nn.pool(image(t, x, c), [2, 2], "MAX", padding="SAME"),
        lambda t, o, x, c: tf.raw_ops.MaxPoolV2(
            input=image(t, x, c),
            ksize=c.choice([[1, 2, 2, 1], [2, 1, 1, 1], [1, 1, 1, 2]]),
            strides=[1, 1, 1, 1],
            padding="SAME",
        ),
        lambda t, o, x, c: tf.image.extract_patches(
            image(t, x, c),
            c.choice([[1, 2, 2, 1], [2, 1, 1, 1]]),
            [1, 1, 1, 1],
            [1, 1, 1, 1],
            "SAME",
        ),
        lambda t, o, x, c: tf.nn.depth_to_space(image(t, x, c), 1),
        lambda t, o, x, c: tf.nn.space_to_depth(image(t, x, c), 2),
        lambda t, o, x, c: tf.nn.local_response_normalization(image(t, x, c)),
        lambda t, o, x, c: tf.image.resize(image(t, x, c), c.choice([[3, 3], [_rows(x), 2]])),
        lambda t, o, x, c: tf.space_to_batch(
            image(t, x, c), c.choice([[2, 1], [1, 2], [2, 2], [1, 1]]), [[0, 0], [0, 0]]
        ),
        lambda t, o, x, c: tf.raw_ops.BatchToSpaceND(
            input=tf.nn.relu(
                tf.space_to_batch(image(t, x, c), c.choice([[2, 1], [2, 2]]), [[0, 0]] * 2)
            ),
            block_shape=c.choice([[1, 2], [2, 1], [2, 2], [4, 1], [1, 1]]),
            crops=[[0, c.randrange(2)], [0, 0]],
        ),
        lambda t, o, x, c: tf.raw_ops.BatchToSpaceND(
            input=image(t, x, c), block_shape=[2, 1], crops=[[0, 0]] * 2
        ),
    ]


def _raw_ops() -> list[Op]:
    import tensorflow as tf

    def quantized(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        axis = c.choice([-1, -1, *range(t.shape.rank)])
        size = [] if axis < 0 else [c.choice([1, 2, 3, 4])]
        return tf.raw_ops.QuantizeAndDequantizeV4(
            input=t,
            input_min=tf.cast(tf.fill(size, -2.0), tf.float32),
            input_max=tf.cast(tf.fill(size, 2.0), tf.float32),
            range_given=c.random() < 0.8,
            axis=axis,
        )

    def products_of_size(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        factor = c.choice([3, 1 << 30])
        by_rows = (_rows(x) * tf.constant(factor)) // _rows(x)
        return t * tf.cast(by_rows // factor, tf.float32)

    def ints_in_shape_of_rows(t: Any, o: Any, x: Any, c: random.Random) -> Any:
        ints = tf.reshape(tf.constant([1, 2, 3, 4, 5, 6]), tf.stack([_rows(x), -1]))
        return t[:, :1, tf.newaxis] + tf.cast(ints, tf.float32)

    return [
        quantized,
        products_of_size,
        ints_in_shape_of_rows,
        lambda t, o, x, c: (
            t
            * tf.math.floordiv(0 * tf.cast(_rows(x), tf.float32), tf.cast(_rows(x) - 3, tf.float32))
        ),
        lambda t, o, x, c: tf.pad(
            t,
            [[c.choice([0, 0, 1]), c.choice([0, 0, 1])] for _ in range(t.shape.rank)],
            c.choice(["REFLECT", "SYMMETRIC", "CONSTANT"]),
        ),
        lambda t, o, x, c: tf.roll(t, [1, 1], [_axis(t, c), _axis(t, c)]),
        lambda t, o, x, c: (
            tf.raw_ops.FractionalMaxPool(
                value=tf.reshape(tf.range(16.0), [1, 4, 4, 1]), pooling_ratio=[1.0, 1.5, 1.5, 1.0]
            )[0][0, 0, :1, 0]
            * t
        ),
        lambda t, o, x, c: tf.raw_ops.FakeQuantWithMinMaxVarsPerChannel(
            inputs=t, min=-tf.ones([4]), max=tf.ones([4])
        ),
        lambda t, o, x, c: tf.raw_ops.Bucketize(input=t, boundaries=[0.0, 1.0]) * 1.0,
        lambda t, o, x, c: tf.cast(
            tf.raw_ops.Equal(x=t, y=o, incompatible_shape_error=False), tf.float32
        ),
        lambda t, o, x, c: (
            tf.random.stateless_uniform(c.choice([tf.shape(t), tf.shape(o), [1, 4]]), [1, 2]) * t
        ),
        lambda t, o, x, c: t * tf.linalg.svd(o[..., tf.newaxis, :], compute_uv=False),
        lambda t, o, x, c: (
            t
            * tf.cast(
                tf.shape(
                    tf.raw_ops.Svd(input=t[..., tf.newaxis, :], compute_uv=False)[c.randrange(1, 3)]
                )[0],
                tf.float32,
            )
        ),
        lambda t, o, x, c: tf.linalg.qr(t)[c.randrange(2)],
        lambda t, o, x, c: tf.linalg.inv(tf.linalg.matmul(t, t, transpose_b=True)),
        lambda t, o, x, c: tf.signal.frame(t, 2, 1, axis=_axis(t, c)),
        lambda t, o, x, c: tf.abs(tf.signal.rfft(t)),
        lambda t, o, x, c: tf.cast(tf.unique(t[..., 0])[1], tf.float32),
        lambda t, o, x, c: tf.broadcast_to(o, tf.concat([[_rows(x)], tf.shape(o)], 0)),
        lambda t, o, x, c: tf.tile(o, [_rows(x)] + [1] * (o.shape.rank - 1)),
        lambda t, o, x, c: t + tf.reshape(tf.range(tf.cast(_rows(x), tf.float32)), [-1, 1]),
        lambda t, o, x, c: tf.meshgrid(t[..., 0], o[..., 0])[c.randrange(2)],
        lambda t, o, x, c: tf.RaggedTensor.from_tensor(t, 0.0).to_tensor(),
        lambda t, o, x, c: tf.sparse.to_dense(tf.sparse.from_dense(t)),
        lambda t, o, x, c: tf.ensure_shape(t, [None] * t.shape.rank),
        lambda t, o, x, c: tf.identity_n([t, o])[c.randrange(2)],
        lambda t, o, x, c: tf.math.confusion_matrix(_index(t[..., 0]), _index(o[..., 0])) * 1.0,
    ]

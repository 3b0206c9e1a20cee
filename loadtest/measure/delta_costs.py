"""Measures what a delta has after steps of training, by optimizer, and what writing one costs."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving.base.clock import NS_PER_SECOND, Clock

TABLE_ROWS = 100_000
COLUMNS = 16
IDS_PER_STEP = 100
"""The ids of one step, drawn with equal chances: 0.1 % of the rows, nearly all of them different."""

STEP_COUNTS = (1, 10, 100)

_LEARNING_RATE = 0.01

ApplyStep = Callable[[Sequence[Any], Sequence[Any]], object]
"""Applies gradients to the variables."""


@dataclass(frozen=True, kw_only=True)
class ChangedShares:
    """The shares of a table's rows that differ from a base, by the number of steps since then.

    `from_start` is of a base of before the first step, and `from_trained` of one after 100 steps.
    """

    from_start: Mapping[int, float]
    from_trained: Mapping[int, float]


def keras_optimizers() -> Mapping[str, Callable[[], Any]]:
    """The optimizers of Keras 3, by name."""
    from keras import optimizers as keras

    return {
        "SGD": lambda: keras.SGD(_LEARNING_RATE),
        "SGD, momentum 0.9": lambda: keras.SGD(_LEARNING_RATE, momentum=0.9),
        "Adagrad": lambda: keras.Adagrad(_LEARNING_RATE),
        "RMSprop": lambda: keras.RMSprop(_LEARNING_RATE),
        "Adam": lambda: keras.Adam(_LEARNING_RATE),
        "AdamW": lambda: keras.AdamW(_LEARNING_RATE),
        "FTRL": lambda: keras.Ftrl(_LEARNING_RATE),
        "Adagrad, weight_decay": lambda: keras.Adagrad(_LEARNING_RATE, weight_decay=0.001),
    }


def first_optimizers() -> Mapping[str, Callable[[], Any]]:
    """The optimizers of `tf.compat.v1.train`, which have sparse kernels, by name."""
    import tensorflow as tf

    train = tf.compat.v1.train
    return {
        "GradientDescentOptimizer": lambda: train.GradientDescentOptimizer(_LEARNING_RATE),
        "MomentumOptimizer": lambda: train.MomentumOptimizer(_LEARNING_RATE, 0.9),
        "AdagradOptimizer": lambda: train.AdagradOptimizer(_LEARNING_RATE),
        "RMSPropOptimizer": lambda: train.RMSPropOptimizer(_LEARNING_RATE),
        "AdamOptimizer": lambda: train.AdamOptimizer(_LEARNING_RATE),
        "FtrlOptimizer": lambda: train.FtrlOptimizer(_LEARNING_RATE),
    }


def changed_shares(optimizer: Any, seed: int) -> ChangedShares:
    """Trains one table by an optimizer of Keras or of `tf.compat.v1.train`."""
    table, step = _trained_table(optimizer, seed)
    shares = [_shares_since(table, step) for _ in range(2)]
    return ChangedShares(from_start=shares[0], from_trained=shares[1])


def asked_shares(seed: int) -> Mapping[int, float]:
    """The shares of the rows that the steps ask for."""
    ids = _ids(seed)
    asked: set[int] = set()
    shares = {}
    for count in range(1, max(STEP_COUNTS) + 1):
        asked.update(next(ids).tolist())
        shares[count] = len(asked) / TABLE_ROWS
    return {count: shares[count] for count in STEP_COUNTS}


def _shares_since(table: Any, step: Callable[[], None]) -> Mapping[int, float]:
    before = table.numpy()
    shares = {}
    for count in range(1, max(STEP_COUNTS) + 1):
        step()
        if count in STEP_COUNTS:
            differs = (table.numpy().view(np.uint32) != before.view(np.uint32)).any(1)
            shares[count] = float(differs.mean())
    return shares


def _trained_table(optimizer: Any, seed: int) -> tuple[Any, Callable[[], None]]:
    """A table, and a step of its training towards random targets."""
    import keras
    import tensorflow as tf

    random = np.random.default_rng(seed)
    table = keras.Variable(random.normal(0, 0.05, (TABLE_ROWS, COLUMNS)).astype(np.float32))
    ids = _ids(seed)
    is_keras = isinstance(optimizer, keras.Optimizer)

    def step() -> None:
        targets = random.normal(size=(IDS_PER_STEP, COLUMNS)).astype(np.float32)
        with tf.GradientTape() as tape:
            found = tf.nn.embedding_lookup(table.value, next(ids))
            loss = tf.reduce_mean(tf.square(found - targets))
        gradient = tape.gradient(loss, table.value)
        optimizer.apply_gradients([(gradient, table if is_keras else table.value)])

    return table, step


def _ids(seed: int) -> Iterator[Any]:
    random = np.random.default_rng(seed + 1)
    return (random.integers(0, TABLE_ROWS, IDS_PER_STEP) for _ in itertools.count())


@dataclass(frozen=True, kw_only=True)
class WritingCosts:
    """A base and its delta: the bytes of both, and the median times."""

    base_bytes: int
    delta_bytes: int
    base_seconds: float
    delta_seconds: float
    named_seconds: float
    compared_seconds: float


def writing_costs(
    directory: Path,
    clock: Clock,
    *,
    rows: int = 600_000,
    changed_ratio: float = 0.01,
    runs: int = 7,
) -> WritingCosts:
    """Writes a base of two tables of `rows` × 16, and deltas in which `changed_ratio` of them differ.

    `named_seconds` is with the ids given, and `compared_seconds` is the comparison of one table.
    """
    import tensorflow as tf

    from millpond.delta import export_base, export_delta

    random = np.random.default_rng(1)
    module = tf.Module()
    module.tables = [
        tf.Variable(random.normal(size=(rows, COLUMNS)).astype(np.float32)) for _ in range(2)
    ]
    module.dense = tf.Variable(tf.ones([2 * COLUMNS, 4]))
    seconds, base = _timed(clock, lambda: export_base(module, directory / "1", signatures={}))
    changed = []
    for table in module.tables:
        ids = random.choice(rows, round(rows * changed_ratio), replace=False)
        table.scatter_nd_update(ids[:, np.newaxis], np.ones((len(ids), COLUMNS), np.float32))
        changed.append((table, ids))
    versions = (directory / str(number) for number in itertools.count(2))
    plain = [_timed(clock, lambda: export_delta(module, base, next(versions))) for _ in range(runs)]
    named = [
        _timed(clock, lambda: export_delta(module, base, next(versions), changed_ids=changed))
        for _ in range(runs)
    ]
    return WritingCosts(
        base_bytes=sum(path.stat().st_size for path in base.path.rglob("*") if path.is_file()),
        delta_bytes=plain[0][1].written_bytes,
        base_seconds=seconds,
        delta_seconds=_median(plain),
        named_seconds=_median(named),
        compared_seconds=_median(
            [_timed(clock, lambda: _compare(base.path, module.tables[0])) for _ in range(runs)]
        ),
    )


def _compare(base: Path, table: Any) -> Any:
    from millpond.checkpoint_index import read_index
    from millpond.delta.bases import open_base
    from millpond.delta.row_changes import LiveRows, StoredRows, changed_rows
    from millpond.version_files import PREFIX

    index = read_index(base / PREFIX)
    stored_table = open_base(base).tables[0]
    entry = index.entries[stored_table.key]
    shard = index.shard(entry.shard_id)
    with closing(StoredRows(shard, entry, stored_table.shape, stored_table.row_bytes)) as stored:
        return changed_rows(stored, LiveRows(table))


def _timed(clock: Clock, work: Callable[[], Any]) -> tuple[float, Any]:
    begin_ns = clock.now_ns()
    result = work()
    return (clock.now_ns() - begin_ns) / NS_PER_SECOND, result


def _median(runs: Sequence[tuple[float, Any]]) -> float:
    return float(np.median([seconds for seconds, _ in runs]))

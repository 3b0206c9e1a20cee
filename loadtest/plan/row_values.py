"""The contents of the trained model's tables, as a function of table, row and version. Pure.

So a trainer's process writes rows that a client can check without the tables. All numbers are multiples of 1/64
below 2**18, so float32 sums of them are exact in any order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.base.errors import InvalidConfig

TABLE_COUNT = 2
COLUMN_COUNT = 16
OUTPUT_COUNT = 4
ROW_BYTES = 4 * COLUMN_COUNT

MARK_COUNT = 4
"""The rows of each table that change in every version, so that an answer shows which version it is of."""

Ids = npt.NDArray[np.int64]

# Odd, so that neighbouring rows differ, and near the golden ratio of 64 bits.
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FRACTIONS = 64


@dataclass(frozen=True)
class RowValues:
    """Two tables of `row_count` rows, of which `pool_count` change now and then, as those of popular ids do.

    In each version after the first, `step_count` rows of each table change. If the tables are sparse, rows that
    have never changed are zeros, so that a base's file needs no disk.
    """

    row_count: int
    pool_count: int
    step_count: int
    seed: int
    is_sparse: bool = False

    @classmethod
    def sized(
        cls,
        table_bytes: float,
        pool_ratio: float,
        step_count: int | None,
        seed: int,
        *,
        is_sparse: bool = False,
    ) -> "RowValues":
        """Tables of `table_bytes` together. Without `step_count`, all rows of the pool change each time.

        Raises InvalidConfig if the tables are too small, or the pool smaller than a step.
        """
        row_count = round(table_bytes / TABLE_COUNT / ROW_BYTES)
        pool_count = round(pool_ratio * row_count)
        steps = pool_count if step_count is None else step_count
        if not MARK_COUNT <= steps <= pool_count:
            raise InvalidConfig(
                f"{steps:,} rows of each table would change at a time, of the {pool_count:,} rows that may "
                f"change: give at least {MARK_COUNT}, and not more than there are"
            )
        return cls(row_count, pool_count, steps, seed, is_sparse)

    @property
    def table_bytes(self) -> int:
        return TABLE_COUNT * self.row_count * ROW_BYTES

    @property
    def pool_stride(self) -> int:
        """The rows from one of the pool to the next one: the pool is spread evenly over a table."""
        return self.row_count // self.pool_count

    def pool_ids(self, positions: Ids) -> Ids:
        """The rows at these positions of the pool."""
        return positions * self.pool_stride

    @property
    def marks(self) -> Ids:
        """The rows that change in every version."""
        return self.pool_ids(np.arange(MARK_COUNT))

    def changed_ids(self, table: int, version: int) -> Ids:
        """The rows that `version` changes, ascending; none in version 1."""
        if version < 2:
            return np.empty(0, np.int64)
        if self.step_count == self.pool_count:
            return self.pool_ids(np.arange(self.pool_count))
        drawn = np.random.default_rng([self.seed, table, version]).choice(
            self.pool_count - MARK_COUNT, self.step_count - MARK_COUNT, replace=False, shuffle=False
        )
        positions = np.concatenate([np.arange(MARK_COUNT), drawn + MARK_COUNT])
        return np.sort(self.pool_ids(positions))

    def rows(self, table: int, ids: Ids, last_changed: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """The rows of `ids`, which changed last in the versions `last_changed`, 0 for never."""
        return np.repeat(self._numbers(table, ids, last_changed)[:, np.newaxis], COLUMN_COUNT, 1)

    def answers(self, ids: Ids, version_count: int) -> npt.NDArray[np.float32]:
        """The output `y` for `ids` of the versions 0 (as 1) to `version_count`, [versions, ids, outputs]."""
        sums = np.zeros((version_count + 1, len(ids)), np.float32)
        for table in range(TABLE_COUNT):
            last_changed = np.zeros(len(ids), np.int64)
            for version in range(version_count + 1):
                last_changed[_are_in(ids, self.changed_ids(table, version))] = version
                sums[version] += self._numbers(table, ids, last_changed)
        answers: npt.NDArray[np.float32] = COLUMN_COUNT * sums[:, :, np.newaxis] * dense()[0]
        return answers

    def _numbers(
        self, table: int, ids: Ids, last_changed: npt.ArrayLike
    ) -> npt.NDArray[np.float32]:
        """The number in all columns of a row: its version, and 64ths that depend on the row."""
        with np.errstate(over="ignore"):
            mixed: Any = (ids.astype(np.uint64) * np.uint64(TABLE_COUNT) + np.uint64(table)) * _MIX
        numbers: npt.NDArray[np.float32] = (mixed >> np.uint64(58)).astype(np.float32)
        numbers /= np.float32(_FRACTIONS)
        if self.is_sparse:
            numbers *= np.asarray(last_changed) > 0
        numbers += np.asarray(last_changed, np.float32)
        return numbers


def dense() -> npt.NDArray[np.float32]:
    """The weights from the columns of both tables to the outputs: 1, 2, 3 and 4."""
    weights = np.arange(1, OUTPUT_COUNT + 1, dtype=np.float32)
    return np.broadcast_to(weights, (TABLE_COUNT * COLUMN_COUNT, OUTPUT_COUNT))


def _are_in(ids: Ids, ascending: Ids) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(ids), np.bool_)
    places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[places] == ids
    return found

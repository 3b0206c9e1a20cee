"""Judges how many rows of its tables a delta has.

Stands beside the package `millpond.delta`, which imports TensorFlow.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.base.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from millpond.delta.row_changes import Ids

CHANGED_RATIO_MAX = 0.2
"""The largest share of all rows that a delta may have. Above it, a new base costs a server little more."""

KEPT_ROWS_SHARE = 4
"""A server keeps the replaced rows of a table for this part of its rows (`native/memory/table_store.cc`)."""

KEPT_TABLE_BYTES_MIN = 2**20
"""A server reads smaller tables for each version (`native/tf/table_plan.h`)."""


class ManyRowsChanged(UserWarning):
    """A table has changed so much that a server reads it in full for later deltas."""


@dataclass(frozen=True)
class TableChange:
    """The rows of a table that a delta has."""

    name: str
    row_count: int
    row_bytes: int
    ids: Ids

    @property
    def ratio(self) -> float:
        return len(self.ids) / self.row_count

    @property
    def can_be_undone(self) -> bool:
        """False if a server cannot undo the rows, and has to read a table that is large."""
        is_small = self.row_count * self.row_bytes < KEPT_TABLE_BYTES_MIN
        return is_small or len(self.ids) <= self.row_count // KEPT_ROWS_SHARE


def check_ratio(ratio_max: float) -> None:
    """Raises InvalidArgument if it is no share of the rows."""
    if not 0 <= ratio_max <= 1:
        raise InvalidArgument(f"changed_ratio_max is {ratio_max:g}: give a share from 0 to 1")


def check_changes(changes: Sequence[TableChange], ratio_max: float) -> None:
    """Raises FailedPrecondition if more than `ratio_max` of all rows have changed.

    Warns the caller's caller of each table that a server will read in full, with ManyRowsChanged.
    """
    changed = sum(len(item.ids) for item in changes)
    rows = sum(item.row_count for item in changes)
    if changed > ratio_max * rows:
        shares = ", ".join(f"{item.name} {item.ratio:.1%}" for item in changes)
        raise FailedPrecondition(
            f"{changed:,} of {rows:,} rows have changed ({shares}), and at most {ratio_max:.1%} may: "
            "export a new base, or train as docs/delta.md says"
        )
    for item in changes:
        if not item.can_be_undone:
            warnings.warn(
                f"{item.name}: {item.ratio:.1%} of its rows have changed, and a server keeps the old rows of "
                f"{1 / KEPT_ROWS_SHARE:.0%} at most: for later deltas it reads the table in full; export a new base",
                ManyRowsChanged,
                stacklevel=3,
            )

"""The weights of two deltas of the CTR model, and the right answers of both. Pure.

Delta 1 and delta 2 have the tables of a base, but for one row in a hundred, and layers of their own. So of two
deltas one row in fifty differs.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from serving.commands.ctr_model import TABLE_COUNT, answer_to_rows, table_rows_of

BASE = 0
"""The version of the CTR model whose tables the base has."""

_CHANGED_ONE_OF = 100

Array = npt.NDArray[Any]


def is_changed(delta: int, ids: Array, table_rows: int) -> npt.NDArray[np.bool_]:
    """Says which of the ids are of rows that the delta has changed."""
    changed: npt.NDArray[np.bool_] = ids % table_rows % _CHANGED_ONE_OF == delta
    return changed


def changed_ids(delta: int, table_rows: int) -> Array:
    """The rows of each table that the delta has changed: int64[rows]."""
    ids = np.arange(table_rows, dtype=np.int64)
    return ids[is_changed(delta, ids, table_rows)]


def delta_answer(delta: int, inputs: dict[str, Array], table_rows: int) -> Array:
    """The output `ctr` with which the delta must answer: float64[rows, 1]. Ids count modulo `table_rows`."""
    embeddings = []
    for table in range(TABLE_COUNT):
        ids = inputs["sparse"][:, table]
        own, before = (table_rows_of(v, table, ids, table_rows) for v in (delta, BASE))
        changed = is_changed(delta, ids, table_rows)
        embeddings.append(np.where(changed[:, np.newaxis], own, before))
    return answer_to_rows(delta, embeddings, inputs["dense"])

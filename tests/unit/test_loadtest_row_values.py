from dataclasses import replace

import numpy as np
import pytest

from loadtest.plan.row_values import (
    COLUMN_COUNT,
    MARK_COUNT,
    ROW_BYTES,
    TABLE_COUNT,
    RowValues,
    dense,
)
from serving.base.errors import InvalidConfig

VALUES = RowValues(row_count=500, pool_count=50, step_count=10, seed=3)


def test_tables_of_a_size_have_so_many_rows():
    values = RowValues.sized(2 * 10_000 * ROW_BYTES, 0.01, 20, seed=1)
    assert (values.row_count, values.pool_count, values.step_count) == (10_000, 100, 20)
    assert values.table_bytes == 2 * 10_000 * ROW_BYTES


def test_all_of_the_pool_changes_without_a_step():
    values = RowValues.sized(2 * 10_000 * ROW_BYTES, 0.01, None, seed=1)
    assert values.changed_ids(0, 2).tolist() == list(range(0, 10_000, 100))


@pytest.mark.parametrize("step_count", [MARK_COUNT - 1, 101])
def test_step_beyond_marks_or_pool_is_refused(step_count: int):
    with pytest.raises(InvalidConfig, match=f"{step_count} rows of each table"):
        RowValues.sized(2 * 10_000 * ROW_BYTES, 0.01, step_count, seed=1)


def test_first_version_changes_nothing():
    assert len(VALUES.changed_ids(0, 1)) == 0


def test_each_version_changes_marks_and_others():
    pool = set(VALUES.pool_ids(np.arange(50)).tolist())
    changed = [set(VALUES.changed_ids(1, version).tolist()) for version in (2, 3)]
    for ids in changed:
        assert len(ids) == 10
        assert set(VALUES.marks.tolist()) <= ids <= pool
    assert changed[0] != changed[1]


def test_tables_change_different_rows():
    assert VALUES.changed_ids(0, 2).tolist() != VALUES.changed_ids(1, 2).tolist()


def test_answers_are_those_of_trained_tables():
    all_ids = np.arange(500)
    tables = [VALUES.rows(table, all_ids, 0) for table in range(TABLE_COUNT)]
    asked = np.random.default_rng(1).integers(0, 500, 200)
    answers = VALUES.answers(asked, 4)
    for version in range(1, 5):
        for table, rows in enumerate(tables):
            changed = VALUES.changed_ids(table, version)
            rows[changed] = VALUES.rows(table, changed, version)
        found = np.concatenate([rows[asked] for rows in tables], axis=1) @ dense()
        assert np.array_equal(found, answers[version])


def test_rows_differ_within_a_table_and_between_tables():
    rows = [VALUES.rows(table, np.arange(500), 0) for table in range(TABLE_COUNT)]
    assert rows[0].shape == (500, COLUMN_COUNT)
    assert all(len(np.unique(table[:, 0])) > 40 for table in rows)
    assert (rows[0] != rows[1]).mean() > 0.9


def test_sparse_rows_are_zeros_until_they_change():
    sparse = replace(VALUES, is_sparse=True)
    ids = np.arange(500)
    assert not sparse.rows(1, ids, 0).any()
    assert np.array_equal(sparse.rows(1, ids, 3), VALUES.rows(1, ids, 3))


def test_step_as_large_as_the_pool_changes_all_of_it():
    whole = replace(VALUES, step_count=VALUES.pool_count)
    assert np.array_equal(whole.changed_ids(0, 2), VALUES.pool_ids(np.arange(50)))

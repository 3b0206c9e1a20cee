"""Versions of the trained model that are written without TensorFlow, as TensorFlow and `fresh` see them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.drive.plain_tables import PlainTables
from loadtest.drive.trained_model import DELTA, FULL
from loadtest.drive.trainer import Trainer
from loadtest.drive.version_template import write_templates
from loadtest.plan.row_values import RowValues

# More rows than one piece of a table has, so that checksums are joined.
VALUES = {
    is_sparse: RowValues(1_100_000, 11_000, 500, seed=2, is_sparse=is_sparse)
    for is_sparse in (False, True)
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("templates")
    write_templates(directory)
    return directory


def answers_of(version: Path, ids: Any) -> tuple[Any, int]:
    import tensorflow as tf

    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    outputs = signature(ids=tf.constant(ids))
    return outputs["y"].numpy(), int(outputs["version"][0])


def ids_of(values: RowValues) -> Any:
    """Every row that ever changes, and as many others."""
    others = np.random.default_rng(3).integers(0, values.row_count, values.pool_count)
    return np.concatenate([values.pool_ids(np.arange(values.pool_count)), others])


@pytest.mark.parametrize("is_sparse", [False, True])
def test_tensorflow_answers_from_plain_files(templates: Path, tmp_path: Path, is_sparse: bool):
    values = VALUES[is_sparse]
    tables = PlainTables(tmp_path, values, templates)
    tables.publish_base()
    for version, export in ((2, tables.export_delta), (3, tables.export_delta)):
        tables.train(version)
        tables.publish(export(version))
    tables.train(4)
    tables.publish(tables.export_whole(4))
    ids = ids_of(values)
    expected = values.answers(ids, 4)
    for version in (1, 2, 3, 4):
        answer, number = answers_of(tables.base_path / str(version), ids)
        assert number == version
        np.testing.assert_array_equal(answer, expected[version])


def test_plain_base_is_a_base_and_deltas_link_to_it(templates: Path, tmp_path: Path):
    from millpond.delta import open_base

    tables = PlainTables(tmp_path, VALUES[False], templates)
    tables.publish_base()
    tables.train(2)
    written = tables.export_delta(2)
    assert written.own_bytes < 0.02 * VALUES[False].table_bytes
    base, delta = open_base(tables.base_path / "1"), open_base(written.path)
    assert base.identities == delta.identities
    assert [table.shape for table in base.tables] == [(1_100_000, 16)] * 2


def test_sparse_base_takes_no_disk(templates: Path, tmp_path: Path):
    tables = PlainTables(tmp_path, VALUES[True], templates)
    tables.publish_base()
    status = next(tables.base_path.glob("1/variables/*-00000-of-*")).stat()
    assert status.st_size == VALUES[True].table_bytes
    assert status.st_blocks == 0


@pytest.mark.parametrize("kind", [DELTA, FULL])
def test_trainer_with_templates_needs_no_tensorflow(
    templates: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    # As on a machine that has TensorFlow's messages and libraries, and no more of its package.
    (hiding / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('tensorflow.python'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{hiding}{os.pathsep}{os.getcwd()}")
    without = subprocess.run(
        [sys.executable, "-c", "import tensorflow"], check=False, capture_output=True
    )
    assert without.returncode != 0
    directory = tmp_path / "trained"
    directory.mkdir()
    with Trainer(directory, kind, VALUES[True], templates) as trainer:
        export = trainer.export(2)
    assert export.changed_row_count == 1_000
    answer, number = answers_of(trainer.base_path / "2", ids_of(VALUES[True]))
    assert number == 2
    np.testing.assert_array_equal(answer, VALUES[True].answers(ids_of(VALUES[True]), 2)[2])

"""Models without their weights, and the weights that a run computes."""

import os
from pathlib import Path

import pytest

from loadtest.drive.lean_models import Weights, dense_matrix, fill, make_lean

TABLE = Weights("table", (1, 3, 2_000))
MATRIX = Weights("dense", (0, 64, 512))
CHANGED = Weights("changed_rows", (1, 3, 200_000))


@pytest.fixture
def model(tmp_path: Path) -> dict[str, bytes]:
    """Files below `tmp_path`: weights between other bytes, a second name of a file, and files that stay."""
    files = {
        "1/variables.data": b"".join(
            [
                b"head",
                TABLE.values().tobytes()[:80],
                TABLE.values().tobytes(),
                MATRIX.values().tobytes(),
            ]
        ),
        "2/variables.data": CHANGED.values().tobytes() + b"tail",
        "1/other": os.urandom(200_000),
        "1/saved_model.pb": b"graph",
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    os.link(tmp_path / "1/variables.data", tmp_path / "2/linked")
    return {**files, "2/linked": files["1/variables.data"]}


def files_below(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.glob("*/*")
        if path.is_file()
    }


def test_lean_model_is_filled_byte_for_byte(tmp_path: Path, model: dict[str, bytes]):
    make_lean(tmp_path, [MATRIX, TABLE, CHANGED])
    assert set(files_below(tmp_path)) == {"1/other", "1/saved_model.pb"}
    lean_bytes = sum(path.stat().st_size for path in tmp_path.glob("lean*"))
    assert lean_bytes < 2_000
    fill(tmp_path)
    assert files_below(tmp_path) == model
    first, second = (tmp_path / name for name in ("1/variables.data", "2/linked"))
    assert first.stat().st_ino == second.stat().st_ino


def test_fill_leaves_what_is_there(tmp_path: Path, model: dict[str, bytes]):
    make_lean(tmp_path, [MATRIX, TABLE, CHANGED])
    fill(tmp_path)
    inodes = {name: (tmp_path / name).stat().st_ino for name in model}
    fill(tmp_path)
    assert inodes == {name: (tmp_path / name).stat().st_ino for name in model}


def test_fill_leaves_a_model_that_is_not_lean(tmp_path: Path, model: dict[str, bytes]):
    fill(tmp_path)
    assert files_below(tmp_path) == model


def test_weights_that_are_not_there_stay_as_bytes(tmp_path: Path, model: dict[str, bytes]):
    make_lean(tmp_path, [Weights("table", (2, 3, 2_000))])
    assert files_below(tmp_path) == model
    fill(tmp_path)
    assert files_below(tmp_path) == model


def test_dense_matrices_keep_the_size_of_activations():
    matrix = dense_matrix(0, 256, 128)
    assert matrix.std() * 16 == pytest.approx(1, rel=0.02)
    assert (dense_matrix(0, 256, 128) == matrix).all()
    assert not (dense_matrix(1, 256, 128) == matrix).any()

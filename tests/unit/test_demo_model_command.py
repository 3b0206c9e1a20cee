"""`millpond demo-model`: the arguments that it refuses before it imports TensorFlow."""

import sys
from pathlib import Path

import pytest

from serving.commands.cli import main


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an import of the module fail."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "serving.commands.ctr_export", raising=False)


def test_demo_model_command_existing_version_exits_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "1").mkdir()
    assert main(["demo-model", str(tmp_path), "--version=1"]) == 1
    assert capfd.readouterr().err == (
        f"millpond demo-model: {tmp_path}/1 is there already; remove it or choose another version\n"
    )


def test_demo_model_without_tensorflow_exits_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["demo-model", str(tmp_path), "--version=1"]) == 1
    err = capfd.readouterr().err
    assert "exporting needs TensorFlow's Python package" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_demo_model_unwritable_directory_exits_one(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    assert main(["demo-model", str(tmp_path / name), "--version=1"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("millpond demo-model: ")
    assert err.endswith(f"{str(tmp_path / name)!r}\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("version", ["abc", "0", "-1", "1.5", str(2**63)])
def test_demo_model_bad_version_is_wrong_usage(
    version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert main(["demo-model", str(tmp_path), f"--version={version}"]) == 2
    expected = f"--version: {version!r} is not a whole number from 1 to {2**63 - 1}"
    assert expected in capfd.readouterr().err

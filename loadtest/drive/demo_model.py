"""The demo's model on disk: two versions of the CTR model, exported once for all load tests."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.drive.lean_models import Weights, fill, make_lean
from serving.base.errors import InvalidConfig
from serving.commands.ctr_model import TABLE_COUNT

MODEL_NAME = "ctr"


@dataclass(frozen=True)
class DemoModel:
    """The CTR model on disk: the server polls `base_path`; versions wait in `staged`.

    Both are on one file system, so that a version is added and removed by one rename.
    """

    base_path: Path
    staged: Path

    @classmethod
    def below(cls, directory: Path, table_rows: int) -> "DemoModel":
        """The model's directories below `directory`; each table size has its own."""
        root = directory / f"rows-{table_rows}"
        return cls(root / "served" / MODEL_NAME, root / "staged" / MODEL_NAME)

    def drop(self, version: int) -> None:
        """Moves a version to the base path."""
        (self.staged / str(version)).rename(self.base_path / str(version))

    def remove(self, version: int) -> None:
        """Moves a version away from the base path and keeps it for the next demo."""
        (self.base_path / str(version)).rename(self.staged / str(version))


def prepare_model(
    directory: Path, table_rows: int, say: Callable[[str], None], *, is_lean: bool = False
) -> DemoModel:
    """Exports versions 1 and 2 if they do not exist yet; 1 is served, 2 staged.

    If they do, they get their tables, unless `is_lean`: then the new ones are left without.
    """
    model = DemoModel.below(directory, table_rows)
    root = model.base_path.parents[1]
    model.base_path.mkdir(parents=True, exist_ok=True)
    model.staged.mkdir(parents=True, exist_ok=True)
    if (model.base_path / "2").exists():  # an earlier demo was interrupted
        model.remove(2)
    is_new = not (model.base_path / "1").exists() and not (model.staged / "2").exists()
    for version, place in ((1, model.base_path), (2, model.staged)):
        if (place / str(version)).exists():
            say(f"version {version} was exported before")
        else:
            _export(place, version, table_rows)
    if not is_lean:
        fill(root)
    elif is_new:
        tables = ((version, table) for version in (1, 2) for table in range(TABLE_COUNT))
        make_lean(root, [Weights("table", (*of_table, table_rows)) for of_table in tables])
    return model


def _export(place: Path, version: int, table_rows: int) -> None:
    """Exports a version in a separate process, to keep TensorFlow's threads and memory out of the
    clients' process.
    """
    command = [sys.executable, "-m", "serving", "demo-model", str(place)]
    result = subprocess.run(
        [*command, f"--version={version}", f"--rows={table_rows}"],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    if result.returncode != 0:
        raise InvalidConfig(f"version {version} could not be exported to {place}; see above")


@contextmanager
def demo_directory(given: Path | None) -> Iterator[Path]:
    """Yields the given directory, or a temporary one that is removed at the end."""
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="millpond-demo-") as directory:
        yield Path(directory)

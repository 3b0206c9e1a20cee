"""Exports that take seconds, kept below build/ from one run of the tests to the next.

An export is made again if a file that it is made by has changed, or a package. Tests do not change it:
they serve it in place, or copies of it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from loadtest.drive.demo_model import prepare_model
from tests.integration.exports import let_settle

REPOSITORY = Path(__file__).parents[2]
DIRECTORY = REPOSITORY / "build" / "exports"
EXPORT_TIMEOUT_SECONDS = 300

_OWN_SOURCES = ("tests/integration/kept_exports.py",)
# The lines of /proc/cpuinfo by which compilers choose instructions.
_FEATURES = re.compile(r"(model name|flags|Features)\b").match
_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "tf-keras", "numpy", "protobuf")


def kept_export(
    name: str, make: Callable[[Path], object], sources: Sequence[str], stamp: str = ""
) -> Path:
    """Returns the directory that `make` has filled, now or in an earlier run.

    `sources` are the files, or folders of Python, that `make` depends on, below the repository. `stamp` is
    what it depends on besides.
    """
    of_name = DIRECTORY / name
    of_name.mkdir(parents=True, exist_ok=True)
    kept = of_name / _digest(sources, stamp)
    # One process of the tests makes it, and the others wait.
    with (of_name / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            for old in of_name.glob("*/"):
                shutil.rmtree(old)
            unfinished = of_name / "unfinished"
            unfinished.mkdir()
            make(unfinished)
            let_settle(unfinished).rename(kept)
    return kept


def exported_by(module: str, *words: str, python: str = sys.executable) -> Callable[[Path], object]:
    """Returns what exports to a directory by `python -m module DIRECTORY words…`, in a process of its own."""

    def make(directory: Path) -> None:
        subprocess.run(
            [python, "-m", module, str(directory), *words],
            cwd=REPOSITORY,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            check=True,
            timeout=EXPORT_TIMEOUT_SECONDS,
        )

    return make


def kept_jax_exports() -> Path:
    """The directory of the exports of jax_exports.py."""
    python = REPOSITORY / "build" / "jax" / "bin" / "python"
    assert python.exists(), "make build/jax/.installed"
    exporter = exported_by("tests.integration.jax_exports", python=str(python))
    packages = (REPOSITORY / "pyproject.toml").read_text()
    return kept_export("jax", exporter, ("tests/integration/jax_exports.py",), stamp=packages)


def kept_programs(name: str) -> Path:
    """A cache of an accelerator's programs, which servers of one test file share, and later runs of it.

    A server compiles anew what it would compile in another way: it compares the whole program. Programs of a plugin
    for CPUs are made for this processor.
    """
    processor = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if _FEATURES(line)}
    stamp = "\n".join([version("xla-cpu-pjrt"), *sorted(processor)])
    return kept_export(f"programs_{name}", lambda directory: None, _OWN_SOURCES, stamp)


DROP_IN_SOURCES = (
    *(
        f"tests/integration/drop_in/export_{name}.py"
        for name in ("models", "shape_models", "suite_models")
    ),
    "tests/integration/exports.py",
    "warmup",
)


def kept_drop_in_models() -> Path:
    """The models of the drop-in tests: `drop_in/export_models.py`."""
    exporter = "tests.integration.drop_in.export_models"
    return kept_export("drop_in", exported_by(exporter), DROP_IN_SOURCES)


def kept_demo_model(table_rows: int) -> Path:
    """The folder of `prepare_model` for a demo model with tables of that size, with versions 1 and 2."""
    return kept_export(
        f"demo-{table_rows}",
        lambda directory: prepare_model(directory, table_rows, lambda text: None),
        ("serving/commands", "loadtest/drive/demo_model.py", "warmup"),
    )


def _digest(sources: Sequence[str], stamp: str) -> str:
    digest = hashlib.sha256(f"{sys.version} {stamp}".encode())
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            digest.update(f"{package} {version(package)}\n".encode())
    for source in sources:
        path = REPOSITORY / source
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        assert files, f"no Python below {path}"
        for file in files:
            digest.update(f"{file.relative_to(REPOSITORY)}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]

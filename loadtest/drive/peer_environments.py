"""The packages that Millpond is compared with, and a virtual environment for each.

Each package pins others, so that they do not fit into one environment. The packages are the dependency
group `peers` of pyproject.toml.
"""

import importlib.metadata
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from serving.base.errors import Unavailable

# TensorFlow alone is 600 MB.
_INSTALL_TIMEOUT_SECONDS = 1_800
_WARNING = "WARNING:"


@dataclass(frozen=True)
class Peer:
    """A package that serves a `tf.function`: its distributions, and the module that serves with it.

    `has_batches` is True if it has batches of its own.
    """

    requirements: Sequence[str]
    module: str
    has_batches: bool = True


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "fastapi": Peer(
            ("fastapi>=0.115,<1", "uvicorn>=0.40,<1"), "loadtest.drive.rest_baseline", False
        ),
        "litserve": Peer(("litserve>=0.2.14,<0.3",), "loadtest.drive.peers.litserve_peer"),
        "bentoml": Peer(("bentoml>=1.4,<2",), "loadtest.drive.peers.bentoml_peer"),
        "ray": Peer(("ray[serve]>=2.50,<3",), "loadtest.drive.peers.ray_peer"),
    }
)


def prepare_environment(name: str, directory: Path) -> Path:
    """Makes the virtual environment of a peer below `directory` unless it is there, and returns its
    Python.

    It has the TensorFlow of this environment. Raises Unavailable, with pip's last line, if a package
    cannot be installed.
    """
    environment = directory / name
    wanted = [*PEERS[name].requirements, f"tensorflow=={importlib.metadata.version('tensorflow')}"]
    marker, python = environment / "installed", environment / "bin" / "python"
    if marker.exists() and marker.read_text() == "\n".join(wanted):
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(environment)], name)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *wanted], name)
    marker.write_text("\n".join(wanted))
    return python


def installed_version(name: str, python: Path) -> str:
    """Returns the version of the peer's own package in its environment. Raises Unavailable."""
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return _run([str(python), "-c", code, name], name).strip()


def _run(command: Sequence[str], name: str) -> str:
    try:
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{name}: no end of {command[0]} in {_INSTALL_TIMEOUT_SECONDS} s"
        ) from None
    if result.returncode != 0:
        raise Unavailable(f"{name}: {last_line(result.stderr or result.stdout)}")
    return result.stdout


def last_line(text: str) -> str:
    """Returns the last line that is not empty and not a warning."""
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_WARNING)]
    return kept[-1] if kept else "no output"

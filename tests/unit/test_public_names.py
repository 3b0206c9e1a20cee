"""`import millpond` gives the public names, and imports only the modules that a program uses."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import millpond
import serving.client
from serving.server.model_server import ModelServer


def test_public_names_are_the_clients_and_the_server() -> None:
    assert millpond.Client is serving.client.Client
    assert millpond.AsyncClient is serving.client.AsyncClient
    assert millpond.ModelServer is ModelServer
    assert millpond.__version__ == version("millpond")
    assert sorted(millpond.__all__) == ["AsyncClient", "Client", "ModelServer", "__version__"]


def test_public_package_has_no_other_name() -> None:
    assert not hasattr(millpond, "Server")


def test_import_of_the_client_leaves_the_server_out() -> None:
    code = (
        "import sys\n"
        "import millpond\n"
        "assert 'serving.client' not in sys.modules\n"
        "millpond.Client\n"
        "names = ('tensorflow', 'structlog', 'serving.server.server')\n"
        "sys.exit(any(name in sys.modules for name in names))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0

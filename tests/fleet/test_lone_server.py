"""A server that runs alone imports nothing of a fleet."""

import subprocess
import sys

IMPORTS = """
import sys
import serving.server.server, serving.commands.serve, serving.client
loaded = [name for name in sys.modules if "fleet" in name or name == "serving.reload.grants"]
print(loaded)
"""


def test_lone_server_imports_nothing_of_a_fleet() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=100
    )
    assert ended.stdout.strip() == "[]"

"""A Python process of its own, for tests whose subject is what is imported, and in which order."""

import subprocess
import sys


def run_python(code: str) -> str:
    """Runs `code` and returns what it prints. Fails if its status is not 0."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()

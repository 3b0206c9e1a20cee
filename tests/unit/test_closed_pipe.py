"""Commands with a reader that leaves first, each in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.base.closed_pipe import EXIT_CLOSED_PIPE, EXIT_FAILURE, until_closed_pipe
from warmup.records import write_records

# More output than Python and the kernel buffer.
RECORD_COUNT = 10_000


def run_without_reader(
    arguments: Sequence[str], *, is_stderr_closed: bool = False
) -> tuple[int, str]:
    """Returns the exit status and standard error of `python ARGUMENTS` with an unread output."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as output:
        result = subprocess.run(
            [sys.executable, *arguments],
            stdout=output,
            stderr=output if is_stderr_closed else subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # as in a shell
            text=True,
            check=False,
            timeout=60,
        )
    return result.returncode, result.stderr or ""


@pytest.mark.parametrize("module", ["serving", "warmup", "loadtest"])
def test_unread_command_ends_quietly(module: str):
    assert run_without_reader(["-m", module, "--help"]) == (EXIT_CLOSED_PIPE, "")


def test_command_ends_quietly_if_reader_leaves(tmp_path: Path):
    write_records(tmp_path / "requests", [b""] * RECORD_COUNT)
    arguments = ["-m", "warmup", "inspect", str(tmp_path / "requests")]
    assert run_without_reader(arguments) == (EXIT_CLOSED_PIPE, "")


def test_command_ends_quietly_if_stderr_is_closed():
    arguments = ["-m", "serving", "nonsense"]
    assert run_without_reader(arguments, is_stderr_closed=True) == (EXIT_CLOSED_PIPE, "")


@pytest.mark.parametrize("module", ["serving", "warmup", "loadtest"])
def test_command_reports_full_disk_in_one_line(module: str):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # as in a shell
            text=True,
            check=False,
            timeout=60,
        )
    assert result.returncode == EXIT_FAILURE
    (line,) = result.stderr.splitlines()
    assert line.startswith("the output cannot be written: ")
    assert "No space left on device" in line


def test_command_without_stdout_has_own_status():
    result = subprocess.run(
        ["/bin/sh", "-c", f"'{sys.executable}' -m serving --help >&-"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_unread_table_ends_quietly():
    code = (
        "import sys\n"
        "from rich.console import Console\n"
        "from serving.base.closed_pipe import until_closed_pipe\n"
        "sys.exit(until_closed_pipe(lambda: Console().print('x') or 0))"
    )
    assert run_without_reader(["-c", code]) == (EXIT_CLOSED_PIPE, "")


def test_pipe_of_the_commands_own_is_its_own_affair():
    code = (
        "from serving.base.closed_pipe import until_closed_pipe\n"
        "def fail(): raise BrokenPipeError('a child')\n"
        "until_closed_pipe(fail)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 1
    assert "BrokenPipeError: a child" in result.stderr


def test_command_that_is_read_has_its_own_status():
    assert until_closed_pipe(lambda: 7) == 7

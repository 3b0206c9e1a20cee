"""A process whose parent closed its standard streams has them all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, pathlib, sys
from serving.base.standard_streams import open_closed_streams

open_closed_streams()
print("to nobody")
print("to nobody", file=sys.stderr)
sys.stdin.read()
next_file = os.open(os.devnull, os.O_RDONLY)
streams = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
inherited = [os.get_inheritable(number) for number in range(3)]
pathlib.Path(sys.argv[1]).write_text(repr((streams, inherited, next_file > 2)))
"""


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_lead_to_the_null_device(closed: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    command = ("bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-c", PROGRAM, report)
    null = subprocess.DEVNULL
    subprocess.run(command, check=True, stdin=null, stdout=null, stderr=null)
    assert report.read_text() == repr((["/dev/null"] * 3, [True] * 3, True))


def test_open_streams_stay_as_they_are() -> None:
    program = (
        "from serving.base.standard_streams import open_closed_streams as o; o(); print('text')"
    )
    run = subprocess.run(
        (sys.executable, "-c", program), check=True, capture_output=True, text=True
    )
    assert run.stdout == "text\n"


def test_command_without_streams_succeeds() -> None:
    command = ("bash", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "bash")
    subprocess.run((*command, sys.executable, "-m", "serving", "--help"), check=True)

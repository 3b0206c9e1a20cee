"""The supervisor's command line for its server, and its log."""

import json
from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig
from serving.supervisor import supervise
from tests.unit.fakes.clocks import FakeClock


def test_server_gets_flags_that_end_supervision():
    command = supervise.child_command(["python", "serve", "--supervise", "--port=0"], "/state")
    assert command[:3] == ["python", "serve", "--port=0"]
    assert command[3:] == [
        "--supervise=false",
        "--state_directory=/state",
    ]


def test_read_only_directory_is_passed_over(tmp_path: Path):
    directory = supervise.make_state_directory([str(tmp_path / "none"), str(tmp_path)])
    assert Path(directory).parent == tmp_path
    with pytest.raises(InvalidConfig, match="--state_directory"):
        supervise.make_state_directory([str(tmp_path / "none")])


def test_log_line_has_its_fields():
    written: list[bytes] = []
    fields = {"version": 7}
    supervise.log_event(
        written.append, FakeClock(), False, "error", "version_crashed", "it died", fields
    )
    line = json.loads(written[0])
    assert (line["event"], line["level"], line["version"]) == ("version_crashed", "error", 7)
    assert line["message"] == "millpond: it died"

from pathlib import Path

import numpy as np
import pytest

import loadtest
from loadtest.generator import Generator, issue_loop_path
from loadtest.plan import Plan
from serving.base.errors import FailedPrecondition


def test_issue_loop_is_found_wherever_the_package_has_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # As in an editable installation: sources in one place, what was built in another.
    sources, built = tmp_path / "sources", tmp_path / "built"
    for directory in (sources, built):
        directory.mkdir()
    monkeypatch.setattr(loadtest, "__path__", [str(sources), str(built)])
    program = built / "issue_loop"
    program.write_text("")
    with pytest.raises(FailedPrecondition, match="make setup"):
        issue_loop_path()  # no program: it may not be executed
    program.chmod(0o755)
    assert issue_loop_path() == program


def test_generator_outside_with_is_refused():
    plan = Plan(offsets_ns=np.array([0]), payload_of=np.array([0], np.int32), payloads=[b""])
    with pytest.raises(FailedPrecondition, match="with"):
        Generator(plan, "127.0.0.1:1").stop()

from pathlib import Path

import numpy as np
import pytest

from loadtest.drive.generator import Generator, issue_loop_path
from loadtest.plan.plan import Plan
from serving.base.errors import FailedPrecondition


def test_issue_loop_is_found_if_it_may_be_executed(tmp_path: Path):
    program = tmp_path / "build/editable/native/load_generator/issue_loop"
    program.parent.mkdir(parents=True)
    program.write_text("")
    with pytest.raises(FailedPrecondition, match="make setup"):
        issue_loop_path(tmp_path)
    program.chmod(0o755)
    assert issue_loop_path(tmp_path) == program


def test_generator_outside_with_is_refused():
    plan = Plan(offsets_ns=np.array([0]), payload_of=np.array([0], np.int32), payloads=[b""])
    with pytest.raises(FailedPrecondition, match="with"):
        Generator(plan, "127.0.0.1:1").stop()

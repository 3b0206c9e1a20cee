"""The demo, with a small model that is exported already."""

import re
import shutil
from pathlib import Path

import pytest

from loadtest.__main__ import main
from tests.integration.kept_exports import kept_demo_model

pytestmark = pytest.mark.usefixtures("warm_load_tests", "patient_load_tests")

TABLE_ROWS = 1_000


def test_demo_of_small_model_exits_zero_with_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    directory = shutil.copytree(kept_demo_model(TABLE_ROWS), tmp_path / "demo")
    assert main(["demo", f"--directory={directory}", f"--rows={TABLE_ROWS}", "--rate=800"]) == 0
    out = capsys.readouterr().out
    wanted = ("sent", "answered by version 1", "answered by version 2", "p999 ms", "restore")
    assert [row for row in wanted if row not in out] == []
    assert "refused" not in out
    verdict = out.splitlines()[-1]
    assert re.fullmatch(r"p99 in swaps over steady: \d+\.\d; lost 0, wrong 0: passed", verdict), (
        verdict
    )

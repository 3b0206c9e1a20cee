"""The demo, from export to table, with a small model."""

import re

import pytest

from loadtest.__main__ import main


def test_demo_of_small_model_exits_zero_with_table(capsys: pytest.CaptureFixture[str]):
    assert main(["demo", "--rows=1000", "--rate=800"]) == 0
    out = capsys.readouterr().out
    wanted = ("sent", "answered by version 1", "answered by version 2", "p999 ms", "restore")
    assert [row for row in wanted if row not in out] == []
    assert "refused" not in out
    verdict = out.splitlines()[-1]
    assert re.fullmatch(r"p99 in swaps over steady: \d+\.\d; lost 0, wrong 0: passed", verdict), (
        verdict
    )

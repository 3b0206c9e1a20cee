"""The command `gpu` on the PJRT plugin that XLA's authors have on PyPI, with small models."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.commands import gpu
from loadtest.measure import accelerator_swaps, saturation, scenario
from loadtest.measure.accelerator_parts import DIFFERENCE_MAX
from tests.integration.accelerators import plugin_path

PARTS = ("equality", "alone", "rates", "swap", "rollback", "neighbours", "dense", "many", "zipf")
SIZES = (
    *("--accelerator-rows=1,8", "--table-rows=500", "--dense-parameters=50000", "--rows=1,9"),
    *("--dense-rows=8", "--swap-rows=3", "--swaps=1", "--many-swaps=11", "--generators=1"),
    *("--zipf-models=8", "--zipf-parameters=50000", "--zipf-rate=20", "--zipf-seconds=6"),
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pauses in which figures settle, and leaves this process on all of its cores."""
    monkeypatch.setattr(scenario, "_SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(saturation, "_RUN_SECONDS", 1)
    monkeypatch.setattr(accelerator_swaps, "_SHARE", 0.1)
    monkeypatch.setattr(accelerator_swaps, "_BUSY_FACTOR", 0.1)
    monkeypatch.setattr(gpu, "keep_to_client_cores", lambda cores: None)


def test_gpu_measures_both_servers_in_all_parts(tmp_path: Path):
    path = tmp_path / "report.json"
    status = main(
        [
            *("gpu", f"--accelerator=pjrt:{plugin_path()}", f"--parts={','.join(PARTS)}", *SIZES),
            *("--seconds=0.5", f"--models={tmp_path}", f"--json={path}"),
        ]
    )
    parts: dict[str, Any] = json.loads(path.read_text())["parts"]
    assert {name: part["failed"] for name, part in parts.items() if "failed" in part} == {}
    assert (status, tuple(parts)) == (0, PARTS)
    assert 0 < parts["equality"]["difference_to_reference_max"] < DIFFERENCE_MAX
    for name in ("cpu", "accelerator"):
        assert parts["alone"]["rows"]["9"][name]["p50_ms"] > 0
        assert parts["rates"]["rows"]["9"][name]["rows_per_second"] > 0
        rates = parts["dense"]["models"]["transformer"][name]["rates"]
        assert set(rates) == ({"1", "8"} if name == "cpu" else {"1", "32", "256"})
        assert all(rate["requests_per_second"] > 0 for rate in rates.values())
        assert parts["neighbours"][name]["busy_low"]["busy_answered_per_second"] > 0
        assert parts["swap"][name]["windows_all"]["swap"]["count"] > 0
    assert all(ms > 0 for ms in parts["rollback"]["upload_ms"].values())
    assert (parts["many"]["swaps"], parts["many"]["rollbacks"]) == (11, 1)
    assert parts["many"]["request_count"] > 0
    zipf = parts["zipf"]
    assert (zipf["errors"], zipf["wrong_answers"]) == (0, 0)
    assert 0 < zipf["found_share"] < 1
    assert zipf["cpu_runs"]["away"] > 0
    assert zipf["uploads"] > 0
    assert all(ms > 0 for ms in zipf["back_ms"])


def test_gpu_without_the_plugin_fails_each_part(tmp_path: Path):
    path = tmp_path / "report.json"
    arguments = ("gpu", "--accelerator=pjrt:/nowhere/plugin.so", "--parts=equality,rollback")
    status = main([*arguments, *SIZES, f"--models={tmp_path}", f"--json={path}"])
    parts = json.loads(path.read_text())["parts"]
    assert status == 1
    for part in parts.values():
        assert "/nowhere/plugin.so" in part["failed"]

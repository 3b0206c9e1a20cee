import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from loadtest.__main__ import main
from loadtest.commands import fleet
from loadtest.measure.fleet_scenario import run_fleet_scenario
from loadtest.measure.fleet_simulation import BrokenPromise
from serving.base.clock import SystemClock


@pytest.fixture(autouse=True)
def log_configuration() -> Iterator[None]:
    """Restores the configuration of logs, which the command changes for its process."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_fleet_prints_a_row_for_each_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.json"
    assert main(["fleet", "--servers", "8", "--seeds", "2", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert [row["seed"] for row in report["runs"]] == [1, 2]
    assert "2 runs kept every promise, 0 did not" in capsys.readouterr().out


def test_scenario_stops_every_bad_version() -> None:
    row = run_fleet_scenario(20, 4, SystemClock())
    bad = {"3 refused", "4 slow", "5 failing", "6 crashing", "7 fragile", "8 hanging"}
    assert bad <= row["blocked"].keys()
    assert row["swapping_max"] <= row["swapping_limit"]


def test_fleet_fails_with_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPromise("no progress")

    monkeypatch.setattr(fleet, "run_fleet_scenario", broken)
    assert main(["fleet", "--servers", "8"]) == 1
    assert "8 servers, seed 1: no progress" in capsys.readouterr().out

"""The load tests against real servers, with a model of small tables."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.commands.p999 import is_in_its_bucket
from loadtest.drive.demo_model import MODEL_NAME, DemoModel, prepare_model
from loadtest.measure import foreign_swap_server, scenario
from serving import ModelServer
from tests.integration.conftest import StartServer

TABLE_ROWS = 1_000
LOAD = ["--rate=200", "--rows=3", f"--table-rows={TABLE_ROWS}"]
# Half of these ids are beyond the served tables. Their answers come from the remainder of the id
# and differ from the reference.
FALSIFIED_LOAD = ["--rate=200", "--rows=3", f"--table-rows={2 * TABLE_ROWS}"]
FIGURES = {"count", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    prepare_model(directory, TABLE_ROWS, lambda text: None)
    return directory


@pytest.fixture(scope="module")
def server(models: Path, start_module_server: StartServer) -> ModelServer:
    base_path = DemoModel.below(models, TABLE_ROWS).base_path
    server = start_module_server(model_name=MODEL_NAME, base_path=base_path)
    server.wait_until_available(MODEL_NAME, 1)
    return server


def ran(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit status of the command and the JSON that it wrote."""
    path = tmp_path / "report.json"
    status = main([*arguments, f"--json={path}"])
    report: dict[str, Any] = json.loads(path.read_text())
    return status, report


def test_run_counts_requests_and_verifies_answers(server: ModelServer, tmp_path: Path):
    status, report = ran(tmp_path, "run", f"--target={server.target}", "--duration=3", *LOAD)
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert report["latency_all"].keys() >= FIGURES
    # 600 on average: ten standard deviations.
    assert 355 < report["latency_all"]["count"] < 845
    assert report["latency_all"]["p999_ms"] is None
    assert report["generator"]["issue_delay_p50_ms"] > 0


def test_run_detects_falsified_reference(server: ModelServer, tmp_path: Path):
    arguments = ("run", f"--target={server.target}", "--duration=1", *FALSIFIED_LOAD)
    status, report = ran(tmp_path, *arguments)
    assert (status, report["errors"]) == (1, 0)
    assert report["wrong_answers"] == report["latency_all"]["count"] > 0


def test_run_of_unserved_model_counts_errors(server: ModelServer, tmp_path: Path):
    arguments = ("run", f"--target={server.target}", "--model=absent", "--duration=1", *LOAD)
    status, report = ran(tmp_path, *arguments)
    assert (status, report["wrong_answers"]) == (1, 0)
    assert report["errors"] == report["latency_all"]["count"] > 0
    assert "absent" in report["error_messages"][0]


def test_run_with_output_filter_checks_output(server: ModelServer, tmp_path: Path):
    arguments = ("run", f"--target={server.target}", "--duration=1", "--output-filter=ctr", *LOAD)
    status, report = ran(tmp_path, *arguments)
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)


def test_run_without_a_server_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--target=127.0.0.1:1", "--duration=1", *LOAD]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "loadtest run: issue_loop: 127.0.0.1:1: no connection in 5 s",
    ]


def test_null_server_measures_the_generator(tmp_path: Path):
    status, report = ran(tmp_path, "null", "--duration=1", *LOAD)
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, None)
    assert report["latency_all"]["count"] > 0


def swap_arguments(models: Path) -> list[str]:
    return [f"--models={models}", "--swaps=2", "--swap-interval=1", *LOAD]


def test_swap_loses_nothing_and_reports_both_swaps(models: Path, tmp_path: Path):
    before = sorted(models.rglob("*"))
    status, report = ran(tmp_path, "swap", *swap_arguments(models))
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert report["preset"] == "millpond"
    windows = report["windows_all"]
    assert set(windows) == {"steady", "load", "unload", "swap"}
    assert all(figures.keys() >= FIGURES for figures in windows.values())
    assert windows["swap"]["count"] > report["first_swap_all"]["count"] > 0
    assert windows["steady"]["count"] > 0
    swaps = [(swap["title"], swap["version"]) for swap in report["swaps"]]
    assert swaps == [("load", 2), ("unload", 1), ("load", 3), ("unload", 2)]
    resident = report["memory"]["resident_mb"]
    assert resident["two_versions"] >= resident["one_version"] > resident["before"] > 0
    assert sorted(models.rglob("*")) == before


def test_swap_compares_server_and_client_figures(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _, report = ran(tmp_path, "swap", *swap_arguments(models))
    assert [swap["version"] for swap in report["server_swaps"]] == [2, 3]
    for swap in report["server_swaps"]:
        server, clients = swap["server"], swap["clients"]
        # A request that ends at the edge of a swap and its last second may be counted on either
        # side: 50 ms of requests.
        assert clients["count"] > 150
        assert abs(server["count"] - clients["count"]) <= 10
        # The server took no longer than its client for any request, within the histogram's error.
        assert 0 < server["p50_ms"] <= clients["p50_ms"] * 1.02
    both = report["server_swaps_median"]
    assert both["swap_count"] == 2
    assert both["server"]["p999_ms"] >= both["server"]["p99_ms"] > 0
    assert "each swap by /v1/swaps | by its clients, median of 2" in capsys.readouterr().out


def foreign_command(*flags: str) -> str:
    """Returns a command of Millpond that swap and saturation know nothing of."""
    words = (
        *(sys.executable, "-m", "serving", "serve", "--host=127.0.0.1", "--port={port}"),
        *("--model_name={name}", "--model_base_path={base}", "--rest_api_port=0", *flags),
    )
    return " ".join(words)


def test_swap_of_a_command_is_seen_from_outside(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = f"--command=foreign={foreign_command('--file_system_poll_wait_seconds=0.1')}"
    status, report = ran(tmp_path, "swap", command, *swap_arguments(models))
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert report["preset"] == "foreign"
    assert report["windows_all"]["swap"]["count"] > report["first_swap_all"]["count"] > 0
    assert report["windows_all"]["steady"]["count"] > 0
    # Only Millpond's log and pages have these.
    assert (report["swaps"], report["server_swaps"]) == ([], [])
    resident = report["memory"]["resident_mb"]
    assert list(resident) == ["one_version", "two_versions", "after_last_unload"]
    assert resident["two_versions"] >= resident["one_version"] > 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "foreign: a server of --command has no pages and no log of Millpond" in printed
    assert "asked for by GetModelStatus every 50 ms" in printed


def test_swap_without_model_status_is_seen_by_answers(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(foreign_swap_server, "has_model_service", lambda channel, model: False)
    command = f"--command=foreign={foreign_command('--file_system_poll_wait_seconds=0.1')}"
    status, report = ran(tmp_path, "swap", command, *swap_arguments(models))
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert report["windows_all"]["load"]["count"] > 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "foreign: it does not implement GetModelStatus" in printed


def test_swap_of_a_command_that_ends_shows_its_log(
    models: Path, capsys: pytest.CaptureFixture[str]
):
    command = "--command=echo no such model: {base}; exit 3 {port}"
    assert main(["swap", command, *swap_arguments(models)]) == 1
    error = capsys.readouterr().err
    assert "server 'echo': its command ended with status 3" in error
    assert "no such model" in error


def test_saturation_compares_command_and_flags(models: Path, tmp_path: Path):
    status, report = ran(
        *(tmp_path, "saturation", f"--command=foreign={foreign_command()}"),
        *("--flags=batching=--enable_batching", "--rows=3", "--in-flight=1,8", "--shares=0.1"),
        *("--rounds=1", "--seconds=0.2", "--share-seconds=0.5"),
        *(f"--models={models}", f"--table-rows={TABLE_ROWS}"),
    )
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert list(report["loops"]) == ["3:1x1", "3:4x8"]
    assert list(report["shares"]) == ["3:10%"]
    rates = report["saturation"]["3"]
    assert rates.keys() == {"foreign", "batching"}
    shown = report["shares"]["3:10%"]
    assert shown.keys() == rates.keys()
    # A share of the lowest saturation, within the noise of a Poisson stream of some seconds.
    wanted = min(rates.values()) / 10
    assert all(wanted / 2 < one["requests_per_second"] < wanted * 2 for one in shown.values())


def test_swap_detects_one_falsified_content(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Version 2 is the second export, and all other versions are the first.
    monkeypatch.setattr(scenario, "content_of", lambda version: 1)
    status, report = ran(tmp_path, "swap", *swap_arguments(models))
    assert (status, report["errors"]) == (1, 0)
    total = report["windows_all"]["steady"]["count"] + report["windows_all"]["swap"]["count"]
    assert 0 < report["wrong_answers"] < total


@pytest.mark.parametrize("mode", ["none", "other-outputs"])
def test_swap_with_another_warm_up_file_loses_nothing(models: Path, tmp_path: Path, mode: str):
    status, report = ran(tmp_path, "swap", f"--warm-up={mode}", *swap_arguments(models))
    assert (status, report["warm_up"]) == (0, mode)


def test_neighbour_reloads_one_of_two_models(models: Path, tmp_path: Path):
    status, report = ran(tmp_path, "neighbour", *swap_arguments(models))
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert report["while_reloading_all"]["count"] > 0
    assert report["alone_all"]["count"] > 0


def test_p999_compares_server_and_client(models: Path, tmp_path: Path):
    # Loads that a slow machine bears, with still 5,000 requests in a run.
    load = ("--rate=700", "--rows=3", f"--table-rows={TABLE_ROWS}")
    arguments = ("p999", f"--models={models}", "--runs=1", "--high-load=0.6", *load)
    status, report = ran(tmp_path, *arguments)
    assert status == 0
    for at_rate in report["loads"]:
        (run,) = at_rate["runs"]
        assert run["server_count"] == run["clients_count"] > 5_000
        # The server took no longer than its client for any request, within the stated error.
        assert all(0 < run["server"][key] <= run["clients"][key] * 1.008 for key in run["server"])
        assert is_in_its_bucket(run)


def test_monitoring_compares_visited_segments(models: Path, tmp_path: Path):
    arguments = ("monitoring", f"--models={models}", "--segments=1", "--segment-seconds=3", *LOAD)
    status, report = ran(tmp_path, *arguments)
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert all(shown["count"] > 400 for shown in report["pooled"].values())
    assert report["ratio_pooled"]["p50_ms"] > 0
    assert report["ratio_pooled"]["p999_ms"] is None
    shares = report["http_core_share"]
    assert shares["without"] < shares["with both"]
    assert 0 < shares["page alone"] < 1


def test_ablation_has_a_row_a_preset_and_draws_them(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    picture = tmp_path / "ablation.png"
    arguments = ("ablation", "--preset=millpond", f"--plot={picture}", *swap_arguments(models))
    status, report = ran(tmp_path, *arguments)
    assert (status, list(report["presets"])) == (0, ["millpond"])
    assert "effect of each step" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")

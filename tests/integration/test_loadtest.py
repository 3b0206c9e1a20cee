"""The load tests against real servers, with a model of small tables."""

import io
import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.commands import beside, p999
from loadtest.commands.p999 import is_in_its_bucket
from loadtest.drive import disturbances
from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.http_visitors import Visitor, visited
from loadtest.measure import foreign_swap_server, saturation, scenario, segments, shares
from loadtest.measure.shares import turn_seconds
from loadtest.measure.timeline import Span
from serving import ModelServer
from serving.base.clock import Clock
from serving.base.errors import StatusCode
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.kept_exports import kept_demo_model

pytestmark = pytest.mark.usefixtures("warm_load_tests", "patient_load_tests")

TABLE_ROWS = 1_000
LOAD = ["--rate=200", "--rows=3", f"--table-rows={TABLE_ROWS}"]
# Half of these ids are beyond the served tables. Their answers come from the remainder of the id
# and differ from the reference.
FALSIFIED_LOAD = ["--rate=200", "--rows=3", f"--table-rows={2 * TABLE_ROWS}"]
# Far more than a machine refuses that bears a load, and far less than one that does not bear it.
REFUSED_SHARE_MAX = 0.1
FIGURES = {"count", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"}


@pytest.fixture(scope="module", autouse=True)
def short_pauses() -> Iterator[None]:
    """Shortens the pauses in which figures settle: no test asks for a figure that depends on them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenario, "_SETTLE_SECONDS", 0.5)
        patch.setattr(scenario, "_STEADY_SECONDS_MIN", 1)
        # The load lasts as long as any swap takes on any machine.
        patch.setattr(scenario, "_PLANNED_SWAP_SECONDS", 100)
        patch.setattr(segments, "_SETTLE_SECONDS", 0.5)
        patch.setattr(saturation, "_RUN_SECONDS", 1)
        patch.setattr(beside, "_SETTLE_SECONDS", 1)
        patch.setattr(beside, "_END_SECONDS", 0.2)
        # Too short for a p999 at a share of the saturation, which is in `test_loadtest_shares.py`.
        patch.setattr(shares, "_P999_SECONDS_MAX", 1)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    shutil.copytree(kept_demo_model(TABLE_ROWS), directory, dirs_exist_ok=True)
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
    status, report = ran(tmp_path, "run", f"--target={server.target}", "--duration=2", *LOAD)
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert report["latency_all"].keys() >= FIGURES
    # 400 on average: ten standard deviations.
    assert 200 < report["latency_all"]["count"] < 600
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
    status, report = ran(tmp_path, "run", "--null", "--duration=1", *LOAD)
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, None)
    assert report["latency_all"]["count"] > 0


def foreign_command(*flags: str) -> str:
    """Returns a command of Millpond that the load tests know nothing of."""
    words = (
        *(sys.executable, "-m", "serving", "serve", "--host=127.0.0.1", "--port={port}"),
        *("--model_name={name}", "--model_base_path={base}", "--rest_api_port=0", *flags),
    )
    return " ".join(words)


FOREIGN = f"--command=foreign={foreign_command('--file_system_poll_wait_seconds=0.1')}"


@dataclass(frozen=True)
class Swapped:
    """One run of `swap`: its report and all that it left."""

    status: int
    report: dict[str, Any]
    printed: str
    picture: bytes
    has_kept_models: bool


@pytest.fixture(scope="module")
def swapped(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Swapped:
    """A server of this checkout and a foreign one, in turn."""
    directory = tmp_path_factory.mktemp("swapped")
    picture, printed, before = directory / "swap.png", io.StringIO(), sorted(models.rglob("*"))
    servers = ("--preset=millpond", FOREIGN, f"--plot={picture}")
    with redirect_stdout(printed):
        status, report = ran(directory, "swap", *servers, *swap_arguments(models, swaps=2))
    is_kept = sorted(models.rglob("*")) == before
    words = " ".join(printed.getvalue().split())
    return Swapped(status, report["servers"], words, picture.read_bytes(), is_kept)


def swap_arguments(models: Path, swaps: int) -> list[str]:
    return [f"--models={models}", f"--swaps={swaps}", "--swap-interval=1", *LOAD]


def test_swap_loses_nothing_on_both_servers(swapped: Swapped):
    assert (swapped.status, list(swapped.report)) == (0, ["millpond", "foreign"])
    for report in swapped.report.values():
        assert (report["errors"], report["wrong_answers"]) == (0, 0)
        windows = report["windows_all"]
        assert set(windows) == {"steady", "load", "unload", "swap"}
        assert all(figures.keys() >= FIGURES for figures in windows.values())
        assert windows["swap"]["count"] > report["first_swap_all"]["count"] > 0
        assert windows["steady"]["count"] > 0


def test_swap_reports_both_swaps_and_memory(swapped: Swapped):
    report = swapped.report["millpond"]
    swaps = [(swap["title"], swap["version"]) for swap in report["swaps"]]
    assert swaps == [("load", 2), ("unload", 1), ("load", 3), ("unload", 2)]
    resident = report["memory"]["resident_mb"]
    assert resident["two_versions"] >= resident["one_version"] > resident["before"] > 0


def test_swap_leaves_models_as_they_were(swapped: Swapped):
    assert swapped.has_kept_models


def test_swap_compares_server_and_client_figures(swapped: Swapped):
    report = swapped.report["millpond"]
    assert [swap["version"] for swap in report["server_swaps"]] == [2, 3]
    for swap in report["server_swaps"]:
        server, clients = swap["server"], swap["clients"]
        # A request in flight at the edge of a swap and its last second may be counted on either
        # side, and the edges of both sides differ by 50 ms of requests at most.
        assert clients["count"] > 150
        assert abs(server["count"] - clients["count"]) <= 10 + swap["in_flight_at_ends"]
        # The server took no longer than its client for any request, within the histogram's error.
        assert 0 < server["p50_ms"] <= clients["p50_ms"] * 1.02
    both = report["server_swaps_median"]
    assert both["swap_count"] == 2
    assert both["server"]["p999_ms"] >= both["server"]["p99_ms"] > 0
    assert "each swap by /v1/swaps | by its clients, median of 2" in swapped.printed


def test_swap_of_a_command_is_seen_from_outside(swapped: Swapped):
    report = swapped.report["foreign"]
    # Only Millpond's log and pages have these.
    assert (report["swaps"], report["server_swaps"]) == ([], [])
    resident = report["memory"]["resident_mb"]
    assert list(resident) == ["one_version", "two_versions", "after_last_unload"]
    assert resident["two_versions"] >= resident["one_version"] > 0
    assert "foreign: a server of --command has no pages and no log of Millpond" in swapped.printed
    assert "asked for by GetModelStatus every 50 ms" in swapped.printed


def test_swap_of_two_servers_compares_and_draws_them(swapped: Swapped):
    assert "effect of each step" in swapped.printed
    assert swapped.picture.startswith(b"\x89PNG")


def test_swap_without_model_status_finds_false_content(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(foreign_swap_server, "has_model_service", lambda channel, model: False)
    # Version 2 is the second export, and all other versions are the first.
    monkeypatch.setattr(scenario, "content_of", lambda version: 1)
    arguments = ("--warm-up=none", *swap_arguments(models, swaps=1))
    status, report = ran(tmp_path, "swap", FOREIGN, *arguments)
    assert (status, report["errors"], report["warm_up"]) == (1, 0, "none")
    total = report["windows_all"]["steady"]["count"] + report["windows_all"]["swap"]["count"]
    assert 0 < report["wrong_answers"] < total
    assert report["windows_all"]["load"]["count"] > 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "foreign: it does not implement GetModelStatus" in printed


def test_swap_of_a_command_that_ends_shows_its_log(
    models: Path, capsys: pytest.CaptureFixture[str]
):
    command = "--command=echo no such model: {base}; exit 3 {port}"
    assert main(["swap", command, *swap_arguments(models, swaps=1)]) == 1
    error = capsys.readouterr().err
    assert "server 'echo': its command ended with status 3" in error
    assert "no such model" in error


def test_swap_of_a_neighbour_loses_nothing(models: Path, tmp_path: Path):
    arguments = ("--neighbour", "--warm-up=other-outputs", *swap_arguments(models, swaps=1))
    status, report = ran(tmp_path, "swap", *arguments)
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert (report["is_neighbour_swapped"], report["warm_up"]) == (True, "other-outputs")
    assert all(report["windows_all"][kind]["count"] > 0 for kind in ("steady", "swap"))


def test_turns_compare_command_and_flags_at_a_share(models: Path, tmp_path: Path):
    status, report = ran(
        *(tmp_path, "turns", f"--command=foreign={foreign_command()}"),
        *("--flags=batching=--enable_batching", "--shapes=3:1x1,3:4x8", "--shares=0.1"),
        *("--rounds=1", "--seconds=0.5"),
        *(f"--models={models}", f"--table-rows={TABLE_ROWS}"),
    )
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    assert list(report["loops"]) == ["3:1x1", "3:4x8", "3:10%"]
    rates = report["saturation"]["3"]
    assert rates.keys() == {"foreign", "batching"}
    shown = report["loops"]["3:10%"]
    assert shown.keys() == rates.keys()
    # Both servers got the same arrivals, and nothing failed: an answer is a planned arrival.
    (count,) = {one["pooled"]["count"] for one in shown.values()}
    # A tenth of the lowest saturation, within six standard deviations of a Poisson stream.
    rate_per_second = min(rates.values()) / 10
    planned = rate_per_second * turn_seconds(rate_per_second, round_count=1, seconds=0.5)
    assert abs(count - planned) < 6 * math.sqrt(planned)


def test_p999_compares_server_and_client(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rates = p999._rates
    both: list[float] = []

    def first_rate(*arguments: Any) -> list[float]:
        both.extend(rates(*arguments))
        return both[:1]

    # The second load, which depends on the machine, is measured as the first one is.
    monkeypatch.setattr(p999, "_rates", first_rate)
    load = ("--rate=800", "--rows=3", f"--table-rows={TABLE_ROWS}")
    status, report = ran(tmp_path, "p999", f"--models={models}", "--runs=1", *load)
    assert (len(both), both[0]) == (2, 800)
    assert both[1] > 0
    assert status == any(at_rate["errors"] for at_rate in report["loads"])
    (at_rate,) = report["loads"]
    for run in at_rate["runs"]:
        assert run["server_count"] == run["clients_count"] > 5_000
        assert at_rate["errors"] <= run["clients_count"] * REFUSED_SHARE_MAX
        refusal = f" x {StatusCode.RESOURCE_EXHAUSTED.value}: "
        assert all(refusal in text for text in at_rate["error_messages"])
        # Too many refusals leave too few answers for the clients' p999.
        figures = {key for key, value in run["clients"].items() if value is not None}
        has_p999 = run["clients_count"] - at_rate["errors"] >= 5_000
        assert figures == {"p50_ms", "p99_ms"} | ({"p999_ms"} if has_p999 else set())
        # The server took no longer than its client for any request, within the stated error.
        assert all(0 < run["server"][key] <= run["clients"][key] * 1.008 for key in figures)
        assert is_in_its_bucket(run)


def test_disturbed_segments_are_compared_with_quiet(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    visitors: list[Visitor] = []
    visit_counts: list[int] = []

    @contextmanager
    def visited_by(them: Sequence[Visitor]) -> Iterator[None]:
        visitors[:] = them
        with visited(them):
            yield
        visit_counts.extend(visitor.visit_count for visitor in them)
        visitors.clear()

    def timed_with_visits(clock: Clock, seconds: float) -> Span:
        """Keeps the segment open until each visitor has made a whole visit in it.

        Visitors have the lowest priority, so on a busy machine a visit may take longer than a segment.
        """
        wanted = [visitor.visit_count + 2 for visitor in visitors]
        span = segments.timed(clock, seconds)
        wait_until(
            lambda: all(one.visit_count >= count for one, count in zip(visitors, wanted)),
            "visits in the segment",
        )
        return Span(span.begin_ns, clock.now_ns())

    monkeypatch.setattr(disturbances, "visited", visited_by)
    monkeypatch.setattr(beside, "timed", timed_with_visits)
    kinds_asked = ("--with=page and scrape", "--with=HTTP idle")
    arguments = (*kinds_asked, f"--models={models}", "--rounds=1", "--segment-seconds=2", *LOAD)
    status, report = ran(tmp_path, "beside", *arguments)
    assert (status, report["errors"], report["wrong_answers"]) == (0, 0, 0)
    # 400 on average: ten standard deviations.
    assert all(shown["count"] > 200 for shown in report["latency"].values())
    kinds = report["kinds"]
    assert kinds["page and scrape"]["ratio"]["p50_ms"] > 0
    assert kinds["page and scrape"]["ratio"]["p999_ms"] is None
    assert 0 < kinds["page and scrape"]["http_core_share"] < 1
    assert len(visit_counts) == 2

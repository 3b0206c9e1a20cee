import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtest.commands.swap import comparison_table, memory_table, print_swap_report, rows
from loadtest.measure.outcome_figures import error_messages, generator_figures
from loadtest.measure.processor_time import CoreShares
from loadtest.measure.unload_memory import Kept
from loadtest.plan.plan import Reply
from loadtest.plan.presets import PRESETS
from loadtest.report.report import medians, run_report, swap_report
from loadtest.report.tables import cores_line, exit_status, write_json
from serving.base.errors import InvalidConfig
from tests.unit.loadtest_outcomes import (
    SETUP,
    outcome_of,
    slow_in_swap_outcome,
    steady_outcome,
    swap_run,
)

FIGURES = {"count", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"}


def test_swap_report_keeps_published_shape():
    report = swap_report(SETUP, [swap_run(slow_in_swap_outcome())])
    assert json.loads(json.dumps(report)) == report
    assert set(report["windows"]) == {"steady", "load", "unload", "swap"}
    for figures in (*report["windows"].values(), report["first_swap"]):
        assert figures.keys() >= FIGURES
    assert (report["preset"], report["rate_per_second"]) == ("millpond", 300)
    assert (report["errors"], report["wrong_answers"]) == (0, 0)
    assert report["swaps"][0] == {
        "title": "load",
        "version": 2,
        "stage_seconds": {"restore": 0.5},
    }
    resident = report["memory"]["resident_mb"]
    assert resident == {
        "before": 100,
        "one_version": 600,
        "two_versions": 1_100,
        "after_last_unload": 610,
        "all_unloaded": None,
    }
    assert report["memory"]["arena_live_bytes_after_unload"] == 0
    assert report["generator"]["issue_delay_p99_ms"] == 0
    assert {"node", "processor", "cores", "commit"} <= report["machine"].keys()


def test_swap_report_compares_swap_with_steady_state():
    report = swap_report(SETUP, [swap_run(slow_in_swap_outcome())])
    assert report["windows"]["steady"]["p99_ms"] == 1
    assert report["windows"]["swap"]["p99_ms"] == 5
    assert report["ratio_p99_swap_over_steady"] == 5
    assert report["ratio_p99_swap_over_steady_all"] == 5


def test_p999_of_few_requests_is_null_with_shortfall():
    report = swap_report(SETUP, [swap_run(slow_in_swap_outcome())])
    swap = report["windows"]["swap"]
    assert swap["p999_ms"] is None
    assert swap["refused"] == {"p999_ms": f"{5_000 - swap['count']} requests missing of 5000"}
    assert report["ratio_p999_swap_over_steady"] is None
    # Nine seconds of steady state are enough.
    assert report["windows"]["steady"]["p999_ms"] == 1


def test_repeats_are_pooled_and_listed():
    report = swap_report(SETUP, [swap_run(slow_in_swap_outcome())] * 2)
    assert report["windows"]["swap"]["p999_ms"] == 5
    assert report["ratio_p999_swap_over_steady"] == 5
    assert [run["windows"]["swap"]["p999_ms"] for run in report["runs"]] == [None, None]
    assert report["medians_of_runs"]["ratio_p99_swap_over_steady"] == 5
    assert report["medians_of_runs"]["ratio_p999_swap_over_steady"] is None


def test_delayed_requests_count_only_in_totals():
    requests = [(float(ms), float(ms), ms + 1.0) for ms in range(12_000)]
    requests[8_500] = (8_500, 8_550, 8_551)
    report = swap_report(SETUP, [swap_run(outcome_of(requests))])
    assert report["windows"]["swap"]["max_ms"] == 1
    assert report["windows_all"]["swap"]["max_ms"] == 51
    assert report["generator"]["late_stretch_count"] == 1
    # The requests due from 8,500 to 8,551 ms, and the one answered at 8,500.
    assert report["generator"]["left_out_count"] == 53


def test_failed_or_wrong_requests_exit_one():
    outcome = outcome_of([(0, 0, 1)] * 3, codes=[0, 14, 0], replies=[Reply(0, 14, b"gone")])
    run = swap_run(outcome, is_wrong=outcome.reply_of < 0)
    failed = swap_report(SETUP, [run])
    assert (failed["errors"], failed["wrong_answers"]) == (1, 0)
    assert failed["error_messages"] == ["1 x 14: gone"]
    wrong = swap_report(SETUP, [swap_run(steady_outcome(3), is_wrong=outcome.codes == 0)])
    assert (wrong["errors"], wrong["wrong_answers"]) == (0, 2)
    assert (exit_status(failed), exit_status(wrong)) == (1, 1)
    assert exit_status(swap_report(SETUP, [swap_run(steady_outcome(3))])) == 0


def test_error_messages_come_by_how_frequent_they_are():
    replies = [Reply(0, 14, b"gone"), Reply(0, 4, b"late")]
    outcome = outcome_of(
        [(0, 0, 1)] * 4, codes=[14, 4, 4, 8], replies=replies, reply_of=[0, 1, 1, -1]
    )
    assert error_messages([outcome]) == ["2 x 4: late", "1 x 14: gone", "1 x 8"]


def test_median_of_runs_is_refused_if_one_run_is():
    runs: list[dict[str, Any]] = [
        {"ratio_a": 1.0, "ratio_b": None},
        {"ratio_a": 3.0, "ratio_b": 2.0},
    ]
    assert medians(runs) == {"ratio_a": 2.0, "ratio_b": None}


def test_generator_figures_show_delay_and_core_share():
    figures = generator_figures([steady_outcome(600)])
    assert figures["issue_delay_p99_ms"] == 0
    assert figures["late_stretch_count"] == 0
    assert figures["core_share"] == 0


def test_run_report_of_null_server_notes_unchecked():
    report = run_report(steady_outcome(600, latency_ms=2), None, 300)
    assert report["wrong_answers"] is None
    assert report["latency"]["p99_ms"] == 2


def test_table_of_a_neighbours_swaps_says_so():
    setup = replace(SETUP, reloaded="neighbour")
    console = Console(file=io.StringIO(), width=200)
    print_swap_report(swap_report(setup, [swap_run(slow_in_swap_outcome())]), console)
    assert isinstance(console.file, io.StringIO)
    assert "300 requests/s while another model is swapped" in console.file.getvalue()


def test_table_of_two_models_swaps_says_so():
    setup = replace(SETUP, reloaded_too=["neighbour"])
    console = Console(file=io.StringIO(), width=200)
    print_swap_report(swap_report(setup, [swap_run(slow_in_swap_outcome())]), console)
    assert isinstance(console.file, io.StringIO)
    assert "two models swapped at the same moments" in console.file.getvalue()


def test_memory_kept_is_a_share_of_the_large_version():
    table = memory_table({"stock": Kept(tiny_mb=100, large_mb=600, tiny_again_mb=350)})
    assert [next(iter(column.cells)) for column in table.columns][-2:] == ["250", "50.0%"]


def test_tables_show_refused_figures_as_dash():
    report = swap_report(SETUP, [swap_run(slow_in_swap_outcome())])
    text = io.StringIO()
    console = Console(file=text, width=200)
    print_swap_report(report, console)
    console.print(comparison_table({"millpond": report}))
    wanted = ("swap over steady: p99 5.00, p999 -", "1.0 / 1.0", "5.0 / -", "610")
    assert [words for words in wanted if words not in text.getvalue()] == []


def test_server_of_a_command_has_no_figures_of_its_own():
    setup = replace(SETUP, preset="tfs", command="serve {port} {base}")
    run = swap_run(slow_in_swap_outcome(), stages=(), unknown=("no pages", "no logs"))
    report = swap_report(setup, [run])
    console = Console(file=io.StringIO(), width=200)
    print_swap_report(report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert (report["preset"], report["command"]) == ("tfs", "serve {port} {base}")
    assert "/v1/swaps" not in text
    assert "tfs: no pages\ntfs: no logs\n" in text


def test_rows_are_presets_and_commands():
    assert rows(None, []) == {"millpond": None}
    assert rows(["all"], []) == dict.fromkeys(PRESETS)
    assert rows(None, [("tfs", "serve")]) == {"tfs": "serve"}
    assert rows(["stock"], [("tfs", "serve")]) == {"stock": None, "tfs": "serve"}
    with pytest.raises(InvalidConfig, match="two rows would have the name 'stock'"):
        rows(["stock"], [("stock", "serve")])


def test_disturbed_run_is_marked():
    quiet = CoreShares(server=0.5, generator=0.05, other=0.01, stolen=0)
    noisy = CoreShares(server=0.5, generator=0.05, other=0.01, stolen=0.3)
    runs = [swap_run(steady_outcome(600), cores=cores) for cores in (quiet, noisy, quiet)]
    assert "DISTURBED" in cores_line(swap_report(SETUP, runs)["cores_used"])
    assert "DISTURBED" not in cores_line(swap_report(SETUP, runs[:1])["cores_used"])


def test_json_is_written_only_on_request(tmp_path: Path):
    write_json(None, {})
    write_json(tmp_path / "report.json", {"a": 1})
    assert json.loads((tmp_path / "report.json").read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [tmp_path / "report.json"]


def test_json_that_cannot_be_written_is_an_error(tmp_path: Path):
    with pytest.raises(OSError, match="absent"):
        write_json(tmp_path / "absent" / "report.json", {})

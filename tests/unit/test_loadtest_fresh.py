import argparse
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from loadtest.commands.fresh import FRESH, rollback_figures, setup_of
from loadtest.drive.trainer import Export
from loadtest.measure.fresh_run import FreshRun
from loadtest.measure.freshness import first_answers
from loadtest.measure.version_loads import VersionLoad
from loadtest.report.fresh_report import fresh_report, freshness_table, print_fresh
from serving.base.errors import InvalidConfig
from tests.unit.loadtest_outcomes import MS, slow_in_swap_outcome, swap_run

OPTIONS = ("--table-gb=0.128", "--rows-per-minute=60000", "--every=2", "--versions=1")


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    FRESH.add_arguments(parser)
    return parser.parse_args([*OPTIONS, *options])


def load(**changes: Any) -> VersionLoad:
    values: dict[str, Any] = {
        "load_seconds": 2.0,
        "stage_seconds": {"restore": 1.5, "init": 0.25},
        "restored_bytes": 4_000_000,
        "kept_bytes": 0,
        "copied_bytes": 0,
        "restored_in_full": "",
    }
    return VersionLoad(**{**values, **changes})


def fresh_run(**changes: Any) -> FreshRun:
    """A run with one swap, from 8 to 11 s, in which the answers are slow."""
    run = swap_run(slow_in_swap_outcome())
    versions = np.where(run.outcome.scheduled_ns >= 9_000 * MS, 2, 1)
    exports = [Export(2, 2_000, 3_000_000, 7_500 * MS, 8_000 * MS)]
    values: dict[str, Any] = {
        "outcome": run.outcome,
        "versions": versions,
        "exports": exports,
        "answers": first_answers(exports, run.outcome, versions),
        "spans": run.spans,
        "steady_from_ns": run.steady_from_ns,
        "first_load": load(),
        "loads": [load(restored_in_full="no copy of the tables")],
        "resident_bytes": [1_000_000, 5_000_000],
        "cores": run.cores,
        "rollbacks": {},
    }
    return FreshRun(**{**values, **changes})


def test_setup_rests_as_between_exports_if_not_told():
    assert setup_of(parsed()).rest_seconds == 2
    assert setup_of(parsed("--rest=9")).rest_seconds == 9


def test_setup_has_the_flags_of_the_server():
    setup = setup_of(parsed("--flag=load_seconds_target=2", "--flag=a=b=c"))
    assert setup.server_flags == {"load_seconds_target": "2", "a": "b=c"}


def test_setup_changes_so_many_rows_a_minute():
    values = setup_of(parsed()).values
    assert (values.row_count, values.pool_count, values.step_count) == (1_000_000, 10_000, 1_000)


def test_more_rows_than_the_pool_are_refused():
    with pytest.raises(InvalidConfig, match="10,000 rows that may change"):
        setup_of(parsed("--rows-per-minute=700000"))


def test_report_compares_swaps_with_steady_requests():
    report = fresh_report(setup_of(parsed()), {"delta": [fresh_run()]})
    shown = report["kinds"]["delta"]
    assert (report["errors"], report["wrong_answers"]) == (0, 0)
    assert shown["ratio_p99_swap_over_steady"] == 5
    # 10 s, without 3 s of the swap and half a second of the export before it, and two at the edges.
    assert shown["windows"]["steady"]["count"] == 10_000 - 3_000 - 500 - 2
    assert shown["ratio_p999_swap_over_steady"] is None
    assert shown["from_export"]["max_seconds"] == 1.505
    assert shown["read_bytes"] == {"median": 4_000_000, "max": 4_000_000, "sum": 4_000_000}


def test_report_counts_wrong_answers_of_all_runs():
    versions = fresh_run().versions.copy()
    versions[:3] = -1
    runs = {"delta": [fresh_run(), fresh_run(versions=versions)], "full": [fresh_run()]}
    report = fresh_report(setup_of(parsed()), runs)
    assert report["wrong_answers"] == 3
    assert report["kinds"]["delta"]["from_export"]["count"] == 2


def test_table_has_a_column_for_each_kind():
    report = fresh_report(setup_of(parsed()), {"delta": [fresh_run()], "full": [fresh_run()]})
    console = Console(width=120, record=True)
    console.print(freshness_table(report))
    text = console.export_text()
    (line,) = (line for line in text.splitlines() if "rename to answer" in line)
    assert [cell.strip() for cell in line.strip("│ ").split("│")[1:]] == ["1.00, -, 1.00"] * 2
    assert "128 MB of tables" in text


def test_report_has_stages_and_memory_of_all_loads():
    loads = [load(stage_seconds={"restore": seconds}) for seconds in (0.5, 1.0)]
    run = fresh_run(resident_bytes=[1_000_000, 5_000_000], loads=loads[:1])
    other = fresh_run(resident_bytes=[9_000_000, 9_500_000], loads=loads[1:])
    shown = fresh_report(setup_of(parsed()), {"delta": [run, other]})["kinds"]["delta"]
    assert shown["first_load"]["stages"]["restore"] == {"median_seconds": 1.5, "max_seconds": 1.5}
    assert shown["load"]["stages"] == {"restore": {"median_seconds": 0.75, "max_seconds": 1.0}}
    assert shown["resident_bytes"] == {
        "before": 9_000_000,
        "most": 9_500_000,
        "gained": 4_000_000,
    }


def test_full_restores_and_rollbacks_are_printed():
    report = fresh_report(setup_of(parsed()), {"delta": [fresh_run()]})
    rollbacks: dict[str, list[float]] = {
        "seen_ms": [0.5, 0.75, 1.5],
        "reply_ms": [1.0, 2.0, 4.0],
        "answer_ms": [2.0, 3.0, 5.0],
        "is_late": [0, 0, 1],
    }
    report |= rollback_figures(rollbacks)
    console = Console(width=160, record=True)
    print_fresh(report, console)
    text = console.export_text()
    assert "1 restored in full: no copy of the tables" in text
    assert "first answer: p50 0.75, max 1.5; to the reply: p50 2, max 4 of 3" in text
    assert "first answers of another version: 1" in text

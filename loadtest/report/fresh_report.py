"""The figures of `fresh`: the JSON that other tools read, and the tables that people read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.measure.fresh_run import FreshRun, FreshSetup
from loadtest.measure.freshness import rows_per_minute, seconds_figures, windows
from loadtest.measure.latency import figures, ratio
from loadtest.measure.outcome_figures import answer_figures, generator_figures, latencies_ns
from loadtest.measure.processor_time import worst_cores
from loadtest.measure.timeline import held_up_by_generator, late_stretches
from loadtest.measure.version_loads import VersionLoad
from loadtest.report.report import machine
from loadtest.report.tables import (
    cores_line,
    generator_line,
    latency_table,
    number,
    print_answers,
)

_MB = 1_000_000


def fresh_report(setup: FreshSetup, runs: Mapping[str, Sequence[FreshRun]]) -> dict[str, Any]:
    """Makes the JSON of all runs, by the kind of their versions."""
    kinds = {kind: kind_report(of_kind) for kind, of_kind in runs.items()}
    return {
        "table_bytes": setup.values.table_bytes,
        "pool_row_count": 2 * setup.values.pool_count,
        "version_count": setup.version_count,
        "every_seconds": setup.every_seconds,
        "rate_per_second": setup.rate_per_second,
        "rows": setup.rows,
        "seed": setup.seed,
        "machine": machine(),
        "errors": sum(shown["errors"] for shown in kinds.values()),
        "wrong_answers": sum(shown["wrong_answers"] for shown in kinds.values()),
        "kinds": kinds,
    }


def kind_report(runs: Sequence[FreshRun]) -> dict[str, Any]:
    """Makes the JSON of the runs of one kind, whose requests and versions are pooled."""
    outcomes = [run.outcome for run in runs]
    shown = _windows(runs)
    answers = [answer for run in runs for answer in run.answers]
    exports = [export for run in runs for export in run.exports]
    return {
        "repeats": len(runs),
        **answer_figures(outcomes, sum(run.wrong_count for run in runs)),
        "rows_per_minute": rows_per_minute(run.exports for run in runs),
        "from_export": seconds_figures([answer.from_export_seconds for answer in answers]),
        "from_rename": seconds_figures([answer.from_rename_seconds for answer in answers]),
        "written_bytes": _bytes_figures([export.own_bytes for export in exports]),
        "read_bytes": _bytes_figures([load.restored_bytes for run in runs for load in run.loads]),
        "restored_in_full": [
            load.restored_in_full for run in runs for load in run.loads if load.restored_in_full
        ],
        "first_load": _load_figures([run.first_load for run in runs]),
        "load": _load_figures([load for run in runs for load in run.loads]),
        "resident_bytes": _resident_figures(runs),
        "windows": shown,
        **{
            f"ratio_{key}_{window}_over_steady": ratio(shown[window], shown["steady"], f"{key}_ms")
            for window in ("swap", "all")
            for key in ("p50", "p99", "p999")
        },
        "versions": [_version_figures(run) for run in runs],
        "generator": generator_figures(outcomes),
        "cores_used": asdict(worst_cores([run.cores for run in runs])),
    }


def _windows(runs: Sequence[FreshRun]) -> dict[str, Any]:
    """The latencies by window, without requests that the generator's own stalls affected."""
    pooled: dict[str, list[Any]] = {}
    for run in runs:
        is_clean = ~held_up_by_generator(run.outcome, late_stretches(run.outcome))
        masks = windows(run.outcome, run.exports, run.spans, run.steady_from_ns)
        for name, mask in masks.items():
            pooled.setdefault(name, []).append(latencies_ns(run.outcome)[mask & is_clean])
    return {name: figures(np.concatenate(parts)) for name, parts in pooled.items()}


def _bytes_figures(counts: Sequence[int]) -> dict[str, Any]:
    return {"median": round(float(np.median(counts))), "max": max(counts), "sum": sum(counts)}


def _load_figures(loads: Sequence[VersionLoad]) -> dict[str, Any]:
    """The seconds of whole loads and of their stages."""
    stages = {stage: None for load in loads for stage in load.stage_seconds}
    return {
        "seconds": _stage_figures([load.load_seconds for load in loads]),
        "stages": {
            stage: _stage_figures([load.stage_seconds.get(stage, 0.0) for load in loads])
            for stage in stages
        },
    }


def _stage_figures(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "median_seconds": round(float(np.median(seconds)), 4),
        "max_seconds": round(max(seconds), 4),
    }


def _resident_figures(runs: Sequence[FreshRun]) -> dict[str, int]:
    """The server's memory before the swaps, the most after one, and the most that one run has gained."""
    return {
        "before": max(run.resident_bytes[0] for run in runs),
        "most": max(max(run.resident_bytes) for run in runs),
        "gained": max(max(run.resident_bytes) - run.resident_bytes[0] for run in runs),
    }


def _version_figures(run: FreshRun) -> list[dict[str, Any]]:
    return [
        {
            **asdict(answer),
            **asdict(load),
            "written_bytes": export.own_bytes,
            "resident_bytes": resident_bytes,
        }
        for answer, export, load, resident_bytes in zip(
            run.answers, run.exports, run.loads, run.resident_bytes[1:], strict=True
        )
    ]


# --- What people read -----------------------------------------------------------------------------


def print_fresh(report: Mapping[str, Any], console: Console) -> None:
    """Prints the tables of all kinds, and what was lost."""
    for kind, shown in report["kinds"].items():
        title = f"{kind} versions, {report['rate_per_second']:g} requests/s"
        console.print(latency_table(title, shown["windows"]))
        console.print(generator_line(shown["generator"]))
        console.print(cores_line(shown["cores_used"]))
        print_answers(shown, console)
        for reason in dict.fromkeys(shown["restored_in_full"]):
            count = shown["restored_in_full"].count(reason)
            console.print(f"{count} restored in full: {reason}", markup=False, highlight=False)
    console.print(freshness_table(report))
    if rollbacks := report.get("rollback_reply_ms"):
        seen = report["rollback_seen_ms"]
        console.print(
            f"rollback to the version before, ms to its first answer: p50 {seen['p50_ms']:g}, max "
            f"{seen['max_ms']:g}; to the reply: p50 {rollbacks['p50_ms']:g}, max "
            f"{rollbacks['max_ms']:g} of {rollbacks['count']}; first answers of another version: "
            f"{report['first_answers_of_another_version']}"
        )


def freshness_table(report: Mapping[str, Any]) -> Table:
    """A table with a column for each kind of versions. Pure."""
    kinds = report["kinds"]
    table = Table(f"{report['table_bytes'] / _MB:,.0f} MB of tables", *kinds)
    rows: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
        "versions": lambda shown: f"{shown['from_export']['count']:,}",
        "rows changed a minute": lambda shown: _count(shown["rows_per_minute"]),
        "s, export's start to answer: p50, p99, most": lambda shown: _seconds(shown["from_export"]),
        "s, rename to answer: p50, p99, most": lambda shown: _seconds(shown["from_rename"]),
        "MB written, median and most": lambda shown: _megabytes(shown["written_bytes"]),
        "MB read, median and most": lambda shown: _megabytes(shown["read_bytes"]),
        "s of restore: base, median, most": lambda shown: _stage(shown, "restore"),
        "s of init: base, median, most": lambda shown: _stage(shown, "init"),
        "MB resident before, most gained": lambda shown: _resident(shown["resident_bytes"]),
        "p50, p99, p999 in swaps over steady": lambda shown: _ratios(shown, "swap"),
        "p50, p99, p999 of all over steady": lambda shown: _ratios(shown, "all"),
        "lost, wrong": lambda shown: f"{shown['errors']}, {shown['wrong_answers']}",
    }
    for name, cell in rows.items():
        table.add_row(name, *(cell(shown) for shown in kinds.values()))
    return table


def _count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _seconds(shown: Mapping[str, Any]) -> str:
    return ", ".join(number(shown[f"{key}_seconds"]) for key in ("p50", "p99", "max"))


def _megabytes(shown: Mapping[str, Any]) -> str:
    return f"{shown['median'] / _MB:,.1f}, {shown['max'] / _MB:,.1f}"


def _stage(shown: Mapping[str, Any], stage: str) -> str:
    first, later = (shown[key]["stages"].get(stage) for key in ("first_load", "load"))
    seconds = [first and first["median_seconds"]]
    seconds += [later and later[f"{key}_seconds"] for key in ("median", "max")]
    return ", ".join(number(item) for item in seconds)


def _resident(shown: Mapping[str, int]) -> str:
    return f"{shown['before'] / _MB:,.0f}, {shown['gained'] / _MB:,.1f}"


def _ratios(shown: Mapping[str, Any], window: str) -> str:
    return ", ".join(
        number(shown[f"ratio_{key}_{window}_over_steady"]) for key in ("p50", "p99", "p999")
    )

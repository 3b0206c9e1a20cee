"""`neighbour`: an idle model B of 500 MB reloads while model A is under load
(tensorflow/serving#1866)."""

import argparse
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from loadtest.commands.options import (
    Command,
    add_load_options,
    add_preset_option,
    add_swap_options,
    setup_of,
)
from loadtest.drive.demo_model import demo_directory, prepare_model
from loadtest.measure.saturation import at_share_of_saturation
from loadtest.measure.scenario import measure, repeats_of
from loadtest.report.report import swap_report
from loadtest.report.tables import (
    cores_line,
    exit_status,
    generator_line,
    latency_table,
    number,
    write_json,
)
from serving.base.clock import SystemClock

_NEIGHBOUR_NAME = "neighbour"


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_preset_option(parser)
    add_load_options(parser, default_rate=300)
    add_swap_options(parser)


def _run(parsed: argparse.Namespace) -> int:
    clock, console = SystemClock(), Console()
    with demo_directory(parsed.models) as directory:
        exports = prepare_model(directory, parsed.table_rows, console.print)
        setup = at_share_of_saturation(
            setup_of(parsed, parsed.preset, reloaded=_NEIGHBOUR_NAME),
            *(parsed.saturation, exports, clock, console.print),
        )
        runs = [
            measure(one, exports, clock, console.print) for one in repeats_of(setup, parsed.repeats)
        ]
    report = neighbour_report(swap_report(setup, runs))
    rows = {"alone": report["alone"], "while B reloads": report["while_reloading"]}
    console.print(latency_table(f"A's latency, {setup.preset}", rows))
    console.print(
        f"reload over alone: p99 {number(report['ratio_p99'])}, p999 {number(report['ratio_p999'])}"
    )
    console.print(generator_line(report["generator"]))
    console.print(cores_line(report["cores_used"]))
    write_json(parsed.json, report)
    return exit_status(report)


def neighbour_report(swap: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a swap of B, named by their meaning for A: in `alone`, B is loaded and
    idle.
    """
    names = {"": "windows", "_all": "windows_all"}
    shown: dict[str, Any] = {}
    for suffix, windows in names.items():
        shown[f"alone{suffix}"] = swap[windows]["steady"]
        shown[f"while_reloading{suffix}"] = swap[windows]["swap"]
        for percentile in ("p99", "p999"):
            key = f"ratio_{percentile}_swap_over_steady{suffix}"
            shown[f"ratio_{percentile}{suffix}"] = swap[key]
    kept = (
        *("preset", "rate_per_second", "rows", "seed", "repeats", "errors", "wrong_answers"),
        *("error_messages", "swaps", "memory", "machine", "generator", "cores_used"),
    )
    return {**{key: swap[key] for key in kept}, **shown}


NEIGHBOUR = Command("one model under load while another one reloads", _add_options, _run)

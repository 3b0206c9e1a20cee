"""`swap`: swaps the model of a server under load, and shows the clients' figures."""

import argparse
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from loadtest.commands.given_servers import add_command_option
from loadtest.commands.options import (
    Command,
    add_load_options,
    add_preset_option,
    add_swap_options,
    picture_file,
    setup_of,
)
from loadtest.drive.demo_model import demo_directory, prepare_model
from loadtest.measure.saturation import at_share_of_saturation
from loadtest.measure.scenario import measure, repeats_of
from loadtest.report.plot import check_can_plot, plot_runs
from loadtest.report.report import swap_report
from loadtest.report.tables import (
    cores_line,
    exit_status,
    generator_line,
    latency_table,
    number,
    print_answers,
    write_json,
)
from serving.base.clock import SystemClock


def _add_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_mutually_exclusive_group()
    add_preset_option(server)
    add_command_option(server)
    add_load_options(parser, default_rate=300)
    add_swap_options(parser)
    parser.add_argument("--plot", type=picture_file, metavar="FILE.png", help="latency over time")


def _run(parsed: argparse.Namespace) -> int:
    check_can_plot(parsed.plot)
    clock, console = SystemClock(), Console()
    name, command = parsed.command or (parsed.preset, None)
    with demo_directory(parsed.models) as directory:
        exports = prepare_model(directory, parsed.table_rows, console.print)
        setup = at_share_of_saturation(
            setup_of(parsed, name, command=command),
            *(parsed.saturation, exports, clock, console.print),
        )
        runs = [
            measure(one, exports, clock, console.print) for one in repeats_of(setup, parsed.repeats)
        ]
    report = swap_report(setup, runs)
    print_swap_report(report, console)
    write_json(parsed.json, report)
    plot_runs(parsed.plot, {f"{name}: {setup.summary}": runs[0]})
    return exit_status(report)


def print_swap_report(report: Mapping[str, Any], console: Console) -> None:
    """Prints the tables of one server, and what it does not report."""
    title = f"{report['preset']}, {report['rate_per_second']:g} requests/s"
    rows = {**report["windows"], "first swap": report["first_swap"]}
    console.print(latency_table(title, rows))
    everything = {**report["windows_all"], "first swap": report["first_swap_all"]}
    console.print(latency_table("nothing left out", everything))
    console.print(
        f"swap over steady: p99 {number(report['ratio_p99_swap_over_steady'])}, "
        f"p999 {number(report['ratio_p999_swap_over_steady'])}; nothing left out: "
        f"p99 {number(report['ratio_p99_swap_over_steady_all'])}, "
        f"p999 {number(report['ratio_p999_swap_over_steady_all'])}"
    )
    if report["server_swaps"]:
        console.print(server_swaps_line(report["server_swaps_median"]))
    memory = report["memory"]
    resident = ", ".join(f"{k} {number(v, 0)}" for k, v in memory["resident_mb"].items())
    console.print(f"resident MB: {resident}", highlight=False)
    console.print(generator_line(report["generator"]))
    console.print(cores_line(report["cores_used"]))
    print_answers(report, console)
    print_unknown(report, console)


def print_unknown(report: Mapping[str, Any], console: Console) -> None:
    """Prints a line for each thing that the server does not report."""
    for sentence in report["unknown"]:
        console.print(f"{report['preset']}: {sentence}", highlight=False)


def server_swaps_line(shown: Mapping[str, Any]) -> str:
    """Returns the server's figures of its swaps beside the clients' figures, which include the
    wire.
    """
    server, clients = shown["server"], shown["clients"]
    figures = ", ".join(
        f"{key} {number(server[f'{key}_ms'])} | {number(clients[f'{key}_ms'])} ms"
        for key in ("p50", "p99", "p999")
    )
    return (
        f"each swap by /v1/swaps | by its clients, median of {shown['swap_count']}: {figures}; "
        f"requests {server['count']:,} | {clients['count']:,}"
    )


SWAP = Command("a server whose model is swapped under load", _add_options, _run)

"""`swap`: swaps the model of a server under load, and shows the clients' figures.

Several servers are measured in turn, several times: presets, to show the effect of each step, and
servers of any make. `--neighbour` swaps another model than the one that is loaded
(tensorflow/serving#1866), and `--both` swaps the two at the same moments. `--memory` measures what a
server keeps of an unloaded version, without load.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from loadtest.commands.given_servers import PLACEHOLDERS, swapping_command
from loadtest.commands.options import (
    Command,
    add_load_options,
    add_swap_options,
    picture_file,
    setup_of,
)
from loadtest.drive.demo_model import MODEL_NAME, DemoModel, demo_directory, prepare_model
from loadtest.measure.saturation import at_share_of_saturation
from loadtest.measure.scenario import Say, SwapRun, measure, repeats_of
from loadtest.measure.setup import Setup
from loadtest.measure.unload_memory import Kept, measure_kept
from loadtest.plan.presets import PRESETS, preset
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
from serving.base.clock import Clock, SystemClock
from serving.base.errors import InvalidConfig

_ALL = "all"
_DEFAULT_PRESET = "millpond"
_NEIGHBOUR_NAME = "neighbour"
# The versions before and after the one whose memory is measured.
_TINY_TABLE_ROWS = 100

_Rows = Mapping[str, str | None]
"""The shell command of each server by its name, None for a preset."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        choices=(*PRESETS, _ALL),
        action="append",
        metavar="NAME",
        help=f"one of {', '.join(PRESETS)}, or {_ALL}; may be repeated; default: millpond, or none "
        "beside --command",
    )
    parser.add_argument(
        "--command",
        dest="servers",
        type=swapping_command,
        action="append",
        default=[],
        metavar="[NAME=]CMD",
        help="any server of the PredictionService, by a shell command with "
        f"{PLACEHOLDERS}; may be repeated",
    )
    swapped = parser.add_mutually_exclusive_group()
    swapped.add_argument(
        "--neighbour",
        action="store_true",
        help="swap another model of the same size, which gets no requests",
    )
    swapped.add_argument(
        "--both",
        action="store_true",
        help="swap that one too, at the same moments as the model that gets the requests",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="measure instead how much of an unloaded version's memory the server keeps",
    )
    add_load_options(parser, default_rate=300)
    add_swap_options(parser)
    parser.add_argument(
        "--plot", type=picture_file, metavar="FILE.png", help="latency over time, one row a server"
    )


def _run(parsed: argparse.Namespace) -> int:
    check_can_plot(parsed.plot)
    given = rows(parsed.preset, parsed.servers)
    if parsed.servers and (parsed.neighbour or parsed.both or parsed.memory):
        raise InvalidConfig(
            "--neighbour, --both and --memory need servers of --preset, not of --command"
        )
    without_load = {"--plot": parsed.plot, "--neighbour": parsed.neighbour, "--both": parsed.both}
    for option, is_given in without_load.items():
        if parsed.memory and is_given:
            raise InvalidConfig(f"{option} has no effect with --memory, which runs without load")
    clock, console = SystemClock(), Console()
    with demo_directory(parsed.models) as directory:
        exports = prepare_model(directory, parsed.table_rows, console.print)
        if parsed.memory:
            return _show_memory(parsed, given, exports, directory, clock, console)
        reloaded = _NEIGHBOUR_NAME if parsed.neighbour else MODEL_NAME
        reloaded_too = [_NEIGHBOUR_NAME] if parsed.both else []
        setups = {
            name: at_share_of_saturation(
                setup_of(parsed, name, reloaded, command, reloaded_too),
                *(parsed.saturation, exports, clock, console.print),
            )
            for name, command in given.items()
        }
        runs = interleaved(setups, parsed.repeats, exports, clock, console.print)
    reports = {name: swap_report(setups[name], runs[name]) for name in setups}
    for name, report in reports.items():
        console.print(f"{name}: {setups[name].summary}", markup=False, highlight=False)
        print_swap_report(report, console)
    if len(reports) > 1:
        console.print(comparison_table(reports))
    first = next(iter(reports.values()))
    write_json(parsed.json, {"servers": reports} if len(reports) > 1 else first)
    plot_runs(parsed.plot, {f"{name}: {s.summary}": runs[name][0] for name, s in setups.items()})
    return max(exit_status(report) for report in reports.values())


def rows(presets: Sequence[str] | None, servers: Sequence[tuple[str, str]]) -> _Rows:
    """The servers in order. Raises InvalidConfig if a name is given twice."""
    chosen = presets or ([] if servers else [_DEFAULT_PRESET])
    names = [
        *(each for name in chosen for each in (PRESETS if name == _ALL else [name])),
        *(name for name, _ in servers),
    ]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"two rows would have the name '{name}'; use --command NAME=CMD")
    return dict.fromkeys(names) | dict(servers)


def interleaved(
    setups: Mapping[str, Setup], repeats: int, exports: DemoModel, clock: Clock, say: Say
) -> Mapping[str, Sequence[SwapRun]]:
    """Measures each server once, then each once more, so that disturbances of the machine affect
    all servers alike.
    """
    runs: dict[str, list[SwapRun]] = {name: [] for name in setups}
    each = {name: repeats_of(setup, repeats) for name, setup in setups.items()}
    for repeat in range(repeats):
        for name, of_name in each.items():
            say(f"repeat {repeat + 1} of {repeats}")
            runs[name].append(measure(of_name[repeat], exports, clock, say))
    return runs


def _show_memory(
    parsed: argparse.Namespace,
    given: _Rows,
    exports: DemoModel,
    directory: Path,
    clock: Clock,
    console: Console,
) -> int:
    tiny = prepare_model(directory, _TINY_TABLE_ROWS, console.print).base_path / "1"
    kept = {
        name: measure_kept(tiny, exports.base_path / "1", preset(name).flags, clock)
        for name in given
    }
    console.print(memory_table(kept))
    write_json(parsed.json, {name: asdict(shown) for name, shown in kept.items()})
    return 0


def memory_table(kept: Mapping[str, Kept]) -> Table:
    """A table with a row for each server."""
    table = Table("", "tiny MB", "large MB", "tiny again MB", "kept MB", "kept")
    for name, shown in kept.items():
        megabytes = (shown.tiny_mb, shown.large_mb, shown.tiny_again_mb, shown.kept_mb)
        table.add_row(name, *(f"{value:,.0f}" for value in megabytes), f"{shown.kept_ratio:.1%}")
    return table


def comparison_table(reports: Mapping[str, Mapping[str, Any]]) -> Table:
    """A table with a row for each server: p99 and p999, steady and in swaps, their ratios,
    and the cost of the first swap alone.
    """
    table = Table(
        Column("server", no_wrap=True),
        *("steady p99 / p999 ms", "swap p99 / p999 ms", "ratio p99 / p999"),
        *("first swap p99 / max ms", "resident MB", "lost"),
        title="effect of each step",
    )
    for name, report in reports.items():
        windows, first = report["windows"], report["first_swap"]
        table.add_row(
            name,
            _pair(windows["steady"], "p99_ms", "p999_ms"),
            _pair(windows["swap"], "p99_ms", "p999_ms"),
            _pair(report, "ratio_p99_swap_over_steady", "ratio_p999_swap_over_steady"),
            _pair(first, "p99_ms", "max_ms"),
            number(report["memory"]["resident_mb"]["after_last_unload"], 0),
            str(report["errors"] + report["wrong_answers"]),
        )
    return table


def _pair(shown: Mapping[str, Any], first: str, second: str) -> str:
    return f"{number(shown[first], 1)} / {number(shown[second], 1)}"


def print_swap_report(report: Mapping[str, Any], console: Console) -> None:
    """Prints the tables of one server, and what it does not report."""
    title = f"{report['preset']}, {report['rate_per_second']:g} requests/s"
    if report["is_neighbour_swapped"]:
        title += " while another model is swapped"
    if report["swapped_at_the_same_moments"]:
        title += ", two models swapped at the same moments"
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
    for sentence in report["unknown"]:
        console.print(f"{report['preset']}: {sentence}", highlight=False)


def server_swaps_line(shown: Mapping[str, Any]) -> str:
    """The server's figures of its swaps beside the clients' figures, which include the
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


SWAP = Command("servers whose model is swapped under load", _add_options, _run)

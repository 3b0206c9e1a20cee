"""`ablation`: measures every preset in turn, several times, to show the effect of each step. Servers
of any make may be rows too.
"""

import argparse
from collections.abc import Mapping, Sequence
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
from loadtest.commands.swap_command import print_unknown
from loadtest.drive.demo_model import DemoModel, demo_directory, prepare_model
from loadtest.measure.saturation import at_share_of_saturation
from loadtest.measure.scenario import Say, SwapRun, measure, repeats_of
from loadtest.measure.setup import Setup
from loadtest.plan.presets import PRESETS
from loadtest.report.plot import check_can_plot, plot_runs
from loadtest.report.report import swap_report
from loadtest.report.tables import cores_line, exit_status, generator_line, number, write_json
from serving.base.clock import Clock, SystemClock
from serving.base.errors import InvalidConfig


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        action="append",
        metavar="NAME",
        help="only this preset; may be given several times; default: all presets, or only millpond "
        "beside a --command",
    )
    parser.add_argument(
        "--command",
        dest="servers",
        type=swapping_command,
        action="append",
        default=[],
        metavar="[NAME=]CMD",
        help="a further row: any server of the PredictionService, by a shell command with "
        f"{PLACEHOLDERS}; may be given several times",
    )
    add_load_options(parser, default_rate=300)
    add_swap_options(parser)
    parser.add_argument("--plot", type=picture_file, metavar="FILE.png", help="one row a preset")


def _run(parsed: argparse.Namespace) -> int:
    check_can_plot(parsed.plot)
    clock, console = SystemClock(), Console()
    commands = rows(parsed.preset, parsed.servers)
    with demo_directory(parsed.models) as directory:
        exports = prepare_model(directory, parsed.table_rows, console.print)
        setups = {
            name: at_share_of_saturation(
                setup_of(parsed, name, command=command),
                *(parsed.saturation, exports, clock, console.print),
            )
            for name, command in commands.items()
        }
        runs = interleaved(setups, parsed.repeats, exports, clock, console.print)
    reports = {name: swap_report(setups[name], runs[name]) for name in setups}
    console.print(ablation_table(reports))
    for name, report in reports.items():
        console.print(f"{name}: {setups[name].summary}", markup=False)
        console.print(f"  {generator_line(report['generator'])}", soft_wrap=True)
        console.print(f"  {cores_line(report['cores_used'])}", soft_wrap=True)
        print_unknown(report, console)
    write_json(parsed.json, {"presets": reports})
    titles = {f"{name}: {setup.summary}": runs[name][0] for name, setup in setups.items()}
    plot_runs(parsed.plot, titles)
    return max(exit_status(report) for report in reports.values())


def rows(
    presets: Sequence[str] | None, servers: Sequence[tuple[str, str]]
) -> Mapping[str, str | None]:
    """Returns the shell command of each row, None for a preset. Raises InvalidConfig if a name is
    given twice.
    """
    names = [*(presets or (["millpond"] if servers else PRESETS)), *(name for name, _ in servers)]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"two rows would have the name '{name}'; use --command NAME=CMD")
    return dict.fromkeys(names) | dict(servers)


def interleaved(
    setups: Mapping[str, Setup], repeats: int, exports: DemoModel, clock: Clock, say: Say
) -> dict[str, Sequence[SwapRun]]:
    """Measures each preset once, then each once more, so that disturbances of the machine affect
    all presets alike.
    """
    runs: dict[str, list[SwapRun]] = {name: [] for name in setups}
    each = {name: repeats_of(setup, repeats) for name, setup in setups.items()}
    for repeat in range(repeats):
        for name, of_name in each.items():
            say(f"repeat {repeat + 1} of {repeats}")
            runs[name].append(measure(of_name[repeat], exports, clock, say))
    return {name: tuple(done) for name, done in runs.items()}


def ablation_table(reports: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns a table with a row for each preset: p99 and p999, steady and in swaps, their ratios,
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


ABLATION = Command("`swap` for every preset in turn: the effect of each step", _add_options, _run)

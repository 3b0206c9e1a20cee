"""`turns`: servers compared in short turns, each server started by its own shell command.

All servers run at the same time. In each round each of them gets each load for less than a second, so
that a disturbance of the machine affects all of them.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.commands.options import (
    Command,
    add_json_option,
    add_models_option,
    positive,
    positive_integer,
)
from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.drive.shell_server import ShellServer, filled_in, free_port
from loadtest.measure.latency import figures, medians, ratio
from loadtest.measure.outcome_figures import answer_figures
from loadtest.measure.processor_time import mean_cores
from loadtest.measure.saturation import answered_rate
from loadtest.measure.turns import (
    Results,
    Turn,
    run_rounds,
    take_turn,
    turn_request_count,
    warm_up,
)
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop, Loop, OpenLoop
from loadtest.report.report import machine
from loadtest.report.tables import cores_line, exit_status, number, print_answers, write_json
from serving.base.clock import Clock, SystemClock
from serving.base.errors import InvalidConfig

SHAPES = "1:1x1,1:1x16,1:4x16,1:64x64,100:1x1,100:1x16,100:4x16,100:64x64"
"""The default of `--shapes`."""

# The generator gives up on a closed loop after 25 s.
_TURN_SECONDS_MAX = 10
_KEYS = ("requests_per_second", "cpu_us", "p50_ms", "p99_ms")
_DIGITS = {"requests_per_second": 0, "cpu_us": 0, "p50_ms": 2, "p99_ms": 2}


def server_command(text: str) -> tuple[str, str]:
    """Returns the name and the shell command of NAME=CMD. Raises ArgumentTypeError."""
    name, equals, command = text.partition("=")
    if not name or not equals or not command.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=CMD")
    if "{port}" not in command:
        raise argparse.ArgumentTypeError(
            f"the command of '{name}' lacks {{port}}, the gRPC port that it must listen on"
        )
    return name, command


def closed_loops(text: str) -> Sequence[ClosedLoop]:
    """Returns the loops of ROWS:CHANNELSxIN_FLIGHT,...; none for ''. Raises ArgumentTypeError."""
    return [_closed_loop(item) for item in text.split(",") if item]


def open_loops(text: str) -> Sequence[OpenLoop]:
    """Returns the loops of ROWS:RATE,...; none for ''. Raises ArgumentTypeError."""
    return [_open_loop(item) for item in text.split(",") if item]


def _closed_loop(text: str) -> ClosedLoop:
    rows, _, clients = text.partition(":")
    channels, _, in_flight = clients.partition("x")
    try:
        return ClosedLoop(*(positive_integer(word) for word in (rows, channels, in_flight)))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not ROWS:CHANNELSxIN_FLIGHT: {error}"
        ) from None


def _open_loop(text: str) -> OpenLoop:
    rows, _, rate = text.partition(":")
    try:
        return OpenLoop(positive_integer(rows), positive(rate))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWS:RATE: {error}") from None


def _turn_seconds(text: str) -> float:
    seconds = positive(text)
    if seconds > _TURN_SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is above {_TURN_SECONDS_MAX}; use more rounds")
    return seconds


def _this_command() -> str:
    return (
        f"{shlex.quote(sys.executable)} -m serving serve --host=127.0.0.1 --port={{port}} "
        "--model_name={name} --model_base_path={base} --rest_api_port=0"
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command",
        dest="servers",
        type=server_command,
        action="append",
        metavar="NAME=CMD",
        help="a server: a shell command with {port}, {name} and {base} for the gRPC port, the model's "
        "name and its base path; may be repeated, and the first one is what the others are compared "
        "to; default: `this`, this checkout's own server",
    )
    parser.add_argument(
        "--shapes",
        type=closed_loops,
        default=SHAPES,
        metavar="ROWS:CHANNELSxIN_FLIGHT,...",
        help=f"closed loops; default {SHAPES}",
    )
    parser.add_argument(
        "--rates",
        type=open_loops,
        default="",
        metavar="ROWS:RATE,...",
        help="open loops; default none",
    )
    parser.add_argument("--rounds", type=positive_integer, default=9, help="default 9")
    parser.add_argument(
        "--seconds",
        type=_turn_seconds,
        default=0.7,
        metavar="S",
        help="seconds of each turn; default 0.7; longer if a p99 needs it, which needs 500 requests",
    )
    add_models_option(parser)
    parser.add_argument("--table-rows", type=positive_integer, default=300_000)
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    commands = server_commands(parsed.servers)
    loops: list[Loop] = [*parsed.shapes, *parsed.rates]
    if not loops:
        raise InvalidConfig("--shapes and --rates are both empty")
    loads = {
        loop.rows: CtrLoad(MODEL_NAME, rows=loop.rows, table_rows=parsed.table_rows, seed=1)
        for loop in loops
    }
    with demo_directory(parsed.models) as directory:
        base_path = prepare_model(directory, parsed.table_rows, console.print).base_path
        with running(commands, base_path, clock) as servers:
            results = _measured(parsed, servers, loops, loads, clock, console)
    report = turns_report(commands, results)
    print_turns(report, console)
    write_json(parsed.json, report)
    return exit_status(report)


def server_commands(given: Sequence[tuple[str, str]] | None) -> Mapping[str, str]:
    """Returns the commands by name, by default `this` alone. Raises InvalidConfig if a name is
    given twice.
    """
    if not given:
        return {"this": _this_command()}
    names = [name for name, _ in given]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"--command: duplicate name '{name}'")
    return dict(given)


@contextmanager
def running(
    commands: Mapping[str, str], base_path: Path, clock: Clock
) -> Iterator[Mapping[str, ShellServer]]:
    """Yields the servers by name while all of them run."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-turns-")))
        servers: dict[str, ShellServer] = {}
        for name, command in commands.items():
            port = free_port()
            filled = filled_in(command, port=port, model_name=MODEL_NAME, base_path=base_path)
            server = ShellServer(name, filled, port, logs / f"{len(servers)}.log", clock)
            servers[name] = stack.enter_context(server)
        yield servers


def _measured(
    parsed: argparse.Namespace,
    servers: Mapping[str, ShellServer],
    loops: Sequence[Loop],
    loads: Mapping[int, CtrLoad],
    clock: Clock,
    console: Console,
) -> Results:
    request_counts: dict[tuple[Loop, str], int] = {}
    for name, server in servers.items():
        server.wait_until_ready(next(iter(loads.values())).payloads[0])
        console.print(f"{name} is ready")
    for name, server in servers.items():
        for rows, load in loads.items():
            warm_up(server, load, rows, clock)
        for loop in loops:
            request_counts[loop, name] = turn_request_count(
                server, loop, loads[loop.rows], parsed.seconds, clock
            )

    def take(loop: Loop, name: str, round_number: int) -> Turn:
        if (loop, name) == (loops[0], next(iter(servers))):
            console.print(f"round {round_number + 1} of {parsed.rounds}")
        count = request_counts[loop, name]
        # All servers get the requests of the same seed in a round, and others in the next round.
        return take_turn(servers[name], loop, loads[loop.rows], count, round_number, clock)

    return run_rounds(parsed.rounds, loops, list(servers), take)


# --- Figures --------------------------------------------------------------------------------------


def turns_report(commands: Mapping[str, str], results: Results) -> dict[str, Any]:
    """Returns the JSON: for each loop and server the medians over the rounds, and the medians of the
    ratios to the first server in the same round.
    """
    turns = [turn for each in results.values() for turn in each]
    return {
        "commands": dict(commands),
        "loops": {str(loop): _of_loop(results, loop) for loop, _ in results},
        **answer_figures([t.outcome for t in turns], sum(t.wrong_count for t in turns)),
        "is_realtime": all(turn.outcome.is_realtime for turn in turns),
        "cores": asdict(mean_cores([turn.cores for turn in turns])),
        "machine": machine(),
    }


def _of_loop(results: Results, loop: Loop) -> dict[str, Any]:
    of_loop = {name: turns for (of, name), turns in results.items() if of == loop}
    rounds = {name: [_turn_figures(turn, loop) for turn in of_loop[name]] for name in of_loop}
    first = next(iter(rounds.values()))
    return {
        name: {
            **medians(each, _KEYS),
            "ratios": medians(_ratios(each, first), _KEYS),
            "pooled": figures(np.concatenate([turn.latencies_ns(loop) for turn in of_loop[name]])),
            "failed_count": sum(int((turn.outcome.codes != 0).sum()) for turn in of_loop[name]),
            "wrong_count": sum(turn.wrong_count for turn in of_loop[name]),
            "rounds": each,
        }
        for name, each in rounds.items()
    }


def _ratios(
    each: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, float | None]]:
    return [
        {key: ratio(one, of_first, key) for key in _KEYS}
        for one, of_first in zip(each, first, strict=True)
    ]


def _turn_figures(turn: Turn, loop: Loop) -> dict[str, Any]:
    return {
        **figures(turn.latencies_ns(loop)),
        "requests_per_second": round(answered_rate(turn.outcome), 1),
        "cpu_us": round(turn.server_ns / max(len(turn.outcome.codes), 1) / 1_000, 1),
    }


def print_turns(report: Mapping[str, Any], console: Console) -> None:
    """Prints the table, the lost and wrong answers, and the use of the cores."""
    console.print(_table(report["loops"]))
    if not report["is_realtime"]:
        console.print("generator NOT real-time: it may not set SCHED_FIFO")
    print_answers(report, console)
    console.print(f"mean of all turns: {cores_line(report['cores'])}", highlight=False)


def _table(loops: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    table = Table(
        *("load", "server", "rate/s", "CPU µs", "p50 ms", "p99 ms"),
        *("p999 ms", "failed"),
        title="medians over the rounds; p999 over all; ×: to the first server in the same round",
    )
    for loop, servers in loops.items():
        for place, (name, shown) in enumerate(servers.items()):
            table.add_row(
                "" if place else loop,
                name,
                *(_cell(shown, key, is_first=place == 0) for key in _KEYS),
                number(shown["pooled"]["p999_ms"]),
                f"{shown['failed_count']:,}",
            )
        table.add_section()
    return table


def _cell(shown: Mapping[str, Any], key: str, *, is_first: bool) -> str:
    figure = number(shown[key], _DIGITS[key])
    ratio = shown["ratios"][key]
    return figure if is_first or ratio is None else f"{figure}\n×{ratio:.2f}"


TURNS = Command(
    "servers compared in short turns, which share the machine's noise", _add_options, _run
)

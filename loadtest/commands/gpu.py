"""`gpu`: the CTR model and dense models on this machine's CPUs and on its accelerator, side by side.

A server without accelerator and one with it have the same cores, the first half of those that this process may
use, and the clients have the others. Parts that serve the same models share their servers. A part that fails, or has
taken all of its time, does not stop the others, and `--json` is written after each. Without a GPU it runs on any
plugin:

    python -m loadtest gpu --accelerator pjrt:PLUGIN.so --table-rows 1000 --dense-parameters 100000

It takes about 4 minutes on a GPU machine with the models made ahead (`--models DIR --parts none`). With `--lean` those
have no weights, and a later run computes them: so they can be sent to a machine without TensorFlow.
"""

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from loadtest.commands.gpu_parts import (
    DEFAULT_PARTS,
    DELTA,
    FAULTS,
    HOST_RATES,
    MANY,
    NONE,
    ONE_GRAPH,
    REPLICAS,
    TAIL,
    TWO_GRAPHS,
    ZIPF,
    measured,
    part_names,
    parts_of,
    prepare_models,
)
from loadtest.commands.options import (
    Command,
    add_json_option,
    add_models_option,
    positive,
    positive_integer,
)
from loadtest.drive.accelerated_pair import (
    IN_FLIGHT_MAX,
    KeptServers,
    Machine,
    halves_of_cores,
    keep_to_client_cores,
)
from loadtest.drive.demo_model import DemoModel, demo_directory
from loadtest.drive.dense_model import KINDS, dense_base_path
from loadtest.measure.accelerator_dense import SERVERS
from loadtest.measure.accelerator_parts import MOST_IN_FLIGHT, Bench, Figures
from loadtest.measure.part_time import PartTime
from loadtest.report.gpu_report import fault_count, gpu_table
from loadtest.report.report import machine
from loadtest.report.tables import write_json
from serving.base.clock import Clock, SystemClock
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS

_CORES_PER_GENERATOR = 4


def row_counts(text: str) -> Sequence[int]:
    """Reads ROWS,... Raises ArgumentTypeError."""
    return [positive_integer(item) for item in text.split(",")]


def server_flag(text: str) -> tuple[str, str]:
    """Reads --NAME=VALUE. Raises ArgumentTypeError."""
    name, equals, value = text.removeprefix("--").partition("=")
    if not name or not equals or not text.startswith("--"):
        raise argparse.ArgumentTypeError(f"{text!r} is not --NAME=VALUE")
    return name, value


def choices(*known: str) -> Callable[[str], Sequence[str]]:
    """Returns what reads NAME,... of `known`, and raises ArgumentTypeError for another name."""

    def read(text: str) -> Sequence[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return read


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts",
        type=part_names,
        default=",".join(DEFAULT_PARTS),
        metavar="PART,...",
        help=f"default {','.join(DEFAULT_PARTS)}; {HOST_RATES}: the accelerator's rates with tables in the server's "
        f"memory; {REPLICAS}: rates of a model on the first device, and with replicas on all; "
        f"{TAIL}: the latency of each swap and over time, at a fixed rate; "
        f"{MANY}: 200 swaps with rollbacks, some 5 minutes; "
        f"{FAULTS}: as many with a device that fails, and a server that is killed; "
        f"{ZIPF}: many models on an accelerator that has not room for all; "
        f"{DELTA}: swaps of 1 %% deltas of the CTR model, beside swaps in which all is sent; "
        f"{NONE}: only make the models",
    )
    for option, text in (("--part-seconds", "each part"), ("--all-seconds", "all parts together")):
        parser.add_argument(
            option,
            type=positive,
            default=math.inf,
            metavar="S",
            help=f"the most seconds of {text}; what is not measured by then is a fault; default: no limit",
        )
    _add_accelerator_options(parser)
    _add_size_options(parser)
    add_models_option(parser)
    parser.add_argument(
        "--lean",
        action="store_true",
        help="with --parts none: leave the new models without the weights that a later run can compute",
    )
    add_json_option(parser)


def _add_accelerator_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accelerator",
        default="cuda",
        metavar="WHICH",
        help="cuda (the default), or pjrt:PLUGIN.so",
    )
    parser.add_argument(
        "--accelerator-rows",
        default="1,8,32,128,512,2048",
        metavar="ROWS,...",
        help="the numbers of rows to compile for; default 1,8,32,128,512,2048",
    )
    parser.add_argument(
        "--accelerator-cache",
        type=Path,
        metavar="DIR",
        help="keep compiled programs in DIR; default: a temporary directory",
    )
    parser.add_argument(
        "--library-path",
        default="",
        metavar="DIRS",
        help="LD_LIBRARY_PATH of the servers with the accelerator",
    )
    parser.add_argument(
        "--server-flag",
        type=server_flag,
        action="append",
        default=[],
        metavar="--NAME=VALUE",
        help="a flag of both servers, or of the one with the accelerator if its name begins with accelerator; as "
        "--server-flag=--accelerator_autotuning=never; repeatable",
    )


def _add_size_options(parser: argparse.ArgumentParser) -> None:
    for option, default, text in (
        ("--table-rows", DEFAULT_TABLE_ROWS, "rows of each of the CTR model's 26 tables"),
        ("--dense-parameters", 100_000_000, "parameters of each dense model"),
        ("--dense-rows", 32, "rows of a request to a dense model"),
        ("--swap-rows", 32, "rows of a request in swaps and beside a neighbour"),
        ("--swaps", 5, "swaps of each server in the parts swap, tail and delta"),
        ("--many-swaps", 200, "swaps of the parts many and faults"),
        ("--many-rate", 4_000, "requests per second of the part many"),
        ("--faults-rate", 100, "requests per second of the part faults"),
        ("--tail-rate", 8_400, "requests per second of the part tail"),
        ("--zipf-models", 40, "models of the part zipf"),
        ("--zipf-parameters", 50_000_000, "parameters of each of them"),
        ("--zipf-rate", 200, "requests per second to all of them"),
        ("--zipf-seconds", 20, "seconds of that load"),
    ):
        parser.add_argument(
            option, type=positive_integer, default=default, help=f"{text}; default {default}"
        )
    parser.add_argument(
        "--no-hangs",
        action="store_true",
        help="leave out the runs that never end in the part faults, which take 30 s each",
    )
    parser.add_argument(
        "--zipf-memory-bytes",
        type=positive_integer,
        default=0,
        help="the accelerator's memory for them; default: 90 %% of what they take together",
    )
    parser.add_argument(
        "--tail-graphs",
        type=choices(ONE_GRAPH, TWO_GRAPHS),
        default=f"{ONE_GRAPH},{TWO_GRAPHS}",
        metavar="WHICH,...",
        help="one: the part tail swaps versions of one graph; two: of two graphs in turn; default both",
    )
    parser.add_argument(
        "--dense-servers",
        type=choices(*SERVERS),
        default=",".join(SERVERS),
        metavar="NAME,...",
        help=f"the servers of the part dense, in order; default {','.join(SERVERS)}",
    )
    parser.add_argument(
        "--rate-rows",
        type=row_counts,
        default="1,32,512,2048",
        metavar="ROWS,...",
        help="rows of a request in the part rates; default 1,32,512,2048",
    )
    parser.add_argument(
        "--rows", type=row_counts, default="1,32,512", metavar="ROWS,...", help="default 1,32,512"
    )
    parser.add_argument(
        "--seconds", type=positive, default=3, metavar="S", help="seconds of a rate; default 3"
    )
    parser.add_argument(
        "--generators",
        type=positive_integer,
        help="generators of load at once; default: one for each 4 of the clients' cores",
    )


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    server_cores, client_cores = halves_of_cores(sorted(os.sched_getaffinity(0)))
    with ExitStack() as stack:
        directory = stack.enter_context(demo_directory(parsed.models))
        cache = parsed.accelerator_cache or Path(
            stack.enter_context(TemporaryDirectory(prefix="millpond-programs-"))
        )
        generators = parsed.generators or max(len(client_cores) // _CORES_PER_GENERATOR, 1)
        given = Machine(
            accelerator=parsed.accelerator,
            rows=parsed.accelerator_rows,
            cache_directory=cache,
            library_path=parsed.library_path,
            cores=server_cores,
            in_flight_max=max(generators * MOST_IN_FLIGHT, IN_FLIGHT_MAX),
            more_flags=dict(parsed.server_flag),
        )
        bench = _bench(parsed, directory, given, generators, clock, console)
        stack.enter_context(bench.kept)
        prepare_models(parsed, directory, console.print)
        keep_to_client_cores(client_cores)

        def write(parts: Mapping[str, Figures]) -> None:
            report = {"accelerator": parsed.accelerator, "parts": parts, "machine": machine()}
            write_json(parsed.json, report)

        write({})
        parts = measured(
            parts_of(bench, parsed, directory),
            parsed.parts,
            clock,
            console,
            time=bench.time,
            kept=bench.kept,
            part_seconds=parsed.part_seconds,
            all_seconds=parsed.all_seconds,
            after_each=write,
        )
    if parts:
        console.print(gpu_table(parts))
    return 1 if any(map(fault_count, parts.values())) else 0


def _bench(
    parsed: argparse.Namespace,
    directory: Path,
    given: Machine,
    generators: int,
    clock: Clock,
    console: Console,
) -> Bench:
    return Bench(
        machine=given,
        ctr=DemoModel.below(directory, parsed.table_rows),
        table_rows=parsed.table_rows,
        dense={kind: dense_base_path(directory, kind, parsed.dense_parameters) for kind in KINDS},
        rows=parsed.rows,
        rate_rows=parsed.rate_rows,
        dense_rows=parsed.dense_rows,
        seconds=parsed.seconds,
        generators=generators,
        clock=clock,
        say=console.print,
        time=PartTime(clock),
        kept=KeptServers(),
    )


GPU = Command("a machine's CPUs beside its accelerator, side by side", _add_options, _run)

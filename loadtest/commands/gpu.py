"""`gpu`: the CTR model and dense models on this machine's CPUs and on its accelerator, side by side.

A server without accelerator and one with it have the same cores, the first half of those that this process may
use, and the clients have the others. Each part starts its own servers, and a part that fails does not stop the
others. Without a GPU it runs on any plugin:

    python -m loadtest gpu --accelerator pjrt:PLUGIN.so --table-rows 1000 --dense-parameters 100000

It takes about 4 minutes on a GPU machine with the models made ahead (`--models DIR --parts none`).
"""

import argparse
import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
from rich.console import Console

from loadtest.commands.options import (
    Command,
    add_json_option,
    add_models_option,
    positive,
    positive_integer,
)
from loadtest.drive.accelerated_pair import (
    ACCELERATOR,
    CPU,
    Machine,
    halves_of_cores,
    keep_to_client_cores,
)
from loadtest.drive.ctr_deltas import delta_model, prepare_deltas
from loadtest.drive.demo_model import MODEL_NAME, DemoModel, demo_directory, prepare_model
from loadtest.drive.dense_model import KINDS, dense_base_path, prepare_dense_model
from loadtest.measure.accelerator_dense import measure_dense
from loadtest.measure.accelerator_parts import (
    Bench,
    Figures,
    Say,
    measure_alone,
    measure_equality,
    measure_rates,
)
from loadtest.measure.accelerator_swaps import (
    measure_many_swaps,
    measure_neighbours,
    measure_rollback,
    run_swaps,
    upload_figures,
)
from loadtest.measure.accelerator_zipf import ZipfSettings, measure_zipf
from loadtest.report.gpu_report import fault_count, gpu_table
from loadtest.report.report import machine, swap_report
from loadtest.report.tables import write_json, wrong_reply_lines
from serving.base.clock import Clock, SystemClock, seconds_since
from serving.base.errors import MillpondError
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS

_MANY, _ZIPF, _DELTA, _NONE = "many", "zipf", "delta", "none"
_DEFAULT_PARTS = ("equality", "alone", "rates", "swap", "rollback", "neighbours", "dense")
_ON_REQUEST = (_MANY, _ZIPF, _DELTA)
_CTR = {MODEL_NAME}
_MODELS_OF: Mapping[str, Collection[str]] = {
    **dict.fromkeys(("equality", "alone", "rates", "swap", "rollback", _MANY), _CTR),
    "neighbours": {*_CTR, "mlp"},
    "dense": set(KINDS),
    _ZIPF: {_ZIPF},
    _DELTA: {*_CTR, _DELTA},
}
_CORES_PER_GENERATOR = 4
_FAILURES = (MillpondError, OSError, subprocess.SubprocessError, grpc.RpcError, ValueError)

Part = Callable[[], Figures]


def part_names(text: str) -> Sequence[str]:
    """Reads PART,...; none for 'none'. Raises ArgumentTypeError."""
    names = [] if text == _NONE else text.split(",")
    for name in names:
        if name not in (*_DEFAULT_PARTS, *_ON_REQUEST):
            known = ", ".join((*_DEFAULT_PARTS, *_ON_REQUEST, _NONE))
            raise argparse.ArgumentTypeError(f"{name!r} is none of {known}")
    return names


def row_counts(text: str) -> Sequence[int]:
    """Reads ROWS,... Raises ArgumentTypeError."""
    return [positive_integer(item) for item in text.split(",")]


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts",
        type=part_names,
        default=",".join(_DEFAULT_PARTS),
        metavar="PART,...",
        help=f"default {','.join(_DEFAULT_PARTS)}; {_MANY}: 200 swaps with rollbacks, some 5 minutes; "
        f"{_ZIPF}: many models on an accelerator that has not room for all; "
        f"{_DELTA}: swaps of 1 %% deltas of the CTR model, beside swaps in which all is sent; "
        f"{_NONE}: only make the models",
    )
    _add_accelerator_options(parser)
    _add_size_options(parser)
    add_models_option(parser)
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


def _add_size_options(parser: argparse.ArgumentParser) -> None:
    for option, default, text in (
        ("--table-rows", DEFAULT_TABLE_ROWS, "rows of each of the CTR model's 26 tables"),
        ("--dense-parameters", 100_000_000, "parameters of each dense model"),
        ("--dense-rows", 32, "rows of a request to a dense model"),
        ("--swap-rows", 32, "rows of a request in swaps and beside a neighbour"),
        ("--swaps", 5, "swaps of each server in the part swap"),
        ("--many-swaps", 200, "swaps of the part many"),
        ("--zipf-models", 40, "models of the part zipf"),
        ("--zipf-parameters", 50_000_000, "parameters of each of them"),
        ("--zipf-rate", 200, "requests per second to all of them"),
        ("--zipf-seconds", 20, "seconds of that load"),
    ):
        parser.add_argument(
            option, type=positive_integer, default=default, help=f"{text}; default {default}"
        )
    parser.add_argument(
        "--zipf-memory-bytes",
        type=positive_integer,
        default=0,
        help="the accelerator's memory for them; default: 90 %% of what they take together",
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
        bench = Bench(
            machine=Machine(
                accelerator=parsed.accelerator,
                rows=parsed.accelerator_rows,
                cache_directory=cache,
                library_path=parsed.library_path,
                cores=server_cores,
            ),
            ctr=DemoModel.below(directory, parsed.table_rows),
            table_rows=parsed.table_rows,
            dense={
                kind: dense_base_path(directory, kind, parsed.dense_parameters) for kind in KINDS
            },
            rows=parsed.rows,
            dense_rows=parsed.dense_rows,
            seconds=parsed.seconds,
            generators=parsed.generators or max(len(client_cores) // _CORES_PER_GENERATOR, 1),
            clock=clock,
            say=console.print,
        )
        zipf = _zipf_settings(parsed, directory)
        deltas = delta_model(directory, parsed.table_rows)
        _prepare_models(parsed, directory, console.print)
        keep_to_client_cores(client_cores)
        parts = measured(_parts(bench, parsed, zipf, deltas), parsed.parts, clock, console)
    report = {"accelerator": parsed.accelerator, "parts": parts, "machine": machine()}
    write_json(parsed.json, report)
    if parts:
        console.print(gpu_table(parts))
    return 1 if any(map(fault_count, parts.values())) else 0


def models_of(parts: Sequence[str]) -> Collection[str]:
    """The models that the parts need; all models if there is no part."""
    return set().union(*(_MODELS_OF[part] for part in parts or _MODELS_OF))


def _prepare_models(parsed: argparse.Namespace, directory: Path, say: Say) -> None:
    needed = models_of(parsed.parts)
    if MODEL_NAME in needed:
        prepare_model(directory, parsed.table_rows, say)
    for kind in KINDS:
        if kind in needed:
            prepare_dense_model(directory, kind, parsed.dense_parameters, say)
    if _DELTA in needed:
        prepare_deltas(directory, parsed.table_rows, say)
    if _ZIPF in needed:
        prepare_dense_model(directory, "mlp", parsed.zipf_parameters, say)


def _zipf_settings(parsed: argparse.Namespace, directory: Path) -> ZipfSettings:
    return ZipfSettings(
        base_path=dense_base_path(directory, "mlp", parsed.zipf_parameters),
        model_count=parsed.zipf_models,
        memory_bytes=parsed.zipf_memory_bytes,
        rate_per_second=parsed.zipf_rate,
        seconds=parsed.zipf_seconds,
    )


def _parts(
    bench: Bench, parsed: argparse.Namespace, zipf: ZipfSettings, deltas: DemoModel
) -> Mapping[str, Part]:
    return {
        "equality": partial(measure_equality, bench),
        "alone": partial(measure_alone, bench),
        "rates": partial(measure_rates, bench),
        "swap": partial(_measure_swaps, bench, parsed.swaps, parsed.swap_rows),
        "rollback": partial(measure_rollback, bench),
        "neighbours": partial(measure_neighbours, bench, parsed.swap_rows),
        "dense": partial(measure_dense, bench),
        _ZIPF: partial(measure_zipf, bench, zipf),
        _DELTA: partial(_measure_deltas, bench, deltas, parsed.swaps, parsed.swap_rows),
        _MANY: partial(measure_many_swaps, bench, parsed.many_swaps, parsed.swap_rows),
    }


def _measure_swaps(bench: Bench, swaps: int, rows: int) -> Figures:
    """The clients' latencies in swaps over steady, for each server, and all lost or wrong requests."""
    shown: Figures = {}
    for name in (CPU, ACCELERATOR):
        setup, run = run_swaps(bench, name, swaps, rows)
        shown[name] = swap_report(setup, [run])
    for key in ("errors", "wrong_answers"):
        shown[key] = sum(shown[name][key] for name in (CPU, ACCELERATOR))
    return shown


def _measure_deltas(bench: Bench, deltas: DemoModel, swaps: int, rows: int) -> Figures:
    """The uploads, and the clients' latencies in swaps over steady, of whole versions and of deltas."""
    shown: Figures = {}
    for name, exports in (("full", None), ("delta", deltas)):
        setup, run = run_swaps(bench, ACCELERATOR, swaps, rows, exports)
        uploads = upload_figures(run.server_swaps)
        shown[name] = {**swap_report(setup, [run]), "uploads": uploads}
    for key in ("errors", "wrong_answers"):
        shown[key] = sum(shown[name][key] for name in ("full", "delta"))
    return shown


def measured(
    parts: Mapping[str, Part], names: Sequence[str], clock: Clock, console: Console
) -> Mapping[str, Figures]:
    """Runs the named parts in order. A part that fails has the key `failed`, with its error."""
    shown: dict[str, Figures] = {}
    for name in names:
        began_ns = clock.now_ns()
        try:
            shown[name] = parts[name]()
        except _FAILURES as error:
            shown[name] = {"failed": str(error) or repr(error)}
        seconds = round(seconds_since(clock, began_ns), 1)
        shown[name]["seconds"] = seconds
        outcome = shown[name].get("failed", "done")
        lines = [f"{name}: {seconds} s, {outcome}", *wrong_reply_lines(shown[name])]
        console.print("\n  ".join(lines), markup=False, highlight=False)
    return shown


GPU = Command("a machine's CPUs beside its accelerator, side by side", _add_options, _run)

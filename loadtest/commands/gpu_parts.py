"""The parts of `gpu`: their names and models, and a run of some of them within their time."""

import argparse
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import grpc
from rich.console import Console

from loadtest.drive.accelerated_pair import ACCELERATOR, CPU, KeptServers
from loadtest.drive.ctr_deltas import delta_model, prepare_deltas
from loadtest.drive.demo_model import MODEL_NAME, DemoModel, prepare_model
from loadtest.drive.dense_model import KINDS, dense_base_path, prepare_dense_model
from loadtest.drive.faulty_device import faulty_plugin, faulty_plugin_in
from loadtest.measure.accelerator_dense import measure_dense
from loadtest.measure.accelerator_faults import measure_faults
from loadtest.measure.accelerator_parts import (
    Bench,
    Figures,
    Say,
    measure_alone,
    measure_equality,
    measure_host_rates,
    measure_rates,
    measure_replicas,
)
from loadtest.measure.accelerator_swaps import (
    measure_many_swaps,
    measure_neighbours,
    measure_rollback,
    run_swaps,
    run_swaps_at_rate,
    upload_figures,
)
from loadtest.measure.accelerator_zipf import ZipfSettings, measure_zipf
from loadtest.measure.part_time import OutOfTime, PartTime
from loadtest.measure.scenario import SwapRun
from loadtest.measure.setup import Setup
from loadtest.report.report import swap_report
from loadtest.report.swap_tail import latencies_over_time, swaps_over_steady
from loadtest.report.tables import wrong_reply_lines
from serving.base.clock import Clock, seconds_since
from serving.base.errors import MillpondError

MANY, TAIL, ZIPF, DELTA, HOST_RATES, NONE = "many", "tail", "zipf", "delta", "host_rates", "none"
REPLICAS, FAULTS = "replicas", "faults"
DEFAULT_PARTS = ("equality", "alone", "rates", "swap", "rollback", "neighbours", "dense")
_ON_REQUEST = (HOST_RATES, REPLICAS, TAIL, MANY, FAULTS, ZIPF, DELTA)
_CTR = {MODEL_NAME}
_MODELS_OF: Mapping[str, Collection[str]] = {
    **dict.fromkeys(("equality", "alone", "rates", "swap", "rollback"), _CTR),
    **dict.fromkeys((HOST_RATES, REPLICAS, TAIL, MANY, FAULTS), _CTR),
    "neighbours": {*_CTR, "mlp"},
    "dense": set(KINDS),
    ZIPF: {ZIPF},
    DELTA: {*_CTR, DELTA},
}
ONE_GRAPH, TWO_GRAPHS = "one", "two"
_FAILURES = (MillpondError, OSError, subprocess.SubprocessError, grpc.RpcError, ValueError)

Part = Callable[[Figures], object]
"""Writes its figures into the JSON that it is given, each as soon as it is there."""


def part_names(text: str) -> Sequence[str]:
    """Reads PART,...; none for 'none'. Raises ArgumentTypeError."""
    names = [] if text == NONE else text.split(",")
    for name in names:
        if name not in (*DEFAULT_PARTS, *_ON_REQUEST):
            known = ", ".join((*DEFAULT_PARTS, *_ON_REQUEST, NONE))
            raise argparse.ArgumentTypeError(f"{name!r} is none of {known}")
    return names


def models_of(parts: Sequence[str]) -> Collection[str]:
    """The models that the parts need; all models if there is no part."""
    return set().union(*(_MODELS_OF[part] for part in parts or _MODELS_OF))


def prepare_models(parsed: argparse.Namespace, directory: Path, say: Say) -> None:
    """Makes the models of the parts, as far as they are not there, and the plugin of `faults`.

    Raises InvalidConfig, OSError, and SubprocessError if the plugin does not compile.
    """
    needed, is_lean = models_of(parsed.parts), parsed.lean
    if MODEL_NAME in needed:
        prepare_model(directory, parsed.table_rows, say, is_lean=is_lean)
    for kind in KINDS:
        if kind in needed:
            prepare_dense_model(directory, kind, parsed.dense_parameters, say, is_lean=is_lean)
    if DELTA in needed:
        prepare_deltas(directory, parsed.table_rows, say, is_lean=is_lean)
    if FAULTS in (parsed.parts or _MODELS_OF):
        faulty_plugin(directory)
    if ZIPF in needed:
        prepare_dense_model(directory, "mlp", parsed.zipf_parameters, say, is_lean=is_lean)


def parts_of(bench: Bench, parsed: argparse.Namespace, directory: Path) -> Mapping[str, Part]:
    """All parts by name; `directory` has the models."""
    zipf = ZipfSettings(
        base_path=dense_base_path(directory, "mlp", parsed.zipf_parameters),
        model_count=parsed.zipf_models,
        memory_bytes=parsed.zipf_memory_bytes,
        rate_per_second=parsed.zipf_rate,
        seconds=parsed.zipf_seconds,
    )
    deltas, rows = delta_model(directory, parsed.table_rows), parsed.swap_rows
    return {
        "equality": partial(measure_equality, bench),
        "alone": partial(measure_alone, bench),
        "rates": partial(measure_rates, bench),
        HOST_RATES: partial(measure_host_rates, bench),
        REPLICAS: partial(measure_replicas, bench),
        "swap": partial(_measure_swaps, bench, swaps=parsed.swaps, rows=rows),
        TAIL: partial(
            _measure_tail,
            bench,
            graphs=parsed.tail_graphs,
            swaps=parsed.swaps,
            rows=rows,
            rate_per_second=parsed.tail_rate,
        ),
        "rollback": partial(measure_rollback, bench),
        "neighbours": partial(measure_neighbours, bench, rows=rows),
        "dense": partial(measure_dense, bench, names=parsed.dense_servers),
        ZIPF: partial(measure_zipf, bench, settings=zipf),
        DELTA: partial(_measure_deltas, bench, deltas=deltas, swaps=parsed.swaps, rows=rows),
        MANY: partial(
            measure_many_swaps,
            bench,
            swaps=parsed.many_swaps,
            rows=rows,
            rate_per_second=parsed.many_rate,
        ),
        FAULTS: partial(
            measure_faults,
            bench,
            plugin=faulty_plugin_in(directory),
            swaps=parsed.many_swaps,
            rows=rows,
            rate_per_second=parsed.faults_rate,
            hangs=not parsed.no_hangs,
        ),
    }


def _measure_swaps(bench: Bench, shown: Figures, swaps: int, rows: int) -> None:
    """The clients' latencies in swaps over steady, for each server, and all lost or wrong requests."""
    for name in (CPU, ACCELERATOR):
        _add_run(shown, name, *run_swaps(bench, name, swaps, rows))


def _measure_deltas(bench: Bench, shown: Figures, deltas: DemoModel, swaps: int, rows: int) -> None:
    """The uploads, and the clients' latencies in swaps over steady, of deltas and of whole versions."""
    for name, exports in ((DELTA, deltas), ("full", None)):
        _add_run(shown, name, *run_swaps(bench, ACCELERATOR, swaps, rows, exports))


def _measure_tail(
    bench: Bench,
    shown: Figures,
    graphs: Sequence[str],
    swaps: int,
    rows: int,
    rate_per_second: float,
) -> None:
    """The accelerator's latencies over time, and of each swap over steady, at a fixed rate."""
    for name in graphs:
        bench.say(f"tail: versions of {name} graph{'s' * (name == TWO_GRAPHS)}")
        setup, run = run_swaps_at_rate(
            bench, swaps, rows, rate_per_second, has_one_graph=name == ONE_GRAPH
        )
        _add_run(shown, name, setup, run)
        shown[name]["each_swap"] = swaps_over_steady(run)
        shown[name]["over_time"] = latencies_over_time(run.outcome)


def _add_run(shown: Figures, name: str, setup: Setup, run: SwapRun) -> None:
    """Adds the figures of one server to those of a part, and its faults to the part's."""
    shown[name] = {**swap_report(setup, [run]), "uploads": upload_figures(run.server_swaps)}
    for key in ("errors", "wrong_answers"):
        shown[key] = shown.get(key, 0) + shown[name][key]


def measured(
    parts: Mapping[str, Part],
    names: Sequence[str],
    clock: Clock,
    console: Console,
    *,
    time: PartTime,
    kept: KeptServers,
    part_seconds: float,
    all_seconds: float,
    after_each: Callable[[Mapping[str, Figures]], object],
) -> Mapping[str, Figures]:
    """Runs the named parts in order, each for `part_seconds` at most, and all for `all_seconds`.

    `after_each` gets all figures until then. A part that fails, or has no time left, has the key `failed` with the
    reason, beside the figures that it has.
    """
    began_ns = clock.now_ns()
    shown: dict[str, Figures] = {}
    for name in names:
        part_began_ns = clock.now_ns()
        part_shown = shown[name] = {}
        seconds = min(part_seconds, all_seconds - seconds_since(clock, began_ns))
        try:
            if seconds <= 0:
                raise OutOfTime("skipped: the parts before have taken all of the time")
            with time.bounded(seconds):
                parts[name](part_shown)
        except (*_FAILURES, OutOfTime) as error:
            part_shown["failed"] = str(error) or repr(error)
            kept.kill()
        part_shown["seconds"] = round(seconds_since(clock, part_began_ns), 1)
        after_each(shown)
        outcome = part_shown.get("failed", "done")
        lines = [f"{name}: {part_shown['seconds']} s, {outcome}"]
        lines += [f"skipped: {what}" for what in part_shown.get("skipped", ())]
        lines += wrong_reply_lines(part_shown)
        console.print("\n  ".join(lines), markup=False, highlight=False)
    return shown

"""The parts of `gpu`: the CTR model and dense models on a machine's CPUs and on its accelerator, side by side.

Each part writes its figures into the JSON that it is given, with `cpu` beside `accelerator`, as soon as it has them: a
part that is stopped leaves those. The parts of this module go on with the servers of the one before.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.drive.accelerated_pair import (
    ACCELERATOR,
    CPU,
    KeptServers,
    Machine,
    ServedModel,
    serving_models,
)
from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.generator import Generator
from loadtest.measure.closed_rates import closed_rate
from loadtest.measure.latency import figures
from loadtest.measure.outcome_figures import error_messages
from loadtest.measure.part_time import PartTime
from loadtest.measure.server_pages import ServerPages
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop
from loadtest.plan.plan import PlanSource
from loadtest.plan.wrong_replies import wrong_replies_json
from serving.base.clock import Clock
from serving.base.errors import Unavailable
from serving.client import Client
from serving.commands.ctr_model import reference_answer, request_inputs
from serving.server.model_server import ModelServer

Say = Callable[[str], None]

Figures = dict[str, Any]
"""The JSON of a part."""

HOST_TABLES, DEVICE_TABLES = "host", "device"

ONE_DEVICE, ALL_DEVICES = "one_device", "all_devices"
_PLACES: Mapping[str, Mapping[str, object]] = {
    ONE_DEVICE: {"accelerator_devices": [0]},
    ALL_DEVICES: {"accelerator_replicas": 0},
}
# Beside a bucket's rows, one more and one less, so that runs are filled up and split.
_EQUAL_OFFSETS = (-1, 0, 1)
_ALONE_REQUEST_COUNT = 400
# The channels of each generator.
_CHANNELS = 64
# Such requests have half a megabyte each, and a few of them fill a batch.
_MANY_ROWS = 2_048
_FEW_CHANNELS = 16
DIFFERENCE_MAX = 1e-4
"""The largest difference of answers that count as equal: the CPU and the accelerator add in another order."""

MOST_IN_FLIGHT = 256
"""The requests that each generator has in flight to find the most that a server answers."""

DENSE_IN_FLIGHT = 32
"""Enough for a full batch; a CPU takes seconds to answer so many."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The parameters of all parts. `dense` has the base path of each dense model by its kind."""

    machine: Machine
    ctr: DemoModel
    table_rows: int
    dense: Mapping[str, Path]
    rows: Sequence[int]
    rate_rows: Sequence[int]
    dense_rows: int
    seconds: float
    generators: int
    clock: Clock
    say: Say
    time: PartTime
    kept: KeptServers

    def ctr_load(self, rows: int, name: str = MODEL_NAME) -> CtrLoad:
        """The clients of the CTR model that is served under `name`."""
        return CtrLoad(name, rows=rows, table_rows=self.table_rows, seed=1)

    def most(self, server: ModelServer, load: PlanSource, rows: int) -> Figures:
        """Measures requests and rows per second with as many in flight as any server answers at once."""
        loop = most_in_flight(rows)
        return self._rate(server, load, loop, self.generators)

    def rate(self, server: ModelServer, load: PlanSource, rows: int, in_flight: int) -> Figures:
        """Measures requests and rows per second with `in_flight` of all generators together."""
        # A generator has a request in flight at least.
        share = min(self.generators, in_flight)
        channels = min(_CHANNELS, in_flight)
        loop = ClosedLoop(rows, max(channels // share, 1), max(in_flight // share, 1))
        return self._rate(server, load, loop, share)

    def _rate(
        self, server: ModelServer, load: PlanSource, loop: ClosedLoop, generators: int
    ) -> Figures:
        rate = closed_rate(server.target, load, loop, generators, self.seconds, self.clock)
        shown: Figures = {
            "requests_per_second": round(rate.requests_per_second, 1),
            "rows_per_second": round(rate.requests_per_second * loop.rows),
            "in_flight": generators * loop.in_flight,
            "generator_core_share_max": round(rate.core_share_max, 2),
        }
        if isinstance(load, CtrLoad):
            shown["wrong_answers"] = sum(load.wrong_count(outcome) for outcome in rate.outcomes)
            replies = (reply for each in rate.outcomes for reply in load.wrong_replies(each))
            shown["wrong_replies"] = wrong_replies_json(replies)
        return shown

    def both(self, models: Mapping[str, ServedModel]) -> Mapping[str, ModelServer]:
        """Both servers with these models, which run on for the next part."""
        return self.kept.both(self.machine, models)

    @contextmanager
    def one(
        self, name: str, models: Mapping[str, ServedModel], machine: Machine | None = None
    ) -> Iterator[ModelServer]:
        """Yields the server of that name, alone on the machine, or on `machine`."""
        self.kept.stop()
        with serving_models(machine or self.machine, name, models) as server:
            yield server

    def ctr_model(self, **settings: object) -> ServedModel:
        """Version 1 of the CTR model, with tables on the device unless settings say otherwise."""
        return ServedModel(
            self.ctr.base_path,
            {"accelerator_tables": DEVICE_TABLES, **settings},
        )


def most_in_flight(rows: int) -> ClosedLoop:
    """The requests that each generator has in flight to find the most that a server answers in a second."""
    if rows >= _MANY_ROWS:
        return ClosedLoop(rows, _FEW_CHANNELS, _FEW_CHANNELS)
    return ClosedLoop(rows, _CHANNELS, MOST_IN_FLIGHT)


def measure_equality(bench: Bench, shown: Figures) -> None:
    """Finds the largest difference of an answer to the CPU's and to the reference, by rows of a request."""
    counts = sorted(
        {max(rows + offset, 1) for rows in bench.rows for offset in _EQUAL_OFFSETS}
        | {2 * max(bench.rows) + 1}
    )
    differences: dict[str, list[float]] = {"cpu": [], "reference": []}
    servers = bench.both({MODEL_NAME: bench.ctr_model()})
    with ExitStack() as stack:
        clients = {n: stack.enter_context(Client(s.target)) for n, s in servers.items()}
        for rows in counts:
            inputs = request_inputs(rows, rows, bench.table_rows)
            answers = {n: c.predict(MODEL_NAME, inputs).outputs["ctr"] for n, c in clients.items()}
            reference = reference_answer(1, inputs, bench.table_rows)
            for name, other in (("cpu", answers[CPU]), ("reference", reference)):
                differences[name].append(largest_difference(answers[ACCELERATOR], other))
    shown["request_rows"] = counts
    for name, each in differences.items():
        shown[f"difference_to_{name}_max"] = max(each)


def largest_difference(first: Any, second: Any) -> float:
    """The largest difference of two arrays' elements. Raises Unavailable if their shapes differ."""
    if first.shape != second.shape:
        raise Unavailable(f"answers have the shapes {first.shape} and {second.shape}")
    return float(np.abs(first.astype(np.float64) - second).max())


def measure_alone(bench: Bench, shown: Figures) -> None:
    """Measures latencies of one request at a time, by rows and server. The servers take turns."""
    by_rows = shown["rows"] = {}
    servers = bench.both({MODEL_NAME: bench.ctr_model()})
    for rows in bench.rows:
        load = bench.ctr_load(rows)
        by_rows[str(rows)] = {n: _alone(s.target, load, rows) for n, s in servers.items()}


def _alone(target: str, load: CtrLoad, rows: int) -> Figures:
    plan = ClosedLoop(rows, 1, 1).plan(load, 2 * _ALONE_REQUEST_COUNT, seed=1)
    with Generator(plan, target) as generator:
        outcome = generator.finish()
    if outcome.codes.any():
        raise Unavailable(f"requests failed: {'; '.join(error_messages([outcome]))}")
    # The first half warms up what the second half uses.
    latencies_ns = (outcome.completed_ns - outcome.issued_ns)[_ALONE_REQUEST_COUNT:]
    return figures(latencies_ns)


def measure_rates(bench: Bench, shown: Figures) -> None:
    """Measures requests and rows per second by rows of a request."""
    servers = bench.both({MODEL_NAME: bench.ctr_model()})
    by_rows = shown["rows"] = {}
    shown["wrong_answers"] = 0
    for rows in bench.rate_rows:
        bench.say(f"rates at {rows} rows")
        load = bench.ctr_load(rows)
        of_rows = by_rows[str(rows)] = {n: bench.most(s, load, rows) for n, s in servers.items()}
        shown["wrong_answers"] += sum(each["wrong_answers"] for each in of_rows.values())


def measure_host_rates(bench: Bench, shown: Figures) -> None:
    """Measures the accelerator's rates with the tables in the server's memory."""
    model = bench.ctr_model(accelerator_tables=HOST_TABLES)
    by_rows = shown["rows"] = {}
    shown["wrong_answers"] = 0
    with bench.one(ACCELERATOR, {MODEL_NAME: model}) as server:
        for rows in bench.rate_rows:
            found = by_rows[str(rows)] = bench.most(server, bench.ctr_load(rows), rows)
            shown["wrong_answers"] += found["wrong_answers"]


def measure_replicas(bench: Bench, shown: Figures) -> None:
    """Measures requests and rows per second of a model on the first device, and of one with replicas on all."""
    shown["wrong_answers"] = 0
    for name, settings in _PLACES.items():
        found = shown[name] = {}
        with bench.one(ACCELERATOR, {MODEL_NAME: bench.ctr_model(**settings)}) as server:
            for rows in bench.rate_rows:
                bench.say(f"replicas: {name}, {rows} rows")
                before = _runs(server)
                of_rows = found[str(rows)] = bench.most(server, bench.ctr_load(rows), rows)
                # Not by a difference of counters, which leaves out a device without a run.
                after = _runs(server)
                of_rows["runs_by_device"] = {name: after[name] - before[name] for name in after}
                shown["wrong_answers"] += of_rows["wrong_answers"]


def _runs(server: ModelServer) -> Counter[str]:
    metrics = ServerPages(server.url).metrics("serving_accelerator")
    return metrics.counts_by("device", "serving_accelerator_runs_total")

"""The parts of `gpu`: the CTR model and dense models on a machine's CPUs and on its accelerator, side by side.

Each part starts its own servers and returns the JSON of its figures, with `cpu` beside `accelerator`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.drive.accelerated_pair import (
    ACCELERATOR,
    CPU,
    Machine,
    ServedModel,
    serving_models,
)
from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.generator import Generator
from loadtest.measure.closed_rates import closed_rate
from loadtest.measure.latency import figures
from loadtest.measure.outcome_figures import error_messages
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

# Beside a bucket's rows, one more and one less, so that runs are filled up and split.
_EQUAL_OFFSETS = (-1, 0, 1)
_ALONE_REQUEST_COUNT = 400
_CHANNELS, _IN_FLIGHT = 64, 256
DIFFERENCE_MAX = 1e-4
"""The largest difference of answers that count as equal: the CPU and the accelerator add in another order."""

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
    dense_rows: int
    seconds: float
    generators: int
    clock: Clock
    say: Say

    def ctr_load(self, rows: int, name: str = MODEL_NAME) -> CtrLoad:
        """The clients of the CTR model that is served under `name`."""
        return CtrLoad(name, rows=rows, table_rows=self.table_rows, seed=1)

    def rate(
        self, server: ModelServer, load: PlanSource, rows: int, in_flight: int = _IN_FLIGHT
    ) -> Figures:
        """Measures requests and rows per second of a server in closed loop."""
        # A generator has a request in flight at least.
        share = min(self.generators, in_flight)
        channels = min(_CHANNELS, in_flight)
        loop = ClosedLoop(rows, max(channels // share, 1), max(in_flight // share, 1))
        rate = closed_rate(server.target, load, loop, share, self.seconds, self.clock)
        shown: Figures = {
            "requests_per_second": round(rate.requests_per_second, 1),
            "rows_per_second": round(rate.requests_per_second * rows),
            "generator_core_share_max": round(rate.core_share_max, 2),
        }
        if isinstance(load, CtrLoad):
            shown["wrong_answers"] = sum(load.wrong_count(outcome) for outcome in rate.outcomes)
            replies = (reply for each in rate.outcomes for reply in load.wrong_replies(each))
            shown["wrong_replies"] = wrong_replies_json(replies)
        return shown

    @contextmanager
    def both(self, models: Mapping[str, ServedModel]) -> Iterator[Mapping[str, ModelServer]]:
        """Yields both servers with these models."""
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(serving_models(self.machine, name, models))
                for name in (CPU, ACCELERATOR)
            }

    def ctr_model(self, **settings: object) -> ServedModel:
        """Version 1 of the CTR model, with tables on the device unless settings say otherwise."""
        return ServedModel(
            self.ctr.base_path,
            {"accelerator_tables": DEVICE_TABLES, **settings},
        )


def measure_equality(bench: Bench) -> Figures:
    """The largest difference of an answer to the CPU's and to the reference, by rows of a request."""
    counts = sorted(
        {max(rows + offset, 1) for rows in bench.rows for offset in _EQUAL_OFFSETS}
        | {2 * max(bench.rows) + 1}
    )
    differences: dict[str, list[float]] = {"cpu": [], "reference": []}
    with bench.both({MODEL_NAME: bench.ctr_model()}) as servers, ExitStack() as stack:
        clients = {n: stack.enter_context(Client(s.target)) for n, s in servers.items()}
        for rows in counts:
            inputs = request_inputs(rows, rows, bench.table_rows)
            answers = {n: c.predict(MODEL_NAME, inputs).outputs["ctr"] for n, c in clients.items()}
            reference = reference_answer(1, inputs, bench.table_rows)
            for name, other in (("cpu", answers[CPU]), ("reference", reference)):
                differences[name].append(largest_difference(answers[ACCELERATOR], other))
    return {
        "request_rows": counts,
        **{f"difference_to_{name}_max": max(each) for name, each in differences.items()},
    }


def largest_difference(first: Any, second: Any) -> float:
    """The largest difference of two arrays' elements. Raises Unavailable if their shapes differ."""
    if first.shape != second.shape:
        raise Unavailable(f"answers have the shapes {first.shape} and {second.shape}")
    return float(np.abs(first.astype(np.float64) - second).max())


def measure_alone(bench: Bench) -> Figures:
    """The latencies of one request at a time, by rows and server. The servers take turns."""
    shown: dict[str, dict[str, Any]] = {}
    with bench.both({MODEL_NAME: bench.ctr_model()}) as servers:
        for rows in bench.rows:
            load = bench.ctr_load(rows)
            shown[str(rows)] = {n: _alone(s.target, load, rows) for n, s in servers.items()}
    return {"rows": shown}


def _alone(target: str, load: CtrLoad, rows: int) -> Figures:
    plan = ClosedLoop(rows, 1, 1).plan(load, 2 * _ALONE_REQUEST_COUNT, seed=1)
    with Generator(plan, target) as generator:
        outcome = generator.finish()
    if outcome.codes.any():
        raise Unavailable(f"requests failed: {'; '.join(error_messages([outcome]))}")
    # The first half warms up what the second half uses.
    latencies_ns = (outcome.completed_ns - outcome.issued_ns)[_ALONE_REQUEST_COUNT:]
    return figures(latencies_ns)


def measure_rates(bench: Bench) -> Figures:
    """Requests and rows per second by rows of a request, also with the tables in the server's memory."""
    host = f"{MODEL_NAME}_host"
    models = {
        MODEL_NAME: bench.ctr_model(),
        host: bench.ctr_model(accelerator_tables=HOST_TABLES),
    }
    shown: dict[str, dict[str, Any]] = {}
    with bench.both(models) as servers:
        for rows in bench.rows:
            load, on_host = bench.ctr_load(rows), bench.ctr_load(rows, host)
            bench.say(f"rates at {rows} rows")
            shown[str(rows)] = {
                CPU: bench.rate(servers[CPU], load, rows),
                ACCELERATOR: bench.rate(servers[ACCELERATOR], load, rows),
                "host_tables": bench.rate(servers[ACCELERATOR], on_host, rows),
            }
    wrong_count = sum(
        each["wrong_answers"] for of_rows in shown.values() for each in of_rows.values()
    )
    return {"rows": shown, "wrong_answers": wrong_count}

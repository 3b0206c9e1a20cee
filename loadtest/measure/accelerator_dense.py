"""The part `dense` of `gpu`: the rates of dense models by the requests in flight, with and without autotuning."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from loadtest.drive.accelerated_pair import ACCELERATOR, CPU, ServedModel, serving_models
from loadtest.measure.accelerator_parts import Bench, Figures, largest_difference
from loadtest.plan.dense_load import OUTPUT, DenseLoad, dense_inputs
from serving.client import Client
from serving.server.model_server import ModelServer

IN_FLIGHT = (1, 32, 256)
"""One request alone, a full batch of the default size, and more than all batches hold."""

NOT_AUTOTUNED = "not_autotuned"
"""The accelerator, with XLA's first choice of each kernel."""

CPU_IN_FLIGHT_MAX = 8
"""A core takes seconds for 32 rows of a transformer, so with more in flight requests pass their deadlines."""


def measure_dense(bench: Bench) -> Figures:
    """Requests per second of each dense model, and the largest difference of an answer to the CPU's."""
    shown: dict[str, Any] = {}
    for kind in bench.dense:
        found = {name: _figures_of(bench, kind, name) for name in (CPU, ACCELERATOR, NOT_AUTOTUNED)}
        answers = {name: figures.pop("answer") for name, figures in found.items()}
        shown[kind] = {
            **found,
            "difference_max": max(
                largest_difference(answers[name], answers[CPU])
                for name in (ACCELERATOR, NOT_AUTOTUNED)
            ),
        }
    return {"request_rows": bench.dense_rows, "models": shown}


def in_flight_of(name: str, in_flight: int) -> int:
    """The requests in flight of the server of that name, beside `in_flight` of the accelerator."""
    return min(in_flight, CPU_IN_FLIGHT_MAX) if name == CPU else in_flight


def _figures_of(bench: Bench, kind: str, name: str) -> Figures:
    """The rates of one server by the requests in flight, its stage `compile`, and its answer to one request."""
    bench.say(f"{kind}: {name}")
    load = DenseLoad(kind, bench.dense_rows)
    with _serving(bench, kind, name) as server:
        rates = {
            str(count): bench.rate(server, load, bench.dense_rows, count)
            for count in sorted({in_flight_of(name, count) for count in IN_FLIGHT})
        }
        with Client(server.target) as client:
            answer = client.predict(kind, dense_inputs(1, bench.dense_rows)).outputs[OUTPUT]
        return {"rates": rates, "answer": answer, **_compile_seconds(server)}


@contextmanager
def _serving(bench: Bench, kind: str, name: str) -> Iterator[ModelServer]:
    """Runs one server at a time, so that no other one holds memory or compiles."""
    models = {kind: ServedModel(bench.dense[kind], {})}
    machine = replace(bench.machine, autotunes=name != NOT_AUTOTUNED)
    with serving_models(machine, CPU if name == CPU else ACCELERATOR, models) as server:
        yield server


def _compile_seconds(server: ModelServer) -> Mapping[str, float]:
    """The stage `compile` of the load; nothing on a CPU."""
    (event,) = (event for event in server.events() if event["event"] == "version_available")
    key = "compile_seconds"
    return {key: event[key]} if key in event else {}

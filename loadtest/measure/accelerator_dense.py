"""The part `dense` of `gpu`: the rates of dense models by the requests in flight, with and without autotuning."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from loadtest.drive.accelerated_pair import ACCELERATOR, CPU, ServedModel
from loadtest.measure.accelerator_parts import Bench, Figures, largest_difference
from loadtest.plan.dense_load import OUTPUT, DenseLoad, dense_inputs
from serving.client import Client
from serving.server.model_server import ModelServer

IN_FLIGHT = (1, 32, 256)
"""One request alone, a full batch of the default size, and more than all batches hold."""

NOT_AUTOTUNED = "not_autotuned"
"""The accelerator, with XLA's first choice of each kernel."""

SERVERS = (CPU, ACCELERATOR, NOT_AUTOTUNED)
"""The servers of the part, in their order."""

CPU_IN_FLIGHT_MAX = 8
"""A core takes seconds for 32 rows of a transformer, so with more in flight requests pass their deadlines."""


def measure_dense(bench: Bench, shown: Figures, names: Sequence[str]) -> None:
    """Measures requests per second of each dense model on the servers of these names, one after the other.

    Of the same requests it finds the largest difference of an answer to that of the first server.
    """
    models: dict[str, Figures] = {kind: {"difference_max": 0.0} for kind in bench.dense}
    shown |= {"request_rows": bench.dense_rows, "models": models}
    answers: dict[str, Any] = {}
    for name in names:
        with _serving(bench, name) as server:
            for kind, found in models.items():
                bench.say(f"{kind}: {name}")
                found[name] = {"rates": {}, **_compile_seconds(server, kind)}
                answer = _answer(server, kind, bench.dense_rows)
                difference = largest_difference(answer, answers.setdefault(kind, answer))
                found["difference_max"] = max(found["difference_max"], difference)
                _measure_rates(bench, server, kind, name, found[name]["rates"])


def in_flight_of(name: str, in_flight: int) -> int:
    """The requests in flight of the server of that name, beside `in_flight` of the accelerator."""
    return min(in_flight, CPU_IN_FLIGHT_MAX) if name == CPU else in_flight


def _measure_rates(bench: Bench, server: ModelServer, kind: str, name: str, rates: Figures) -> None:
    load = DenseLoad(kind, bench.dense_rows)
    for count in sorted({in_flight_of(name, count) for count in IN_FLIGHT}):
        rates[str(count)] = bench.rate(server, load, bench.dense_rows, count)


def _answer(server: ModelServer, kind: str, rows: int) -> Any:
    with Client(server.target) as client:
        return client.predict(kind, dense_inputs(1, rows)).outputs[OUTPUT]


def _serving(bench: Bench, name: str) -> AbstractContextManager[ModelServer]:
    """Runs one server at a time, so that no other one holds memory or compiles."""
    models = {kind: ServedModel(base_path, {}) for kind, base_path in bench.dense.items()}
    if name != NOT_AUTOTUNED:
        return bench.one(name, models)
    return bench.one(ACCELERATOR, models, replace(bench.machine, autotunes=False))


def _compile_seconds(server: ModelServer, kind: str) -> Mapping[str, float]:
    """The stage `compile` of the load; nothing on a CPU."""
    (event,) = (
        event
        for event in server.events()
        if event["event"] == "version_available" and event["model"] == kind
    )
    key = "compile_seconds"
    return {key: event[key]} if key in event else {}

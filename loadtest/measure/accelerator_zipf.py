"""The part `zipf` of `gpu`: many models on one accelerator whose memory has not room for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from loadtest.drive.accelerated_pair import ACCELERATOR, ServedModel
from loadtest.measure.accelerator_parts import DIFFERENCE_MAX, Bench, Figures
from loadtest.measure.closed_rates import outcomes_of
from loadtest.measure.latency import figures
from loadtest.measure.outcome_figures import latencies_ns
from loadtest.measure.server_pages import Metrics, ServerPages
from loadtest.plan.arrivals import poisson
from loadtest.plan.dense_load import OUTPUT
from loadtest.plan.plan import Outcome
from loadtest.plan.zipf_load import ZipfLoad, zipf_shares
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import Unavailable
from serving.client import Client
from serving.server.model_server import ModelServer

_PREFIX = "serving_accelerator"
# Parameters are idle, and may give way, after a second without a run.
_IDLE_SECONDS = 1.2
_RETURN_COUNT_MAX = 10
_RETURN_SECONDS_MAX = 20.0
_SCRAPE_PAUSE_SECONDS = 0.002


@dataclass(frozen=True, kw_only=True)
class ZipfSettings:
    """The models, all from the same export, and the load on them together.

    The accelerator may hold `memory_bytes` of parameters and runs; 0: room for 90 % of all parameters.
    """

    base_path: Path
    model_count: int
    memory_bytes: int
    rate_per_second: float
    seconds: float


def measure_zipf(bench: Bench, shown: Figures, settings: ZipfSettings) -> None:
    """Measures which share of requests found their model on the accelerator, and how soon a model comes back."""
    names = [f"zipf_{rank}" for rank in range(1, settings.model_count + 1)]
    model = ServedModel(settings.base_path, {"accelerator_devices": [0]})
    model_bytes = parameter_bytes(settings.base_path)
    memory_bytes = settings.memory_bytes or model_bytes * settings.model_count * 9 // 10
    machine = replace(bench.machine, memory_bytes=memory_bytes)
    load = ZipfLoad(names, bench.dense_rows)
    bench.say(f"{len(names)} models of {model_bytes:,} bytes in {memory_bytes:,} bytes")
    shown |= {
        "model_count": len(names),
        "model_bytes": model_bytes,
        "memory_bytes": memory_bytes,
        "request_rows": bench.dense_rows,
        "rate_per_second": settings.rate_per_second,
        "fitting_share": fitting_share(len(names), memory_bytes // model_bytes),
    }
    began_ns = bench.clock.now_ns()
    with bench.one(ACCELERATOR, dict.fromkeys(names, model), machine) as server:
        shown["start_seconds"] = round(seconds_since(bench.clock, began_ns), 1)
        shown |= _under_load(bench, server, load, settings)
        shown |= _returns(server, load, bench.clock)


def parameter_bytes(base_path: Path) -> int:
    """The size of the variables of version 1. Raises Unavailable if it has none."""
    found = sum(
        path.stat().st_size for path in (base_path / "1" / "variables").glob("variables.data-*")
    )
    if not found:
        raise Unavailable(f"{base_path}/1 has no variables")
    return found


def fitting_share(model_count: int, fitting_count: int) -> float:
    """The share of requests to the `fitting_count` most popular models: the most that a fixed choice can reach."""
    return round(float(zipf_shares(model_count)[:fitting_count].sum()), 4)


def _under_load(
    bench: Bench, server: ModelServer, load: ZipfLoad, settings: ZipfSettings
) -> Figures:
    pages = ServerPages(server.url)
    with Client(server.target) as client:
        expected = client.predict(load.names[0], load.inputs).outputs[OUTPUT]
    # The first requests bring the popular models there.
    _outcome(bench, server, load, settings, bench.seconds, seed=1)
    before = pages.metrics(_PREFIX)
    outcome = _outcome(bench, server, load, settings, settings.seconds, seed=2)
    after = pages.metrics(_PREFIX)
    answered_count = int(np.count_nonzero(outcome.codes == 0))
    rows = _rise(before, after, "rows_total")
    uploads = _rise(before, after, "upload_seconds_count")
    return {
        "request_count": len(outcome.codes),
        "found_share": round(rows / max(answered_count * load.rows, 1), 4),
        "cpu_runs": _cpu_runs(before, after),
        "uploads": int(uploads),
        "upload_ms": round(1_000 * _rise(before, after, "upload_seconds_sum") / max(uploads, 1), 2),
        "drops": int(_rise(before, after, "drops_total")),
        **figures(latencies_ns(outcome)),
        "errors": int(np.count_nonzero(outcome.codes)),
        "wrong_answers": load.wrong_count(outcome, expected, DIFFERENCE_MAX),
    }


def _outcome(
    bench: Bench,
    server: ModelServer,
    load: ZipfLoad,
    settings: ZipfSettings,
    seconds: float,
    seed: int,
) -> Outcome:
    plan = load.plan(poisson(settings.rate_per_second, seconds, seed), seed)
    return outcomes_of(server.target, [plan], seconds, bench.clock)[0]


def _rise(before: Metrics, after: Metrics, name: str) -> float:
    return after.total(f"{_PREFIX}_{name}") - before.total(f"{_PREFIX}_{name}")


def _cpu_runs(before: Metrics, after: Metrics) -> Mapping[str, int]:
    """The runs on the CPU by reason, without the reasons that there were not."""
    name = f"{_PREFIX}_cpu_runs_total"
    return dict(after.counts_by("reason", name) - before.counts_by("reason", name))


def _returns(server: ModelServer, load: ZipfLoad, clock: Clock) -> Figures:
    """The times from the first request to a model that is away until its parameters are there again."""
    pages = ServerPages(server.url)
    times_ms = []
    with Client(server.target) as client:
        away = _away(pages.metrics(_PREFIX), load.names)
        for name in away[:_RETURN_COUNT_MAX]:
            pause(clock, _IDLE_SECONDS)
            times_ms.append(_return_ms(client, pages, name, load, clock))
    return {
        "away_count": len(away),
        "back_ms": [round(ms, 1) for ms in times_ms],
        "back_ms_p50": round(median(times_ms), 1) if times_ms else None,
    }


def _away(metrics: Metrics, names: Sequence[str]) -> Sequence[str]:
    return [name for name in names if not metrics.total(f"{_PREFIX}_parameter_bytes", model=name)]


def _return_ms(
    client: Client, pages: ServerPages, name: str, load: ZipfLoad, clock: Clock
) -> float:
    """Asks the model until it is there. Raises Unavailable if it does not come."""
    began_ns = clock.now_ns()
    while (seconds := seconds_since(clock, began_ns)) < _RETURN_SECONDS_MAX:
        client.predict(name, load.inputs)
        pause(clock, _SCRAPE_PAUSE_SECONDS)
        if not _away(pages.metrics(_PREFIX), [name]):
            return 1_000 * seconds_since(clock, began_ns)
    raise Unavailable(f"{name} has not come back in {seconds:.0f} s")

"""Measures how a slow request on one model affects the swap of another: the same swap with and
without it."""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.generator import Generator
from loadtest.drive.life_slow_model import SLOW_MODEL_NAME, prepare_slow_model, slow_request
from loadtest.drive.version_series import VersionSeries, content_of
from loadtest.measure.latency import figures, ratio
from loadtest.measure.timeline import LogClock
from loadtest.plan.arrivals import poisson
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome, Plan
from serving.base.clock import Clock, pause
from serving.base.errors import FailedPrecondition
from serving.client.stubs import PredictionServiceStub
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

_TIMEOUT_SECONDS = 60
# The pause until the slow request runs, and after a swap until its old version is gone.
_PAUSE_SECONDS = 0.5
# An upper bound for the plan: two swaps with their pauses take 5 s on a quiet machine.
_ROUND_SECONDS_MAX = 30
_KEPT_REPLY_BYTES_MAX = 256 << 20
# Short, because the random wait for the next poll would otherwise dominate the figures.
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class SlowRequestSetup:
    """`rounds` of two swaps of a model under load, one of them beside a request of
    `slow_seconds`.
    """

    rounds: int
    slow_seconds: float
    rate_per_second: float
    table_rows: int


@dataclass(frozen=True, kw_only=True)
class ObservedSwap:
    """One swap: from the drop to AVAILABLE, and the window whose requests belong to it."""

    is_beside_slow_request: bool
    drop_to_available_ms: float
    load_ms: float
    began_ns: int
    ended_ns: int


def measure_slow_request(
    exports: DemoModel, setup: SlowRequestSetup, clock: Clock
) -> dict[str, Any]:
    """Returns the figures of both kinds of swap and their ratios.

    Raises FailedPrecondition if a slow request ended before its swap did, because the figures would
    be invalid; MillpondError of server and generator.
    """
    load = CtrLoad(MODEL_NAME, rows=10, table_rows=setup.table_rows, seed=1)
    with ExitStack() as stack:
        series = stack.enter_context(VersionSeries(exports, MODEL_NAME, "records", ()))
        server = _serving(stack, series)
        channel = stack.enter_context(grpc.insecure_channel(server.target))
        stub = PredictionServiceStub(channel)
        observed = []
        with Generator(_plan(load, setup), server.target) as generator:
            for number in range(2 * setup.rounds):
                # In turn, in the opposite order every other round: a drift affects both kinds
                # alike.
                is_beside = (number % 2 == 1) != (number // 2 % 2 == 1)
                slow_seconds = setup.slow_seconds if is_beside else 0
                with _slow_request(stub, slow_seconds, clock):
                    observed.append(_swap(server, series, number + 2, is_beside, clock))
            outcome = generator.stop()
    return report_of(observed, outcome, int(load.wrong(outcome, content_of).sum()))


def report_of(
    observed: Sequence[ObservedSwap], outcome: Outcome, wrong_count: int
) -> dict[str, Any]:
    """Returns the figures, from the observed swaps and the requests of the whole run."""
    shown: dict[str, Any] = {
        "alone": _figures_of(
            [swap for swap in observed if not swap.is_beside_slow_request], outcome
        ),
        "beside": _figures_of([swap for swap in observed if swap.is_beside_slow_request], outcome),
        "failed_count": int((outcome.codes != 0).sum()),
        "wrong_count": wrong_count,
    }
    alone, beside = shown["alone"], shown["beside"]
    keys = ("drop_to_available_ms_median", "drop_to_available_less_load_ms_median", "p99_ms")
    shown["ratio"] = {key: ratio(beside, alone, key) for key in keys}
    return shown


def _figures_of(swaps: Sequence[ObservedSwap], outcome: Outcome) -> dict[str, Any]:
    by_swap = [_latencies_ns(swap, outcome) for swap in swaps]
    latency = figures(np.concatenate(by_swap))
    taken_ms = [swap.drop_to_available_ms for swap in swaps]
    less_ms = [swap.drop_to_available_ms - swap.load_ms for swap in swaps]
    return {
        "swap_count": len(swaps),
        "drop_to_available_ms_median": round(statistics.median(taken_ms), 1),
        "drop_to_available_less_load_ms_median": round(statistics.median(less_ms), 1),
        "drop_to_available_ms_max": round(max(taken_ms), 1),
        # Pooled over the requests of all swaps: a single swap has too few.
        "p99_ms": latency["p99_ms"],
        "latency": latency,
    }


def _latencies_ns(swap: ObservedSwap, outcome: Outcome) -> npt.NDArray[np.int64]:
    is_in = (outcome.scheduled_ns >= swap.began_ns) & (outcome.scheduled_ns < swap.ended_ns)
    latencies_ns: npt.NDArray[np.int64] = (outcome.completed_ns - outcome.scheduled_ns)[is_in]
    return latencies_ns


@contextmanager
def _slow_request(stub: Any, seconds: float, clock: Clock) -> Iterator[None]:
    """Runs a slow request inside `with` and cancels it afterwards.

    With 0 seconds there is no request, only the same pause.
    """
    running = stub.Predict.future(slow_request(seconds)) if seconds else None
    try:
        pause(clock, _PAUSE_SECONDS)
        yield
        if running is not None and running.done():
            raise FailedPrecondition(
                f"the slow request of {seconds:g} s ended before the swap did ({running.code()}); "
                "raise --slow-seconds"
            )
    finally:
        if running is not None:
            running.cancel()
        pause(clock, _PAUSE_SECONDS)


def _swap(
    server: ModelServer, series: VersionSeries, version: int, is_beside: bool, clock: Clock
) -> ObservedSwap:
    log_clock = LogClock(clock.wall_ns() - clock.now_ns())
    began_ns = clock.now_ns()
    series.drop(version)
    event = server.wait_for_event(partial(_is_available, version), _TIMEOUT_SECONDS)
    # The unload of the old version is a part of the swap too.
    pause(clock, _PAUSE_SECONDS)
    return ObservedSwap(
        is_beside_slow_request=is_beside,
        drop_to_available_ms=(log_clock.instant_ns(event) - began_ns) / 1e6,
        load_ms=event["load_seconds"] * 1_000,
        began_ns=began_ns,
        ended_ns=clock.now_ns(),
    )


def _is_available(version: int, event: LogEvent) -> bool:
    found = (event["event"], event.get("model"), event.get("version"))
    return found == ("version_available", MODEL_NAME, version)


def _serving(stack: ExitStack, series: VersionSeries) -> ModelServer:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-life-")))
    places = {MODEL_NAME: series.base_path, SLOW_MODEL_NAME: directory / SLOW_MODEL_NAME}
    prepare_slow_model(places[SLOW_MODEL_NAME])
    series.drop(1)
    configs = (
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}'
        for name, path in places.items()
    )
    config_file = directory / "models.config"
    config_file.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    server = stack.enter_context(
        ModelServer(model_config_file=config_file, file_system_poll_wait_seconds=_POLL_SECONDS)
    )
    for name in places:
        server.wait_until_available(name, 1, _TIMEOUT_SECONDS)
    return server


def _plan(load: CtrLoad, setup: SlowRequestSetup) -> Plan:
    # The generator is stopped when the rounds are over.
    offsets_ns = poisson(setup.rate_per_second, setup.rounds * _ROUND_SECONDS_MAX, seed=1)
    return replace(load.plan(offsets_ns, seed=1), kept_reply_bytes_max=_KEPT_REPLY_BYTES_MAX)

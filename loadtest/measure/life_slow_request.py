"""Measures how a slow request on one model affects the swap of another: the same swap with and
without it."""

import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.demo_server import config_file
from loadtest.drive.life_slow_model import SLOW_MODEL_NAME, prepare_slow_model, slow_request
from loadtest.drive.version_series import VersionSeries, content_of
from loadtest.measure.latency import figures, ratio
from loadtest.measure.segments import Segment, SegmentedLoad, SegmentedRun, run_segments
from loadtest.measure.timeline import LogClock, Span
from loadtest.plan.ctr_load import CtrLoad
from serving.base.clock import Clock, pause
from serving.base.errors import FailedPrecondition
from serving.client.stubs import PredictionServiceStub
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

ALONE, BESIDE = "alone", "beside the slow request"

_TIMEOUT_SECONDS = 60
# The pause until the slow request runs, and after a swap until its old version is gone.
_PAUSE_SECONDS = 0.5
# An upper bound for the plan. A swap with its pauses takes 2.5 s on a quiet machine.
_SWAP_SECONDS_MAX = 15
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


@dataclass(frozen=True)
class SwapSegment(Segment):
    """One swap: its span is from the drop to the unload of the old version."""

    drop_to_available_ms: float
    load_ms: float


def kinds_of(round_count: int) -> Sequence[str]:
    """The kinds of the swaps in turn, in the opposite order every other round, so that a drift affects both
    kinds alike.
    """
    rounds = ((ALONE, BESIDE), (BESIDE, ALONE))
    return [kind for number in range(round_count) for kind in rounds[number % 2]]


def measure_slow_request(
    exports: DemoModel, setup: SlowRequestSetup, clock: Clock, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measures the figures of both kinds of swap and their ratios.

    Raises FailedPrecondition if a slow request ended before its swap did, because the figures would
    be invalid; MillpondError of server and generator.
    """
    load = CtrLoad(MODEL_NAME, rows=10, table_rows=setup.table_rows, seed=1)
    with ExitStack() as stack:
        series = stack.enter_context(VersionSeries(exports, MODEL_NAME, "records", ()))
        server = _serving(stack, series)
        channel = stack.enter_context(grpc.insecure_channel(server.target))
        stub = PredictionServiceStub(channel)
        segmented = SegmentedLoad(
            load=load,
            arrivals="poisson",
            rate_per_second=setup.rate_per_second,
            seed=1,
            kinds=kinds_of(setup.rounds),
            segment_seconds_max=_SWAP_SECONDS_MAX,
            content_of=content_of,
            kept_reply_bytes_max=_KEPT_REPLY_BYTES_MAX,
        )
        versions = itertools.count(2)

        def run_segment(kind: str) -> SwapSegment:
            slow_seconds = setup.slow_seconds if kind == BESIDE else 0
            with _slow_request(stub, slow_seconds, clock):
                return _swap(kind, server, series, next(versions), clock)

        return report_of(run_segments(segmented, server, run_segment, clock=clock, say=say))


def report_of(run: SegmentedRun[SwapSegment]) -> dict[str, Any]:
    """The figures, from the swaps and the requests of the whole run."""
    alone, beside = (_figures_of(run, kind) for kind in (ALONE, BESIDE))
    keys = ("drop_to_available_ms_median", "drop_to_available_less_load_ms_median", "p99_ms")
    return {
        "alone": alone,
        "beside": beside,
        "failed_count": int((run.outcome.codes != 0).sum()),
        "wrong_count": run.wrong_count,
        "ratio": {key: ratio(beside, alone, key) for key in keys},
    }


def _figures_of(run: SegmentedRun[SwapSegment], kind: str) -> dict[str, Any]:
    swaps = run.of_kind(kind)
    # Pooled over the requests of all swaps, because a single swap has too few.
    latency = figures(run.latencies_ns(kind))
    taken_ms = [swap.drop_to_available_ms for swap in swaps]
    less_ms = [swap.drop_to_available_ms - swap.load_ms for swap in swaps]
    return {
        "swap_count": len(swaps),
        "drop_to_available_ms_median": round(statistics.median(taken_ms), 1),
        "drop_to_available_less_load_ms_median": round(statistics.median(less_ms), 1),
        "drop_to_available_ms_max": round(max(taken_ms), 1),
        "p99_ms": latency["p99_ms"],
        "latency": latency,
    }


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
    kind: str, server: ModelServer, series: VersionSeries, version: int, clock: Clock
) -> SwapSegment:
    log_clock = LogClock(clock.wall_ns() - clock.now_ns())
    began_ns = clock.now_ns()
    series.drop(version)
    event = server.wait_for_event(partial(_is_available, version), _TIMEOUT_SECONDS)
    # The unload of the old version is a part of the swap too.
    pause(clock, _PAUSE_SECONDS)
    return SwapSegment(
        kind,
        Span(began_ns, clock.now_ns()),
        drop_to_available_ms=(log_clock.instant_ns(event) - began_ns) / 1e6,
        load_ms=event["load_seconds"] * 1_000,
    )


def _is_available(version: int, event: LogEvent) -> bool:
    found = (event["event"], event.get("model"), event.get("version"))
    return found == ("version_available", MODEL_NAME, version)


def _serving(stack: ExitStack, series: VersionSeries) -> ModelServer:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-life-")))
    places = {MODEL_NAME: series.base_path, SLOW_MODEL_NAME: directory / SLOW_MODEL_NAME}
    prepare_slow_model(places[SLOW_MODEL_NAME])
    series.drop(1)
    server = stack.enter_context(
        ModelServer(
            model_config_file=config_file(directory, places),
            file_system_poll_wait_seconds=_POLL_SECONDS,
        )
    )
    for name in places:
        server.wait_until_available(name, 1, _TIMEOUT_SECONDS)
    return server

"""The parts of `gpu` that swap versions on an accelerator, or share it between two models."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from loadtest.drive.accelerated_pair import (
    ACCELERATOR,
    CPU,
    ServedModel,
    check_on_accelerator,
    model_flags,
)
from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.generator import Generator
from loadtest.drive.version_series import VersionSeries, content_of
from loadtest.measure.accelerator_parts import DENSE_IN_FLIGHT, Bench, Figures
from loadtest.measure.closed_rates import outcomes_of
from loadtest.measure.latency import figures, ratio
from loadtest.measure.outcome_figures import answer_figures, latencies_ns
from loadtest.measure.rollbacks import measure_rollbacks
from loadtest.measure.saturation import answered_rate, at_share_of_saturation
from loadtest.measure.scenario import SwapRun, measure
from loadtest.measure.server_pages import ServerPages
from loadtest.measure.server_swaps import ServerSwap
from loadtest.measure.setup import Setup
from loadtest.plan.arrivals import poisson
from loadtest.plan.dense_load import DenseLoad
from loadtest.plan.plan import Outcome, Reply
from loadtest.plan.wrong_replies import wrong_replies_json
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import StatusCode, Unavailable
from serving.base.protos import predict_pb2
from serving.client import Client
from serving.core.servable import ServableState
from serving.server.model_server import ModelServer

_SHARE = 0.5
_SWAP_INTERVAL_SECONDS = 4
_ROLLBACK_COUNT = 20
_LOAD_SECONDS = 400
# One rollback after so many swaps.
_SWAPS_PER_ROLLBACK = 10
# One version in ten is removed in its load, at another moment each time.
_VERSIONS_PER_REMOVAL = 10
_REMOVAL_STEP_SECONDS = 0.07
_REMOVAL_MOMENTS = 12
_STATUS_PAUSE_SECONDS = 0.02
# The longest time from the decision that a part ends to its end: a swap, the last answers, and their check.
_END_SECONDS = 20
# The plan of the many swaps is drawn for swaps of this length, and stopped after the last one.
_PLANNED_SWAP_SECONDS = 10
_QUIET_RATE_PER_SECOND = 500
_BUSY_FACTOR = 5
_QUIET, _BUSY, _LOW = "quiet", "busy", "busy_low"
_KINDS = (_QUIET, _BUSY, _LOW)
# The version is a constant of the graph, so versions of one graph answer with the same one.
_WITHOUT_VERSION = ("ctr",)


def run_swaps(
    bench: Bench, name: str, swaps: int, rows: int, deltas: DemoModel | None = None
) -> tuple[Setup, SwapRun]:
    """Swaps versions of one server's CTR model, or its `deltas`, under half of the load that saturates it."""
    exports = deltas or bench.ctr
    with _swap_setup(bench, name, swaps, rows) as given:
        setup = given
        if deltas is not None:
            setup = replace(given, are_deltas=True, output_filter=_WITHOUT_VERSION)
        measured = at_share_of_saturation(setup, _SHARE, exports, bench.clock, bench.say)
        return measured, measure(measured, exports, bench.clock, bench.say)


def run_swaps_at_rate(
    bench: Bench, swaps: int, rows: int, rate_per_second: float, *, has_one_graph: bool
) -> tuple[Setup, SwapRun]:
    """Swaps versions of the accelerator's CTR model at that rate: of one graph, or of two graphs in turn."""
    with _swap_setup(bench, ACCELERATOR, swaps, rows) as given:
        setup = replace(given, rate_per_second=rate_per_second, has_one_graph=has_one_graph)
        if has_one_graph:
            setup = replace(setup, output_filter=_WITHOUT_VERSION)
        return setup, measure(setup, bench.ctr, bench.clock, bench.say)


@contextmanager
def _swap_setup(bench: Bench, name: str, swaps: int, rows: int) -> Iterator[Setup]:
    """Yields the setup of a server of that name, whose settings are there until the end."""
    bench.kept.stop()
    models = {MODEL_NAME: bench.ctr_model()}
    with TemporaryDirectory(prefix="millpond-gpu-") as work:
        yield Setup(
            preset="batching",
            loaded=MODEL_NAME,
            reloaded=MODEL_NAME,
            rate_per_second=1,
            rows=rows,
            table_rows=bench.table_rows,
            swaps=swaps,
            swap_interval_seconds=_SWAP_INTERVAL_SECONDS,
            seed=1,
            extra_flags=model_flags(bench.machine, name, models, Path(work)),
        )


def upload_figures(swaps: Sequence[ServerSwap]) -> Sequence[Mapping[str, float]]:
    """The uploads of each swap to a version that is on the accelerator. Pure."""
    return [
        {
            "version": swap.version,
            "upload_ms": round(1_000 * swap.figures["upload_seconds"], 2),
            "uploaded_mb": round(swap.figures["uploaded_bytes"] / 1e6, 2),
            "kept_mb": round(swap.figures["accelerator_kept_bytes"] / 1e6, 2),
        }
        for swap in swaps
        if "uploaded_bytes" in swap.figures
    ]


def measure_rollback(bench: Bench, shown: Figures) -> None:
    """Measures the uploads of two versions, and rollbacks from one to the other, both on the accelerator."""
    load, began_ns = bench.ctr_load(1), bench.clock.now_ns()
    request = predict_pb2.PredictRequest.FromString(load.payloads[0])
    answers: list[tuple[int, int, Reply]] = []

    def see(issued_ns: int, answer: predict_pb2.PredictResponse) -> None:
        reply = Reply(0, StatusCode.OK, answer.SerializeToString())
        answers.append((issued_ns, bench.clock.now_ns(), reply))

    with ExitStack() as stack:
        server, _series = _serving_series(stack, bench, versions=2)
        found = measure_rollbacks(
            server.admin_target, request, _ROLLBACK_COUNT, bench.clock, old=1, new=2, see=see
        )
        outcome = outcome_of_answers(began_ns, answers)
        shown |= {
            "upload_ms": _upload_ms(server),
            "compile_seconds": [
                event["compile_seconds"]
                for event in server.events()
                if event["event"] == "version_available"
            ],
            "late_count": int(sum(found["is_late"])),
            "wrong_answers": load.wrong_count(outcome, content_of),
            "wrong_replies": wrong_replies_json(load.wrong_replies(outcome, content_of)),
            **{key: round(median(found[key]), 3) for key in ("seen_ms", "reply_ms")},
        }


def outcome_of_answers(began_ns: int, answers: Sequence[tuple[int, int, Reply]]) -> Outcome:
    """The outcome of requests that were answered one after another.

    Each of `answers` has the instants of its request and of its reply.
    """
    issued_ns, completed_ns = np.array([a[:2] for a in answers], np.int64).reshape(-1, 2).T
    return Outcome(
        scheduled_ns=issued_ns,
        issued_ns=issued_ns,
        completed_ns=completed_ns,
        codes=np.zeros(len(answers), np.int32),
        reply_of=np.arange(len(answers), dtype=np.int32),
        replies=[reply for _, _, reply in answers],
        started_ns=began_ns,
        cpu_ns=0,
        is_realtime=False,
    )


def _upload_ms(server: ModelServer) -> Mapping[str, float]:
    """The mean time of an upload of each version's parameters, by version."""
    name, metrics = "serving_accelerator_upload_seconds", ServerPages(server.url).metrics()
    found = {}
    for version in ("1", "2"):
        count = metrics.total(f"{name}_count", version=version)
        seconds = metrics.total(f"{name}_sum", version=version)
        found[version] = round(1_000 * seconds / max(count, 1), 2)
    return found


def _serving_series(
    stack: ExitStack, bench: Bench, versions: int
) -> tuple[ModelServer, VersionSeries]:
    """Starts a server on the accelerator that keeps the version before, and drops the first versions."""
    series = stack.enter_context(VersionSeries(bench.ctr, MODEL_NAME, "records", ()))
    series.drop(1)
    settings = {"keep_previous_seconds": 3600, "accelerator_tables": "device"}
    models = {MODEL_NAME: ServedModel(series.base_path, settings)}
    server = stack.enter_context(bench.one(ACCELERATOR, models))
    for version in range(2, versions + 1):
        series.drop(version)
        server.wait_until_available(MODEL_NAME, version, _LOAD_SECONDS)
    return server, series


def measure_many_swaps(
    bench: Bench, shown: Figures, swaps: int, rows: int, rate_per_second: float
) -> None:
    """Swaps under load, with rollbacks and with versions that are removed in their load.

    Finds the requests that were lost or wrong. Ends before its time does, with fewer swaps then.
    """
    load = bench.ctr_load(rows)
    seconds = swaps * _PLANNED_SWAP_SECONDS
    plan = load.plan(poisson(rate_per_second, seconds, seed=1), seed=1)
    with ExitStack() as stack:
        server, series = _serving_series(stack, bench, versions=1)
        generator = stack.enter_context(Generator(plan, server.target))
        request = predict_pb2.PredictRequest.FromString(load.payloads[0])
        many = _ManySwaps(server, series, request, bench.clock)
        while many.swaps < swaps and bench.time.left_seconds() > _END_SECONDS:
            many.take_one()
            check_plan_lasts(generator.started_ns, seconds, bench.clock)
        outcome = generator.stop()
        check_on_accelerator(server, [MODEL_NAME])
    wrong_count = load.wrong_count(outcome, content_of)
    wrong_replies = load.wrong_replies(outcome, content_of)
    shown |= {
        **many.figures(),
        "request_count": len(outcome.codes),
        **answer_figures([outcome], wrong_count, wrong_replies),
    }
    if many.swaps < swaps:
        shown["skipped"] = [f"{swaps - many.swaps} of {swaps} swaps"]


class _ManySwaps:
    """The swaps of one server, one after the other. Versions are numbered from 2 on."""

    def __init__(
        self,
        server: ModelServer,
        series: VersionSeries,
        request: predict_pb2.PredictRequest,
        clock: Clock,
    ) -> None:
        self._server = server
        self._series = series
        self._request = request
        self._clock = clock
        self._version = 1
        self._there = [1]
        self.swaps = 0
        self._rollbacks = 0
        self._late_count = 0
        self._removed_in_load = self._removed_after = 0

    def figures(self) -> Figures:
        return {
            "swaps": self.swaps,
            "rollbacks": self._rollbacks,
            "late_count": self._late_count,
            "removed_in_load": self._removed_in_load,
            "removed_after_load": self._removed_after,
        }

    def take_one(self) -> None:
        """Swaps to a version more, and back and forth, if it is its turn. Or removes it before it serves."""
        self._version += 1
        if self._version % _VERSIONS_PER_REMOVAL == _VERSIONS_PER_REMOVAL // 2:
            self._remove_in_load()
            return
        self._series.drop(self._version)
        self._server.wait_until_available(MODEL_NAME, self._version, _LOAD_SECONDS)
        self.swaps += 1
        if self.swaps % _SWAPS_PER_ROLLBACK == 0:
            self._roll_back()
        self._there.append(self._version)
        while len(self._there) > 2:
            self._series.remove(self._there.pop(0))

    def _roll_back(self) -> None:
        found = measure_rollbacks(
            self._server.admin_target,
            self._request,
            1,
            self._clock,
            old=self._there[-1],
            new=self._version,
        )
        self._rollbacks += 1
        self._late_count += int(sum(found["is_late"]))

    def _remove_in_load(self) -> None:
        """Removes a version at some moment of its load, which ends or takes back what is uploaded by then."""
        version = self._version
        self._series.drop(version)
        self._server.wait_for_event(
            lambda event: (event["event"], event.get("version")) == ("load_started", version),
            _LOAD_SECONDS,
        )
        step = version // _VERSIONS_PER_REMOVAL % _REMOVAL_MOMENTS
        pause(self._clock, step * _REMOVAL_STEP_SECONDS)
        self._series.remove(version)
        began_ns = self._clock.now_ns()
        with Client(self._server.target) as client:
            while not _has_ended(client, version):
                if seconds_since(self._clock, began_ns) > _LOAD_SECONDS:
                    raise Unavailable(f"the removed version {version} has not ended")
                pause(self._clock, _STATUS_PAUSE_SECONDS)
        was_loaded = any(
            (event["event"], event.get("version")) == ("version_available", version)
            for event in self._server.events()
        )
        self._removed_after += was_loaded
        self._removed_in_load += not was_loaded


def _has_ended(client: Client, version: int) -> bool:
    states = {status.version: status.state for status in client.model_status(MODEL_NAME)}
    return states.get(version, ServableState.END) is ServableState.END


def check_plan_lasts(started_ns: int, seconds: float, clock: Clock) -> None:
    """Raises Unavailable if a plan of `seconds` has ended: swaps without requests would lose none."""
    if seconds_since(clock, started_ns) >= seconds:
        raise Unavailable(
            f"the requests of {seconds:g} s have ended before the swaps, which take longer than "
            f"{_PLANNED_SWAP_SECONDS} s each"
        )


def measure_neighbours(bench: Bench, shown: Figures, rows: int) -> None:
    """Measures latencies of the CTR model, quiet and beside the dense MLP at 5 times its saturation."""
    mlp = bench.dense["mlp"]
    models = {
        _QUIET: bench.ctr_model(),
        _BUSY: ServedModel(mlp, {}),
        _LOW: ServedModel(mlp, {"accelerator_priority": "low"}),
    }
    shown |= {"errors": 0, "wrong_answers": 0}
    for name in (ACCELERATOR, CPU):
        found = shown[name] = {}
        with bench.one(name, models) as server:
            bench.say(f"neighbours: {name}")
            _measure_beside(bench, server, rows, found)
        for key in ("errors", "wrong_answers"):
            shown[key] += sum(found[kind][key] for kind in _KINDS)


def _measure_beside(bench: Bench, server: ModelServer, rows: int, shown: Figures) -> None:
    """The quiet model alone, and beside each of the busy ones, of which both were measured alone before."""
    rates = {name: _BUSY_FACTOR * _busy_rate(bench, server, name) for name in (_BUSY, _LOW)}
    quiet = shown[_QUIET] = _quiet_figures(bench, server, rows, "", 0)
    for name, rate in rates.items():
        found = _quiet_figures(bench, server, rows, name, rate)
        found["busy_sent_per_second"] = round(rate, 1)
        found["ratio_p99"] = ratio(found, quiet, "p99_ms")
        shown[name] = found


def _busy_rate(bench: Bench, server: ModelServer, name: str) -> float:
    """The requests per second that a busy model answers alone."""
    return float(
        bench.rate(server, DenseLoad(name, bench.dense_rows), bench.dense_rows, DENSE_IN_FLIGHT)[
            "requests_per_second"
        ]
    )


def _quiet_figures(
    bench: Bench, server: ModelServer, rows: int, busy: str, busy_rate: float
) -> Figures:
    """The quiet model's latencies beside requests to `busy`; beside none if it is ""."""
    seconds, load = 2 * bench.seconds, bench.ctr_load(rows, _QUIET)
    plans = [load.plan(poisson(_QUIET_RATE_PER_SECOND, seconds, seed=1), seed=1)]
    if busy:
        each = busy_rate / bench.generators
        plans += [
            DenseLoad(busy, bench.dense_rows).plan(poisson(each, seconds, seed), seed)
            for seed in range(2, bench.generators + 2)
        ]
    outcomes = outcomes_of(server.target, plans, seconds, bench.clock)
    first = outcomes[0]
    return {
        **figures(latencies_ns(first)),
        "errors": int(np.count_nonzero(first.codes)),
        "wrong_answers": load.wrong_count(first),
        "wrong_replies": wrong_replies_json(load.wrong_replies(first)),
        "busy_answered_per_second": round(sum(map(answered_rate, outcomes[1:])), 1),
    }

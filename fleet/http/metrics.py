"""The metrics of a coordinator, in Prometheus' text format."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleet.http import metric_families as families
from fleet.lead.observer import FleetObserver
from fleet.rollout.state import FleetState, ModelState
from serving.base.clock import Clock, seconds_since
from serving.base.errors import Unavailable
from serving.core.blocked_versions import BlockedBy
from serving.monitoring.metric_families import MetricFamily

METRICS_PATH = "/metrics"

CALL_KINDS = ("report", "grant")
SERVER_STATES = ("live", "draining", "unknown", "lost")

# The bucket edges in seconds. A decision on one server at rest is in the first bucket. A decision on a wave of
# 10,000 servers with a slow disk is in the last bucket.
_DECISION_EDGES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_MS_PER_SECOND = 1_000

Status = Mapping[str, Any]


class FleetMetrics(FleetObserver, Collector):
    """Counts the events of a coordinator, and reads its status at each scrape. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._status: Callable[[], Status] | None = None
        # Guards `_changed_at_ns`, which has the time of each model's last change.
        self._lock = threading.Lock()
        self._changed_at_ns: dict[str, int] = {}
        self._started_ns = clock.now_ns()
        self._registry = CollectorRegistry()
        self._verdicts = self._counter(families.VERDICTS)
        self._rollbacks = self._counter(families.ROLLBACKS)
        self._calls = self._counter(families.CALLS)
        self._calls_failed = self._counter(families.CALLS_FAILED)
        self._writes = self._counter(families.STATE_WRITES)
        self._writes_failed = self._counter(families.STATE_WRITES_FAILED)
        for kind in CALL_KINDS:
            self._calls.labels(kind)
            self._calls_failed.labels(kind)
        self._decisions = Histogram(
            families.DECISIONS.name,
            families.DECISIONS.help,
            buckets=_DECISION_EDGES,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def show(self, status: Callable[[], Status]) -> None:
        """Adds the gauges of a status (`fleet_status`), which each scrape reads."""
        self._status = status

    def decided(self, seconds: float) -> None:
        self._decisions.observe(seconds)

    def state_written(self, *, is_ok: bool) -> None:
        (self._writes if is_ok else self._writes_failed).inc()

    def called(self, kind: str, *, is_ok: bool) -> None:
        self._calls.labels(kind).inc()
        if not is_ok:
            self._calls_failed.labels(kind).inc()

    def state_changed(self, before: FleetState, after: FleetState) -> None:
        now_ns = self._clock.now_ns()
        for name, model in after.models.items():
            old = before.models.get(name, ModelState())
            if model == old:
                continue
            with self._lock:
                self._changed_at_ns[name] = now_ns
            self._begin_rollbacks(name)
            if model.verdicts and model.verdicts != old.verdicts:
                verdict = model.verdicts[-1]
                result = "passed" if verdict.is_passed else "failed"
                self._verdicts.labels(name, verdict.gate, result).inc()
            for version in model.blocked.keys() - old.blocked.keys():
                self._rollbacks.labels(name, model.blocked[version].by.value).inc()

    def page(self) -> bytes:
        """The exposition, in the text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Yields nothing, so that registering does not collect."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yields the gauges of the status. A family without samples is yielded too.

        If this coordinator does not lead, it has no status, and yields only a 0 for `fleet_leads`.
        """
        if self._status is None:
            return
        try:
            status = self._status()
        except Unavailable:
            yield _leads(is_so=False)
            return
        yield _leads(is_so=True)
        for name in status["models"]:
            self._begin_rollbacks(name)
        yield _servers(status)
        yield _report_age(status)
        yield _problems(status)
        yield from _model_gauges(status)
        yield from _rollout_gauges(status, self._idle_seconds(status["models"]))

    def _begin_rollbacks(self, model: str) -> None:
        """Begins the series of rollbacks at 0, because PromQL's `increase` ignores the first value of a series."""
        for by in (BlockedBy.CANARY, BlockedBy.OPERATOR):
            self._rollbacks.labels(model, by.value)

    def _idle_seconds(self, models: Iterable[str]) -> dict[str, float]:
        """The time since the rollout of each model has last changed, by model."""
        with self._lock:
            since_ns = {name: self._changed_at_ns.get(name, self._started_ns) for name in models}
        return {name: seconds_since(self._clock, at_ns) for name, at_ns in since_ns.items()}

    def _counter(self, family: MetricFamily) -> Counter:
        return Counter(family.name, family.help, family.labels, registry=self._registry)


def metrics_route(metrics: FleetMetrics) -> Route:
    """The route of the exposition. Its handler is not async, so that Starlette runs it on a thread."""

    def respond(request: Request) -> Response:
        del request
        return Response(metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return Route(METRICS_PATH, respond, methods=["GET"])


def _leads(*, is_so: bool) -> Metric:
    gauge = _gauge(families.LEADS)
    gauge.add_metric([], is_so)
    return gauge


def _servers(status: Status) -> Metric:
    gauge = _gauge(families.SERVERS)
    states = [row["state"] for row in status["servers"]]
    for state in SERVER_STATES:
        gauge.add_metric([state], states.count(state))
    return gauge


def _report_age(status: Status) -> Metric:
    gauge = _gauge(families.REPORT_AGE)
    ages = [row["seen_seconds"] for row in status["servers"]]
    if ages:
        gauge.add_metric([], max(ages))
    return gauge


def _problems(status: Status) -> Metric:
    gauge = _gauge(families.PROBLEMS)
    gauge.add_metric([], len(status["problems"]))
    return gauge


def _model_gauges(status: Status) -> Iterator[Metric]:
    servers, stable = _gauge(families.MODEL_SERVERS), _gauge(families.STABLE_VERSION)
    paused, blocked = _gauge(families.IS_PAUSED), _gauge(families.BLOCKED)
    for name, model in status["models"].items():
        for row in model["versions"]:
            servers.add_metric([name, str(row["version"])], row["default_count"])
        if model["stable"] is not None:
            stable.add_metric([name], model["stable"])
        paused.add_metric([name], model["is_paused"])
        blocked.add_metric([name], len(model["blocked_versions"]))
    yield from (servers, stable, paused, blocked)


def _rollout_gauges(status: Status, idle_seconds: Mapping[str, float]) -> Iterator[Metric]:
    gauges = {
        family: _gauge(family)
        for family in (
            families.WAVE,
            families.WAVE_SERVING,
            families.WAVE_NEEDED,
            families.FAILED_SERVERS,
            families.WARNED,
            families.IDLE,
            families.WAVE_P99,
            families.WAVE_P999,
            families.WAVE_REQUESTS,
            families.WAVE_FAILED,
        )
    }
    for name, model in status["models"].items():
        rollout = model["rollout"]
        if rollout is None:
            continue
        labels = [name, str(rollout["version"])]
        gauges[families.WAVE].add_metric(labels, rollout["wave"])
        gauges[families.WAVE_SERVING].add_metric(labels, rollout["serving_count"])
        gauges[families.WAVE_NEEDED].add_metric(labels, rollout["needed_count"])
        gauges[families.FAILED_SERVERS].add_metric(labels, len(rollout["setbacks"]))
        gauges[families.WARNED].add_metric(labels, len(rollout["warned"]))
        gauges[families.IDLE].add_metric(labels, idle_seconds[name])
        # The last wave compares with no control, so it has only the figures of the new version.
        for role, row in (rollout["compared"] or {"wave": rollout}).items():
            _add_compared(gauges, [*labels, role], row)
    yield from gauges.values()


def _add_compared(
    gauges: Mapping[MetricFamily, GaugeMetricFamily], labels: list[str], row: Mapping[str, float]
) -> None:
    gauges[families.WAVE_REQUESTS].add_metric(labels, row["request_count"])
    gauges[families.WAVE_FAILED].add_metric(labels, row["failed_count"])
    if row["request_count"] and "p99_ms" in row:
        gauges[families.WAVE_P99].add_metric(labels, row["p99_ms"] / _MS_PER_SECOND)
        gauges[families.WAVE_P999].add_metric(labels, row["p999_ms"] / _MS_PER_SECOND)


def _gauge(family: MetricFamily) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)

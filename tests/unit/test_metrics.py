"""A scraper's view of requests, versions, memory and process."""

import gzip
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as plain_families
from prometheus_client.samples import NativeHistogram

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import StatusCode
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    UNLOADING,
    GateVerdict,
    Health,
    LoadStage,
    Routing,
    ServableId,
    ServableState,
    ServableStatus,
    UnloadStage,
)
from serving.data_plane.loads import AcceleratorMemory, AcceleratorState
from serving.data_plane.servables import CPU_REASONS, AcceleratedSignature, BatchFigures
from serving.loading.autotuning import Tuning, TuningState
from serving.loading.memory_fit import UNLIMITED_BYTES
from serving.loading.reservoirs import Reservoirs
from serving.monitoring.collector import MetricsCollector, MetricsExposition
from serving.monitoring.gpu_sensors import GpuFigures
from serving.monitoring.metric_families import (
    FAMILIES,
    LATEST_COUNT_MAX,
    WHOLE_COUNT_MAX,
    MetricFamily,
    left_out_list,
    markdown_table,
)
from serving.monitoring.monitored_parts import MonitoredParts
from serving.monitoring.native_histogram import EDGES_NS, native_histogram
from serving.monitoring.request_metrics import LATENCY_EDGES_NS
from serving.monitoring.swap_record import SwapResult
from serving.monitoring.tensorflow_serving_metrics import EDGES_NS as TFS_EDGES_NS
from serving.reload.config_watch import ConfigRefusal
from tests.unit import promtool
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakeAccelerator
from tests.unit.fakes.log_store import used_log
from tests.unit.fakes.memory import ARENA_STATISTICS
from tests.unit.fakes.metrics import FakeMethod, swap_of
from tests.unit.fakes.monitored import FakeGpuSensors, fake_parts
from tests.unit.fakes.parts import FakeServedModels
from tests.unit.fakes.requests import FakeRequestStatistics, FakeReservoir
from tests.unit.fakes.servables import (
    BUSY_RUNS,
    CHOSEN_SIDES,
    FakeSignatureBatching,
    busy_batching,
    classes,
)

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "observability.md"
MS = 1_000_000
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
NATIVE = "application/openmetrics-text;version=2.0.0"

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def text_of(parts: MonitoredParts, accept: str = "") -> str:
    exposition = MetricsExposition(parts)
    return exposition.page(exposition.negotiate(accept, "")).decode()


def series_of(parts: MonitoredParts) -> Series:
    """Returns every sample of the plain text format, by name and labels, after a check that it is there once."""
    series: Series = {}
    for metric in plain_families(text_of(parts)):
        for sample in metric.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in series
            series[key] = sample.value
    return series


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


def having(series: Series, name: str) -> dict[tuple[str, ...], float]:
    """Returns the values of one metric by label values, in the order of the labels' names."""
    return {
        tuple(label for _, label in labels): number
        for (sample_name, labels), number in series.items()
        if sample_name == name
    }


def status(
    name: str = "m",
    version: int = 1,
    state: ServableState = AVAILABLE,
    **values: object,
) -> ServableStatus:
    return ServableStatus(id=ServableId(name, version), state=state, **values)  # type: ignore[arg-type]


def serving(*methods: FakeMethod) -> FakeRequestStatistics:
    return FakeRequestStatistics(by_version=list(methods))


def serving_models(*methods: FakeMethod) -> FakeRequestStatistics:
    return FakeRequestStatistics(by_model=list(methods))


# --- Requests ---------------------------------------------------------------------------------------


def test_requests_of_each_code_are_counted_and_timed():
    method = FakeMethod(latencies_ns={0: [MS, 2 * MS, 3 * MS], 4: [50 * MS]})
    series = series_of(fake_parts(statistics=serving(method)))
    labels = {"model": "m", "version": "1", "method": "Predict"}
    assert value(series, "serving_requests_total", **labels, code="OK") == 3
    assert value(series, "serving_requests_total", **labels, code="DEADLINE_EXCEEDED") == 1
    latency = "serving_request_latency_seconds"
    assert value(series, f"{latency}_count", **labels, code="OK") == 3
    assert value(series, f"{latency}_sum", **labels, code="OK") == pytest.approx(0.006)
    assert value(series, f"{latency}_bucket", **labels, code="OK", le="0.0016") == 1
    assert value(series, f"{latency}_bucket", **labels, code="OK", le="0.002") == 2
    assert value(series, f"{latency}_bucket", **labels, code="OK", le="+Inf") == 3
    assert value(series, f"{latency}_sum", **labels, code="DEADLINE_EXCEEDED") == 0.05


def test_slow_request_counts_only_in_infinite_bucket():
    method = FakeMethod(latencies_ns={0: [30 * NS_PER_SECOND]})
    buckets = having(
        series_of(fake_parts(statistics=serving(method))), "serving_request_latency_seconds_bucket"
    )
    assert {edge: count for (_, edge, *_), count in buckets.items() if count} == {"+Inf": 1}


def test_predict_has_series_before_first_request():
    series = series_of(fake_parts(statistics=serving(FakeMethod()), statuses=[status()]))
    labels = {"model": "m", "version": "1", "method": "Predict", "code": "OK"}
    assert value(series, "serving_requests_total", **labels) == 0
    assert value(series, "serving_request_latency_seconds_bucket", **labels, le="0.001") == 0


def many_models(count: int, *, asked_count: int) -> MonitoredParts:
    """Parts of models with one version each, loaded one after the other; the first ones had a request."""
    stages = {LoadStage.RESTORE: 1.0, LoadStage.WARM_UP: 0.5}
    statuses = [
        status(f"m{number}", stage_seconds=stages, state_changed_ns=number)
        for number in range(count)
    ]
    methods = [
        FakeMethod(model=f"m{number}", latencies_ns={0: [MS]} if number < asked_count else {})
        for number in range(count)
    ]
    return fake_parts(statuses=statuses, statistics=serving(*methods))


def test_latencies_of_many_idle_models_are_left_out():
    series = series_of(many_models(1_000, asked_count=10))
    assert len(having(series, "serving_requests_total")) == 1_000
    shown = having(series, "serving_request_latency_seconds_count")
    assert len(shown) == 10 + LATEST_COUNT_MAX
    assert shown["OK", "Predict", "m0", "1"] == 1
    assert shown["OK", "Predict", "m999", "1"] == 0
    assert ("OK", "Predict", "m10", "1") not in shown


def test_loads_of_many_models_are_those_of_the_last():
    series = series_of(many_models(1_000, asked_count=0))
    for name, count in (
        ("serving_load_stage_seconds", 2 * LATEST_COUNT_MAX),
        (":tensorflow:serving:model_warmup_latency_count", LATEST_COUNT_MAX),
    ):
        assert len(having(series, name)) == count
    assert ("m999", "restore", "1") in having(series, "serving_load_stage_seconds")


def of_model(series: Series, model: str) -> dict[str, int]:
    """The number of series that a model has, by metric."""
    return Counter(name for name, labels in series if ("model", model) in labels)


AT_REST = {
    "serving_requests_total": 1,
    "serving_servable_state": 1,
    "serving_routing_share_ratio": 1,
    "serving_arena_allocated_bytes": 1,
    "serving_arena_slab_bytes": 1,
    "serving_arena_resident_bytes": 1,
    "serving_swaps_total": 3,
    "serving_model_ready": 1,
}
"""All series of a model at rest, among many: the 0 of an alert or a rate, and figures that are not 0."""


def models_at_rest(**changes: object) -> MonitoredParts:
    arena = replace(ARENA_STATISTICS, active_unused_bytes=0, retained_bytes=0)
    names = [f"m{number}" for number in range(2 * WHOLE_COUNT_MAX)]
    values: dict[str, object] = {
        "statuses": [
            status(name, stage_seconds={LoadStage.WARM_UP: 1.0}, state_changed_ns=number)
            for number, name in enumerate(names)
        ],
        "statistics": serving(*(FakeMethod(model=name) for name in names)),
        "arenas": {ServableId(name, 1): arena for name in names},
        "configured": names,
        "reservoirs": Reservoirs(FakeReservoir),
    }
    return fake_parts(None, **{**values, **changes})


def test_model_at_rest_has_only_these_series():
    assert of_model(series_of(models_at_rest()), "m0") == AT_REST


def test_model_that_changed_last_has_zeros_too():
    last = of_model(series_of(models_at_rest()), f"m{2 * WHOLE_COUNT_MAX - 1}")
    assert last.keys() > AT_REST.keys()
    assert last["serving_servable_handles"] == 1
    assert last["serving_arena_retained_bytes"] == 1
    assert last["serving_request_latency_seconds_bucket"] == len(LATENCY_EDGES_NS) + 1


def test_few_versions_have_all_histograms_at_0():
    for count in (WHOLE_COUNT_MAX, WHOLE_COUNT_MAX + 1):
        shown = having(
            series_of(many_models(count, asked_count=0)), "serving_request_latency_seconds_count"
        )
        assert len(shown) == (WHOLE_COUNT_MAX if count == WHOLE_COUNT_MAX else LATEST_COUNT_MAX)


def test_trouble_of_a_model_at_rest_is_shown():
    busy = FakeMethod(model="m0", in_flight_count=2)
    error = Health(StatusCode.DATA_LOSS, "cut")
    failed = status("m0", health=error, failed_load_count=2, state_changed_ns=-1)
    recent = [
        status(f"m{number}", state_changed_ns=number) for number in range(1, 2 * WHOLE_COUNT_MAX)
    ]
    series = series_of(
        models_at_rest(statistics=serving(busy), statuses=[failed, *recent], stuck_sources={"m0"})
    )
    assert having(series, "serving_servable_handles") == {("m0", "1"): 2}
    assert having(series, "serving_servable_failed_loads")["m0", "1"] == 2
    assert having(series, "serving_source_stuck")["m0",] == 1
    assert having(series, "serving_servable_health")["DATA_LOSS", "m0", "1"] == 1


def test_swaps_that_alerts_count_begin_at_0_for_all():
    swaps = having(series_of(many_models(100, asked_count=0)), "serving_swaps_total")
    rules = (ROOT / "deploy" / "prometheus" / "alert_rules.yml").read_text()
    for result in SwapResult:
        is_alerted = f'serving_swaps_total{{result="{result.value}"}}' in rules
        assert (("m0", result.value) in swaps) is is_alerted
        assert swaps["m99", result.value] == 0


def test_uncalled_method_has_no_series():
    method = FakeMethod(method="GetModelMetadata")
    series = series_of(fake_parts(statistics=serving(method)))
    assert having(series, "serving_requests_total") == {}
    assert having(series, "serving_request_latency_seconds_bucket") == {}


def test_unknown_model_requests_have_empty_labels():
    method = FakeMethod(model="", version=0, latencies_ns={5: [MS]}, in_flight_count=3)
    series = series_of(fake_parts(statistics=serving(method)))
    counts = having(series, "serving_requests_total")
    assert counts == {("NOT_FOUND", "Predict", "", ""): 1}
    assert having(series, "serving_servable_handles") == {}


def test_versionless_model_requests_keep_model_name():
    method = FakeMethod(model="m", version=-1, latencies_ns={5: [MS]}, in_flight_count=0)
    series = series_of(fake_parts(statistics=serving(method)))
    counts = having(series, "serving_requests_total")
    assert counts == {("NOT_FOUND", "Predict", "m", ""): 1}
    assert having(series, "serving_servable_handles") == {}


def test_version_number_0_keeps_its_number():
    series = series_of(fake_parts(statistics=serving(FakeMethod(version=0))))
    assert set(having(series, "serving_requests_total")) == {("OK", "Predict", "m", "0")}


def test_unknown_status_code_is_shown_by_its_number():
    method = FakeMethod(method="GetModelStatus", latencies_ns={99: [MS]})
    series = series_of(fake_parts(statistics=serving(method)))
    assert set(having(series, "serving_requests_total")) == {("99", "GetModelStatus", "m", "1")}


def test_quantiles_are_those_of_the_last_ten_seconds():
    recent = {"total": [MS * number for number in range(1, 1_001)]}
    method = FakeMethod(phases_ns={"total": [NS_PER_SECOND]}, recent_phases_ns=recent)
    series = series_of(fake_parts(statistics=serving(method)))
    quantiles = having(series, "serving_request_latency_quantile_seconds")
    assert {quantile: seconds for (*_, quantile, _), seconds in quantiles.items()} == {
        "0.5": 0.5,
        "0.9": 0.9,
        "0.99": 0.99,
        "0.999": 0.999,
        "1.0": 1.0,
    }


def test_window_without_requests_has_no_quantiles():
    method = FakeMethod(phases_ns={"run": [MS], "total": [MS]})
    series = series_of(fake_parts(statistics=serving(method)))
    assert having(series, "serving_request_latency_quantile_seconds") == {}
    assert having(series, "serving_request_phase_seconds") == {}
    assert having(series, "serving_request_phase_seconds_sum") == {
        ("Predict", "m", "run", "1"): 0.001
    }


def test_phases_have_sum_count_and_recent_quantiles():
    method = FakeMethod(phases_ns={"queue": [MS, 3 * MS]}, recent_phases_ns={"queue": [3 * MS]})
    series = series_of(fake_parts(statistics=serving(method)))
    labels = {"model": "m", "version": "1", "method": "Predict", "phase": "queue"}
    name = "serving_request_phase_seconds"
    assert value(series, f"{name}_count", **labels) == 2
    assert value(series, f"{name}_sum", **labels) == 0.004
    assert value(series, name, **labels, quantile="0.999") == 0.003


def test_model_of_any_name_is_read_back_as_it_is():
    name = 'a "model"\\with\na line'
    series = series_of(fake_parts(statistics=serving(FakeMethod(model=name))))
    assert set(having(series, "serving_requests_total")) == {("OK", "Predict", name, "1")}


def test_in_flight_requests_count_once_per_version():
    methods = [
        FakeMethod(in_flight_count=4),
        FakeMethod(method="GetModelMetadata", in_flight_count=4),
        FakeMethod(version=2, in_flight_count=1),
    ]
    series = series_of(fake_parts(statistics=serving(*methods)))
    assert having(series, "serving_servable_handles") == {("m", "1"): 4, ("m", "2"): 1}


def test_latency_edges_are_quarter_apart_5_us_to_10_s():
    assert LATENCY_EDGES_NS[0] == 5_000
    assert LATENCY_EDGES_NS[-1] == 10 * NS_PER_SECOND
    ratios = [after / before for before, after in zip(LATENCY_EDGES_NS, LATENCY_EDGES_NS[1:])]
    assert max(ratios) <= 1.28
    assert min(ratios) > 1.2


# --- TensorFlow Serving's names -----------------------------------------------------------------------


def test_tensorflow_serving_counts_requests_per_model():
    requests = serving_models(
        FakeMethod(version=0, latencies_ns={0: [MS, MS], 3: [MS]}),
        FakeMethod(version=0, method="Classify", latencies_ns={0: [MS]}),
        FakeMethod(version=0, method="GetModelMetadata", latencies_ns={0: [MS]}),
    )
    series = series_of(fake_parts(statistics=requests))
    assert having(series, ":tensorflow:serving:request_count") == {
        ("m", "OK"): 3,
        ("m", "INVALID_ARGUMENT"): 1,
    }


def test_tensorflow_serving_latency_is_of_successes():
    requests = serving_models(FakeMethod(version=0, latencies_ns={0: [20_000], 3: [MS]}))
    series = series_of(fake_parts(statistics=requests))
    labels = {"model_name": "m", "API": "Predict", "entrypoint": "GRPC"}
    name = ":tensorflow:serving:request_latency"
    assert value(series, f"{name}_count", **labels) == 1
    assert value(series, f"{name}_sum", **labels) == 20.0
    assert value(series, f"{name}_bucket", **labels, le="18.0") == 0
    assert value(series, f"{name}_bucket", **labels, le="32.4") == 1


def test_tensorflow_serving_latency_needs_success():
    requests = serving_models(FakeMethod(version=0, latencies_ns={3: [MS]}))
    series = series_of(fake_parts(statistics=requests))
    assert having(series, ":tensorflow:serving:request_latency_count") == {}


def test_tensorflow_serving_runtime_latency_is_the_run():
    requests = serving_models(FakeMethod(version=0, phases_ns={"run": [20_000, 5_000]}))
    series = series_of(fake_parts(statistics=requests))
    labels = {"model_name": "m", "API": "Predict", "runtime": "TF1"}
    name = ":tensorflow:serving:runtime_latency"
    assert value(series, f"{name}_bucket", **labels, le="10.0") == 1
    assert value(series, f"{name}_sum", **labels) == 25.0


def test_tensorflow_serving_entrypoints_share_run():
    requests = serving_models(
        FakeMethod(version=0, latencies_ns={0: [MS]}, phases_ns={"run": [20_000]}),
        FakeMethod(
            version=0,
            method="RestPredict",
            latencies_ns={0: [2 * MS, 3 * MS]},
            phases_ns={"run": [5_000]},
        ),
        FakeMethod(version=0, method="ModelInfer", latencies_ns={0: [MS]}),
    )
    series = series_of(fake_parts(statistics=requests))
    latency = ":tensorflow:serving:request_latency_count"
    for entrypoint, count in {"GRPC": 1, "REST": 2}.items():
        labels = {"model_name": "m", "API": "Predict", "entrypoint": entrypoint}
        assert value(series, latency, **labels) == count
    name = ":tensorflow:serving:runtime_latency"
    labels = {"model_name": "m", "API": "Predict", "runtime": "TF1"}
    assert value(series, f"{name}_bucket", **labels, le="10.0") == 1
    assert value(series, f"{name}_count", **labels) == 2
    assert value(series, f"{name}_sum", **labels) == 25.0
    assert having(series, ":tensorflow:serving:request_count") == {("m", "OK"): 3}


def test_tensorflow_serving_edges_match_its_source():
    assert len(TFS_EDGES_NS) == 33
    assert TFS_EDGES_NS[:3] == (10_000, 18_000, 32_400)
    assert [round(edge_ns / MS, 1) for edge_ns in TFS_EDGES_NS[13:16]] == [20.8, 37.5, 67.5]


@pytest.mark.parametrize(
    ("health", "stages", "outcome"),
    [
        (Health(), {LoadStage.WARM_UP: 0.5, LoadStage.GATES: 1.0}, "OK"),
        (Health(StatusCode.INTERNAL, "x"), {LoadStage.WARM_UP: 0.5}, "INTERNAL"),
        (Health(StatusCode.ABORTED, "x"), {LoadStage.WARM_UP: 0.5, LoadStage.GATES: 1.0}, "OK"),
    ],
)
def test_tensorflow_serving_warmup_has_path_outcome(health, stages, outcome):
    state = END if health.code is not StatusCode.OK else AVAILABLE
    now_ns = FakeClock().now_ns()
    loaded = status(state=state, health=health, stage_seconds=stages, state_changed_ns=now_ns)
    series = series_of(fake_parts(statuses=[loaded]))
    labels = {"model_path": "/models/m/1", "status": outcome}
    name = ":tensorflow:serving:model_warmup_latency"
    assert value(series, f"{name}_sum", **labels) == 500_000
    assert value(series, f"{name}_bucket", **labels, le="+Inf") == 1


def test_warmup_of_models_with_one_base_path_adds_up():
    warm_ups = {"a": 0.5, "b": 1.5}
    loaded = [
        status(name, stage_seconds={LoadStage.WARM_UP: seconds})
        for name, seconds in warm_ups.items()
    ]
    served = FakeServedModels(base_paths=dict.fromkeys(warm_ups, "/models/shared"))
    series = series_of(fake_parts(statuses=loaded, served=served))
    labels = {"model_path": "/models/shared/1", "status": "OK"}
    name = ":tensorflow:serving:model_warmup_latency"
    assert value(series, f"{name}_sum", **labels) == 2_000_000
    assert value(series, f"{name}_count", **labels) == 2
    assert value(series, f"{name}_bucket", **labels, le="708235.0") == 1


# --- Versions -----------------------------------------------------------------------------------------


def test_version_has_one_series_for_each_state():
    series = series_of(fake_parts(statuses=[status(state=LOADING)]))
    states = having(series, "serving_servable_state")
    assert states == {
        ("m", "START", "1"): 0,
        ("m", "LOADING", "1"): 1,
        ("m", "AVAILABLE", "1"): 0,
        ("m", "UNLOADING", "1"): 0,
        ("m", "END", "1"): 0,
    }


@pytest.mark.parametrize("health", [Health(), Health(StatusCode.DATA_LOSS, "cut short")])
def test_ended_version_goes_after_ten_minutes(health):
    clock = FakeClock()
    ended = status(
        state=END,
        health=health,
        state_changed_ns=clock.now_ns(),
        stage_seconds={LoadStage.WARM_UP: 1.0, UnloadStage.QUIESCE: 1.0},
        verdicts=(GateVerdict(gate="golden", mode="enforce", is_passed=False),),
    )
    parts = fake_parts(statuses=[ended], clock=clock)
    clock.advance(599)
    assert having(series_of(parts), "serving_servable_state")
    clock.advance(1)
    later = series_of(parts)
    assert [labels for _, labels in later if ("version", "1") in labels] == []
    assert having(later, ":tensorflow:serving:model_warmup_latency_count") == {}


def test_old_serving_version_stays_exposed():
    clock = FakeClock()
    parts = fake_parts(statuses=[status(state_changed_ns=clock.now_ns())], clock=clock)
    clock.advance(1_000_000)
    assert having(series_of(parts), "serving_servable_state")["m", "AVAILABLE", "1"] == 1


def test_health_shows_error_of_load():
    failed = status(
        state=END,
        health=Health(StatusCode.DATA_LOSS, "cut short"),
        failed_load_count=3,
        state_changed_ns=FakeClock().now_ns(),
    )
    series = series_of(fake_parts(statuses=[failed]))
    assert having(series, "serving_servable_health") == {("DATA_LOSS", "m", "1"): 1}
    assert having(series, "serving_servable_failed_loads") == {("m", "1"): 3}


def test_stages_of_load_and_unload_are_two_metrics():
    stages = {LoadStage.RESTORE: 1.5, UnloadStage.DESTROY: 0.25}
    series = series_of(fake_parts(statuses=[status(state=UNLOADING, stage_seconds=stages)]))
    assert having(series, "serving_load_stage_seconds") == {("m", "restore", "1"): 1.5}
    assert having(series, "serving_unload_stage_seconds") == {("m", "destroy", "1"): 0.25}


def test_verdict_of_a_gate_is_its_last():
    verdicts = (
        GateVerdict(gate="latency", mode="report", is_passed=False),
        GateVerdict(gate="golden", mode="enforce", is_passed=False),
        GateVerdict(gate="latency", mode="report", is_passed=True),
    )
    series = series_of(fake_parts(statuses=[status(verdicts=verdicts)]))
    assert having(series, "serving_gate_passed") == {
        ("latency", "report", "m", "1"): 1,
        ("golden", "enforce", "m", "1"): 0,
    }


def test_swaps_that_never_happened_are_counted_as_0():
    parts = fake_parts(statuses=[status()], swap_counts={("m", "published"): 4})
    swaps = having(series_of(parts), "serving_swaps_total")
    assert swaps["m", "published"] == 4
    assert swaps["m", "load_failed"] == 0


def test_swap_counts_outlive_versions_of_model():
    parts = fake_parts(swap_counts={("gone", "load_failed"): 1})
    assert having(series_of(parts), "serving_swaps_total")["gone", "load_failed"] == 1


def test_default_and_canary_shares_sum_to_one():
    routing = Routing(default_version=1, canary_version=2, canary_weight=0.25)
    parts = fake_parts(
        statuses=[status(), status(version=2), status(version=3)],
        routings={"m": routing},
    )
    shares = having(series_of(parts), "serving_routing_share_ratio")
    assert shares == {("m", "1"): 0.75, ("m", "2"): 0.25}


def test_default_version_without_canary_has_everything():
    series = series_of(fake_parts(statuses=[status(), status(version=2)]))
    assert having(series, "serving_routing_share_ratio") == {("m", "2"): 1}


def test_arena_is_that_of_versions_that_are_available():
    statuses = [status(), status(version=2), status(version=3, state=UNLOADING)]
    arenas = {ServableId("m", version): ARENA_STATISTICS for version in (1, 3)}
    series = series_of(fake_parts(statuses=statuses, arenas=arenas))
    assert having(series, "serving_arena_allocated_bytes") == {("m", "1"): 1_000}
    assert having(series, "serving_arena_active_unused_bytes") == {("m", "1"): 100}
    assert having(series, "serving_arena_retained_bytes") == {("m", "1"): 10}
    assert having(series, "serving_arena_slab_bytes") == {("m", "1"): 1_111}
    assert having(series, "serving_arena_resident_bytes") == {("m", "1"): 1_100}


def kept_requests() -> Reservoirs:
    """Returns the reservoir of a model with two requests of 32 bytes."""
    reservoirs = Reservoirs(lambda: FakeReservoir(kept=[b"x" * 32] * 2))
    reservoirs.of("m")
    return reservoirs


def test_request_log_is_shown_by_fate_of_records():
    series = series_of(fake_parts(request_logs=used_log()))
    name = "serving_request_log"
    assert value(series, f"{name}_sampled_total", model="m") == 4
    assert value(series, f"{name}_written_total", model="m") == 0
    assert value(series, f"{name}_pending", model="m") == 1
    reasons = {"disk": 2, "queue_full": 1, "turned_off": 0}
    for reason, count in reasons.items():
        assert value(series, f"{name}_dropped_total", model="m", reason=reason) == count


def test_reservoirs_are_shown_by_model():
    series = series_of(fake_parts(reservoirs=kept_requests()))
    assert having(series, "serving_reservoir_requests") == {("m",): 2}
    assert having(series, "serving_reservoir_bytes") == {("m",): 64}


# --- Batches --------------------------------------------------------------------------------------------


def batched_series(states: Sequence[FakeSignatureBatching] | None = None) -> Series:
    shown = busy_batching() if states is None else states
    return series_of(fake_parts(statuses=[status()], batching={ServableId("m", 1): shown}))


def histogram_of(series: Series, name: str, **labels: str) -> dict[str, float]:
    """Returns the buckets of a histogram that hold something, by their upper edge, with sum and count."""
    found = {
        dict(at)["le"]: count
        for (bucket, at), count in series.items()
        if bucket == f"{name}_bucket" and labels.items() <= dict(at).items()
    }
    held, below = {}, 0.0
    for edge in sorted(found, key=float):
        if found[edge] > below:
            held[edge] = found[edge] - below
        below = found[edge]
    return {
        **held,
        "sum": value(series, f"{name}_sum", **labels),
        "count": value(series, f"{name}_count", **labels),
    }


BATCHED = {"model": "m", "version": "1", "signature": "serving_default"}


def test_batching_shows_which_signatures_are_on():
    series = batched_series()
    assert having(series, "serving_batching_on") == {
        ("m", "serving_default", "1"): 1,
        ("m", "whole", "1"): 0,
    }


def test_batches_are_counted_by_size_and_time():
    series = batched_series()
    rows = {"1.0": 1, "4.0": 2, "sum": 9, "count": 3}
    assert histogram_of(series, "serving_batch_rows", **BATCHED) == rows
    requests = {"1.0": 1, "2.0": 1, "4.0": 1, "sum": 7, "count": 3}
    assert histogram_of(series, "serving_batch_requests", **BATCHED) == requests
    waits = {"0.001024": 7, "sum": 0.007, "count": 7}
    assert histogram_of(series, "serving_batch_wait_seconds", **BATCHED) == waits
    runs = {"0.001024": 3, "sum": 0.003, "count": 3}
    assert histogram_of(series, "serving_batch_run_seconds", **BATCHED) == runs
    assert value(series, "serving_batch_padding_rows_total", **BATCHED) == 4
    assert value(series, "serving_batch_failed_total", **BATCHED) == 1
    assert value(series, "serving_batch_split_requests_total", **BATCHED) == 2
    assert value(series, "serving_batch_rows_limit", **BATCHED) == 64


def test_largest_class_is_the_last_bucket():
    figures = BatchFigures(
        run_count=1,
        row_count=40_000,
        by_rows=classes(*(0,) * 15, 1),
        by_wait=classes(*(0,) * 21, 1, size=22),
        wait_ns=5 * NS_PER_SECOND,
    )
    series = batched_series([FakeSignatureBatching(is_on=True, refusal="", figures=figures)])
    rows = histogram_of(series, "serving_batch_rows", **BATCHED)
    assert rows == {"+Inf": 1, "sum": 40_000, "count": 1}
    waits = histogram_of(series, "serving_batch_wait_seconds", **BATCHED)
    assert waits == {"+Inf": 1, "sum": 5, "count": 1}


def test_refused_signature_has_no_histogram():
    series = batched_series()
    assert [at for name, at in series if ("signature", "whole") in at] == [
        (("model", "m"), ("signature", "whole"), ("version", "1"))
    ]


def test_joint_runs_have_an_empty_signature():
    joint = FakeSignatureBatching("", True, "", figures=busy_batching()[0].figures)
    series = batched_series([joint])
    assert having(series, "serving_batching_on") == {}
    assert having(series, "serving_batch_rows_count") == {("m", "", "1"): 3}


def test_batches_of_ended_version_leave_later():
    clock = FakeClock()
    ended = status(state=END, state_changed_ns=clock.now_ns())
    parts = fake_parts(
        statuses=[ended], clock=clock, batching={ServableId("m", 1): busy_batching()}
    )
    clock.advance(599)
    assert having(series_of(parts), "serving_batch_rows_count")
    clock.advance(1)
    assert having(series_of(parts), "serving_batch_rows_count") == {}


def test_server_without_batches_has_no_series_of_them():
    series = series_of(fake_parts())
    assert [name for name, _ in series if "batch" in name] == []


# --- The accelerator ------------------------------------------------------------------------------------


def accelerated_parts(
    state: ServableState = AVAILABLE, accelerator: FakeAccelerator | None = None
) -> MonitoredParts:
    parts = fake_parts(statuses=[status(state=state)], runs={ServableId("m", 1): [BUSY_RUNS]})
    return parts if accelerator is None else replace(parts, accelerators=[accelerator])


def test_both_sides_are_shown_by_rows():
    parts = fake_parts(
        statuses=[status()],
        runs={ServableId("m", 1): [BUSY_RUNS]},
        accelerated={ServableId("m", 1): [CHOSEN_SIDES]},
    )
    series = series_of(parts)
    labels = {"model": "m", "version": "1", "signature": "serving_default"}
    median = "serving_accelerator_median_seconds"
    assert value(series, median, **labels, rows="1", side="cpu") == 0.000554
    assert value(series, median, **labels, rows="1", side="accelerator") == 0.000801
    assert value(series, "serving_accelerator_chosen", **labels, rows="1") == 0
    assert value(series, "serving_accelerator_chosen", **labels, rows="8") == 1
    shown = [dict(labels) for name, labels in series if name == median]
    assert all(labels["rows"] == "1" for labels in shown), "8 rows are not measured"


def test_runs_on_the_accelerator_are_shown_by_rows():
    series = series_of(accelerated_parts())
    name = "serving_accelerator"
    labels = {"model": "m", "version": "1", "device": "0"}
    assert value(series, f"{name}_parameter_bytes", **labels) == 700
    assert value(series, f"{name}_upload_seconds_count", **labels) == 2
    assert value(series, f"{name}_upload_seconds_sum", **labels) == 0.003
    assert value(series, f"{name}_drops_total", **labels) == 1
    labels["signature"] = "serving_default"
    for rows, run_count, row_count in (("1", 3, 3), ("8", 5, 33)):
        assert value(series, f"{name}_runs_total", **labels, rows=rows) == run_count
        assert value(series, f"{name}_rows_total", **labels, rows=rows) == row_count
    assert value(series, f"{name}_padding_rows_total", **labels) == 7
    assert value(series, f"{name}_stage_seconds_count", **labels, stage="run") == 4
    assert value(series, f"{name}_stage_seconds_sum", **labels, stage="run") == 0.002
    assert value(series, f"{name}_stage_seconds_sum", **labels, stage="wait") == 0
    for reason, count in zip(CPU_REASONS, BUSY_RUNS.cpu_run_counts, strict=True):
        assert value(series, f"{name}_cpu_runs_total", **labels, reason=reason) == count
    assert value(series, f"{name}_memory_used_bytes", device="0") == 6_000
    assert value(series, f"{name}_memory_limit_bytes", device="0") == 9_000


@pytest.mark.parametrize(
    ("memory", "shown"),
    [(None, []), (AcceleratorMemory(5, 0), ["serving_accelerator_memory_used_bytes"])],
)
def test_unknown_memory_of_accelerator_has_no_series(
    memory: AcceleratorMemory | None, shown: Sequence[str]
):
    series = series_of(accelerated_parts(accelerator=FakeAccelerator(memory_figures=memory)))
    assert [name for name, _ in series if "accelerator_memory" in name] == shown


def test_staging_memory_of_an_accelerator_is_shown():
    state = AcceleratorState(0, 0, 0, 0, is_failing=False, staging_bytes=4_096)
    series = series_of(accelerated_parts(accelerator=FakeAccelerator(state_figures=state)))
    assert value(series, "serving_accelerator_staging_bytes", device="0") == 4_096


def test_programs_of_an_accelerator_have_their_source():
    state = AcceleratorState(0, 0, 0, 0, is_failing=False, compiled_count=3, loaded_count=4)
    state = replace(state, shared_count=5)
    series = series_of(accelerated_parts(accelerator=FakeAccelerator(state_figures=state)))
    name = "serving_accelerator_programs_total"
    assert value(series, name, device="0", source="compiled") == 3
    assert value(series, name, device="0", source="cache") == 4
    assert value(series, name, device="0", source="shared") == 5


def test_programs_without_autotuning_are_counted():
    stays = AcceleratedSignature("parse", (), "it has no product", (), ())
    parts = fake_parts(
        statuses=[status()],
        runs={ServableId("m", 1): [BUSY_RUNS]},
        accelerated={ServableId("m", 1): [replace(CHOSEN_SIDES, untuned_rows=(1, 8)), stays]},
    )
    series, name = series_of(parts), "serving_accelerator_untuned_programs"
    assert value(series, name, model="m", version="1", signature="serving_default") == 2
    assert [dict(labels)["signature"] for found, labels in series if found == name] == [
        "serving_default"
    ]


def test_autotuning_of_a_version_has_one_state():
    running = Tuning(TuningState.RUNNING)
    series = series_of(replace(accelerated_parts(), tuning_of=lambda servable_id: running))
    name = "serving_accelerator_autotuning"
    states = {
        state.value: value(series, name, model="m", version="1", state=state.value)
        for state in TuningState
    }
    assert states == {"waiting": 0, "running": 1, "done": 0, "failed": 0}


def test_pinned_memory_of_all_accelerators_is_shown():
    state = AcceleratorState(0, 0, 0, 0, is_failing=False, pinned_bytes=5, pinned_limit_bytes=6)
    accelerators = [FakeAccelerator(name=name, state_figures=state) for name in "01"]
    series = series_of(replace(accelerated_parts(), accelerators=accelerators))
    assert value(series, "serving_accelerator_pinned_bytes") == 5
    assert value(series, "serving_accelerator_pinned_limit_bytes") == 6


def test_uploads_are_shown_by_their_memory():
    series = series_of(accelerated_parts())
    labels = {"model": "m", "version": "1", "device": "0"}
    name = "serving_accelerator_upload_bytes_total"
    assert value(series, name, **labels, memory="pinned") == 1_000
    assert value(series, name, **labels, memory="other") == 400


def test_uploads_show_what_was_there():
    series = series_of(accelerated_parts())
    labels = {"model": "m", "version": "1", "device": "0"}
    assert value(series, "serving_accelerator_kept_bytes_total", **labels) == 5_600
    name = "serving_accelerator_delta_uploaded_in_full_total"
    assert value(series, name, **labels) == 1


def test_version_that_ends_has_no_runs_on_accelerator():
    series = series_of(accelerated_parts(UNLOADING))
    names = {name for name, labels in series if "accelerator" in name}
    assert names == {
        "serving_accelerator_memory_used_bytes",
        "serving_accelerator_memory_limit_bytes",
        "serving_accelerator_pinned_bytes",
        "serving_accelerator_pinned_limit_bytes",
        "serving_accelerator_programs_total",
        "serving_accelerator_staging_bytes",
    }


def test_server_without_accelerator_has_no_series():
    series = series_of(fake_parts(statuses=[status()]))
    assert [name for name, _ in series if "accelerator" in name or "gpu" in name] == []


def test_sensors_of_each_gpu_are_shown_if_it_has_them():
    gpu = FakeGpuSensors(
        GpuFigures(utilization_ratio=0.25, temperature_celsius=61), GpuFigures(energy_joules=7)
    )
    series = series_of(fake_parts(gpu=gpu))
    assert {key: number for key, number in series.items() if "gpu" in key[0]} == {
        ("serving_gpu_utilization_ratio", (("device", "0"),)): 0.25,
        ("serving_gpu_temperature_celsius", (("device", "0"),)): 61,
        ("serving_gpu_energy_joules_total", (("device", "1"),)): 7,
    }


# --- The process ----------------------------------------------------------------------------------------


def test_process_shows_slabs_memory_config_and_build():
    series = series_of(fake_parts(refusal=ConfigRefusal("/m.toml", "no", 0)))
    assert {
        name: number for (name, labels), number in series.items() if "slab" in name and not labels
    } == {
        "serving_slab_in_use": 2,
        "serving_slab_in_use_bytes": 2_000,
        "serving_slab_spare": 1,
        "serving_slab_spare_bytes": 1_001,
        "serving_slab_spare_resident_bytes": 900,
        "serving_slab_surplus_resident_bytes": 77,
        "serving_slab_quarantined": 3,
        "serving_slab_quarantined_bytes": 3_003,
    }
    assert value(series, "serving_table_held_bytes") == 4_004
    assert value(series, "serving_table_standby_bytes") == 5_005
    assert value(series, "serving_table_copying_bytes") == 6_006
    assert value(series, "serving_tables_dirty") == 1
    assert value(series, "serving_request_memory_in_use_bytes") == 5_000
    assert value(series, "serving_request_memory_peak_bytes") == 6_000
    assert value(series, "serving_request_memory_allocations_total") == 7_000
    assert value(series, "serving_process_page_faults_total", kind="minor") == 11
    assert value(series, "serving_process_page_faults_total", kind="major") == 2
    assert value(series, "serving_in_flight_requests") == 5
    assert value(series, "serving_requests_under_way_bytes") == 7
    assert value(series, "serving_requests_under_way_limit_bytes") == 1_000
    assert value(series, "serving_requests_refused_for_memory_total") == 3
    assert value(series, "serving_runs_ended_by_memory_total") == 2
    assert value(series, "serving_refused_requests_total") == 6
    assert value(series, "serving_grpc_connections") == 11
    assert value(series, "serving_grpc_limits_reached_total", limit="pause") == 12
    assert value(series, "serving_grpc_limits_reached_total", limit="pings") == 0
    assert value(series, "serving_config_changes_total") == 4
    assert value(series, "serving_config_refused") == 1
    assert value(series, "serving_spans_dropped_total", reason="over_rate") == 3
    assert value(series, "serving_log_lines_dropped_total") == 8
    assert value(series, "process_resident_memory_bytes") > 1_000_000
    (labels,) = (labels for name, labels in series if name == "serving_build_info")
    assert dict(labels)["version"] == "1.2.3"
    assert dict(labels)["allocator"] == "jemalloc"


def test_free_memory_and_limit_are_exposed_if_known():
    series = series_of(fake_parts(model_memory_limit_bytes=9_000))
    assert value(series, "serving_memory_available_bytes") == 8_000
    assert value(series, "serving_model_memory_limit_bytes") == 9_000
    unlimited = series_of(fake_parts(available_bytes=UNLIMITED_BYTES))
    assert having(unlimited, "serving_memory_available_bytes") == {}
    assert having(unlimited, "serving_model_memory_limit_bytes") == {}


def test_server_without_slab_pool_has_no_slab_series():
    series = series_of(fake_parts(slab_pool=None))
    assert [name for name, _ in series if name.startswith("serving_slab")] == []


# --- The formats ----------------------------------------------------------------------------------------


def busy_parts() -> MonitoredParts:
    """A page with a sample of every family."""
    latencies: dict[int, Sequence[int]] = {0: [MS, 2 * MS], 5: [MS]}
    phases = {phase: [MS] for phase in ("queue", "decode", "batch", "run", "encode", "total")}
    busy = FakeMethod(latencies_ns=latencies, phases_ns=phases, recent_phases_ns=phases)
    lost = FakeMethod(model="", version=0, latencies_ns={5: [MS]})
    stages = {LoadStage.WARM_UP: 0.5, UnloadStage.QUIESCE: 0.5}
    verdict = GateVerdict(gate="golden", mode="enforce", is_passed=True)
    return fake_parts(
        accelerated={ServableId("m", 1): [CHOSEN_SIDES]},
        statistics=FakeRequestStatistics(by_version=[busy, lost], by_model=[busy, lost]),
        statuses=[status(stage_seconds=stages, verdicts=(verdict,))],
        arenas={ServableId("m", 1): ARENA_STATISTICS},
        batching={ServableId("m", 1): busy_batching()},
        reservoirs=kept_requests(),
        request_logs=used_log(),
        swaps=[swap_of("m", figures={"restored_bytes": 1, "kept_bytes": 2})],
        runs={ServableId("m", 1): [BUSY_RUNS]},
        tuning_of=lambda servable_id: Tuning(TuningState.WAITING),
        gpu=FakeGpuSensors(GpuFigures(0.5, 1_200.5, 60)),
        configured=["m"],
        blocked={"m": {6: BlockedVersion(by=BlockedBy.CRASH)}},
        model_memory_limit_bytes=9_000,
    )


UNCLEAR = re.compile(r"^(Of|What|Those|Whether|How|As many)\b|\bwhere\b|nobody|\bis no\b")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_metric_help_reads_plainly(family: MetricFamily):
    assert not UNCLEAR.search(family.help.removeprefix("As in TensorFlow Serving: "))


def check_against_table(metric: Metric, family: MetricFamily) -> None:
    assert metric.documentation == family.help
    expected = set(family.labels) | ({"le"} if family.kind == "histogram" else set())
    for sample in metric.samples:
        assert sample.name.startswith(family.base_name)
        assert set(sample.labels) <= expected
    widest = max((set(sample.labels) for sample in metric.samples), key=len)
    assert widest == expected


def test_exposed_families_are_exactly_those_of_table():
    exposed = {
        metric.name: metric for metric in openmetrics_families(text_of(busy_parts(), OPENMETRICS))
    }
    assert set(exposed) == {family.base_name for family in FAMILIES}
    for family in FAMILIES:
        assert exposed[family.base_name].type == family.kind
        check_against_table(exposed[family.base_name], family)


def test_families_are_exposed_before_first_count():
    text = text_of(fake_parts())
    for family in FAMILIES:
        assert f"# TYPE {family.name} " in text


def test_no_family_and_no_series_comes_twice():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    lines = [line for line in text_of(busy_parts()).splitlines() if not line.startswith("#")]
    names = [line.rpartition(" ")[0] for line in lines]
    assert len(names) == len(set(names))


def test_metrics_of_the_document_are_those_of_the_code():
    document = DOCUMENT.read_text()
    remedy = "put what `python -m serving.monitoring.metric_families` prints into the document"
    assert markdown_table() in document, remedy
    assert left_out_list() in document, remedy


def test_documented_metrics_are_exposed():
    document = DOCUMENT.read_text().replace(left_out_list(), "")
    spoken_of = set(re.findall(r"(?:\bserving_|:tensorflow:)[a-z_:]+[a-z]", document))
    names = {family.name for family in FAMILIES}
    suffixes = ("", "_bucket", "_sum", "_count")
    assert spoken_of <= {f"{name}{suffix}" for name in names for suffix in suffixes}


@pytest.mark.parametrize(
    ("accept", "encode", "parse"),
    [
        ("", generate_latest, plain_families),
        (OPENMETRICS, partial(openmetrics_text, escaping=ALLOWUTF8), openmetrics_families),
    ],
)
def test_text_is_that_of_prometheus_client(accept, encode, parse):
    parts = busy_parts()
    ours = text_of(parts, accept)
    theirs = encode(MetricsCollector(parts)).decode()
    assert [line for line in ours.splitlines() if line.startswith("#")] == [
        line for line in theirs.splitlines() if line.startswith("#")
    ]
    own, other = (
        [
            [sample for sample in metric.samples if not sample.name.startswith("process_")]
            for metric in parse(text)
        ]
        for text in (ours, theirs)
    )
    assert own == other


def test_names_of_any_characters_are_escaped():
    name = 'a"b\\c\nd,e="f"}'
    method = FakeMethod(model=name, latencies_ns={0: [MS]})
    for accept, parse in (("", plain_families), (OPENMETRICS, openmetrics_families)):
        text = text_of(fake_parts(statistics=serving(method)), accept)
        models = {
            sample.labels["model"]
            for metric in parse(text)
            for sample in metric.samples
            if sample.name.startswith("serving_request_latency_seconds")
        }
        assert models == {name}


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
        ("application/openmetrics-text;version=x", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;version=2.x", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_format_follows_accept_header(accept, content_type):
    exposition = MetricsExposition(fake_parts())
    wanted = exposition.negotiate(accept, "")
    assert wanted.content_type == content_type
    assert b"serving_build_info" in exposition.page(wanted)


def test_page_is_compressed_if_gzip_is_accepted():
    exposition = MetricsExposition(busy_parts())
    plain = exposition.page(exposition.negotiate("", ""))
    compressed = exposition.page(exposition.negotiate("", "deflate, gzip;q=1.0"))
    assert len(compressed) < len(plain) / 5
    names = [line.split(b" ")[0] for line in plain.splitlines()]
    assert [line.split(b" ")[0] for line in gzip.decompress(compressed).splitlines()] == names


# --- Native histograms ------------------------------------------------------------------------------------


def native_histograms(accept: str) -> list[NativeHistogram]:
    return [
        sample.native_histogram
        for line in openmetrics_families(text_of(busy_parts(), accept))
        for sample in line.samples
        if sample.native_histogram is not None
    ]


def test_native_histograms_are_offered_to_readers():
    ok, not_found, lost = native_histograms(NATIVE)
    assert (ok.count_value, ok.schema) == (2, 3)
    assert (not_found.count_value, lost.count_value) == (1, 1)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_older_formats_have_no_native_histograms(accept):
    text = text_of(busy_parts(), accept)
    assert "schema" not in text
    assert "serving_request_latency_seconds{" not in text


def unpacked(histogram: NativeHistogram) -> dict[int, int]:
    """Returns the count of each bucket, by its index."""
    index, held, counts = 0, 0, {}
    deltas = iter(histogram.pos_deltas or ())
    for offset, length in histogram.pos_spans or ():
        index += offset
        for _ in range(length):
            held += next(deltas)
            counts[index] = held
            index += 1
    return counts


@given(st.lists(st.integers(0, 200 * NS_PER_SECOND)))
def test_native_histogram_has_latency_in_its_bucket(latencies_ns):
    method = FakeMethod(latencies_ns={0: latencies_ns})
    counts = method.cumulative_counts(0, EDGES_NS)
    histogram = native_histogram(counts, count=len(latencies_ns), sum_seconds=0.0)
    buckets = unpacked(histogram)
    assert histogram.zero_count + sum(buckets.values()) == len(latencies_ns)
    for index, held in buckets.items():
        below, above = 2 ** ((index - 1) / 8), 2 ** (index / 8)
        if index == 57:
            above = 1_000.0
        within = [at for at in latencies_ns if round(below * 1e9) < at <= round(above * 1e9)]
        assert held == len(within) > 0


# --- promtool ------------------------------------------------------------------------------------------


def test_promtool_finds_nothing_in_our_names():
    lines = promtool.complaints(text_of(busy_parts()))
    assert [line for line in lines if not line.startswith(":tensorflow:serving:")] == []


def test_promtool_objects_only_to_foreign_colons():
    lines = promtool.complaints(text_of(busy_parts()))
    assert {line.partition(" ")[2] for line in lines} == {
        "metric names should not contain ':'",
    }

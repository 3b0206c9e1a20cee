"""Metrics of the parts of a server, as they are put together."""

import os
from collections.abc import Callable, Mapping
from functools import partial

from serving.core.servable import AVAILABLE, Routing, ServableId, ServableStatus
from serving.loading.reservoirs import Reservoirs
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import StreamState
from serving.manager.streams import Streams
from serving.monitoring.collector import MetricsCollector
from serving.monitoring.metric_sources import MetricSources
from serving.rpc.health import HealthView
from serving.server.monitoring_parts import (
    arena_statistics,
    models_ready,
    reservoir_statistics,
)
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane, FakeSlabPool
from tests.unit.fakes.memory import FakeArenaStatistics
from tests.unit.fakes.metrics import busy_grpc, swap_of
from tests.unit.fakes.requests import (
    FakeAdmission,
    FakeByteBudget,
    FakeRequestStatistics,
    FakeReservoir,
)
from tests.unit.fakes.servables import FakeServable

FIRST, SECOND = ServableId("m", 1), ServableId("m", 2)


def sources_of(
    *,
    servables: Mapping[ServableId, FakeServable] | None = None,
    streams: Streams | None = None,
    reservoirs: Reservoirs | None = None,
    swap_counts: Callable[[], Mapping[tuple[str, str], int]] = dict,
    is_draining: bool = False,
) -> MetricSources:
    """Returns the sources of a server with two versions of a model."""
    clock = FakeClock()
    monitor = StateMonitor(clock)
    for servable_id in (FIRST, SECOND):
        monitor.record(ServableStatus(id=servable_id, state=AVAILABLE))
    plane = FakePlane()
    view = HealthView(
        models=("m", "absent"),
        statuses=monitor.statuses(),
        needed=frozenset(),
        is_draining=is_draining,
    )
    streams = streams or Streams()
    return MetricSources(
        requests=FakeRequestStatistics(),
        admission=FakeAdmission(100, in_flight_count=7),
        budget=FakeByteBudget(1_000),
        grpc=busy_grpc(),
        statuses=monitor.statuses,
        swap_counts=swap_counts,
        arena=partial(arena_statistics, plane, (servables or {}).get),
        slab_pool=FakeSlabPool().statistics,
        request_memory=plane.request_memory_statistics,
        reservoirs=partial(reservoir_statistics, reservoirs or Reservoirs(None)),
        routing=streams.routing,
        default_version=streams.answering,
        base_path=lambda name: f"/models/{name}",
        config_change_count=lambda: 1,
        is_config_refused=lambda: False,
        swaps=lambda: [swap_of("m")],
        models_ready=partial(models_ready, lambda: view),
        model_memory_limit_bytes=3_000,
        build_info=plane.build_info(),
        clock=clock,
    )


def values(sources: MetricSources, name: str) -> dict[tuple[str, ...], float]:
    """Returns the values of one metric by its label values."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in MetricsCollector(sources).collect()
        for sample in metric.samples
        if sample.name == name
    }


def test_version_destroyed_during_query_has_no_series():
    servables = {servable_id: FakeServable(servable_id) for servable_id in (FIRST, SECOND)}
    for servable in servables.values():
        servable.arena = FakeArenaStatistics()
    servables[FIRST].destroy()
    sources = sources_of(servables=servables)
    assert values(sources, "serving_arena_slab_bytes") == {("m", "2"): 1_111}


def test_gone_or_arenaless_versions_have_no_series():
    sources = sources_of(servables={SECOND: FakeServable(SECOND)})
    assert values(sources, "serving_arena_slab_bytes") == {}


def test_routing_shares_are_those_of_the_stream():
    streams = Streams()
    routing = Routing(default_version=1, canary_version=2, canary_weight=0.25)
    streams.replace(StreamState(name="m", routing=routing, is_idle=False))
    shares = values(sources_of(streams=streams), "serving_routing_share_ratio")
    assert shares == {("m", "1"): 0.75, ("m", "2"): 0.25}


def test_sources_come_from_parts_of_server():
    reservoirs = Reservoirs(lambda: FakeReservoir(kept=[b"123", b"45"]))
    reservoirs.of("m")
    sources = sources_of(reservoirs=reservoirs, swap_counts=lambda: {("m", "published"): 2})
    assert values(sources, "serving_reservoir_bytes") == {("m",): 5}
    assert values(sources, "serving_slab_in_use") == {(): 2}
    assert values(sources, "serving_in_flight_requests") == {(): 7}
    assert values(sources, "serving_swaps_total")["m", "published"] == 2
    assert values(sources, "serving_request_memory_in_use_bytes") == {(): 5_000}


def test_model_readiness_matches_readyz():
    ready = "serving_model_ready"
    assert values(sources_of(), ready) == {("m",): 1, ("absent",): 0}
    assert values(sources_of(is_draining=True), ready) == {("m",): 0, ("absent",): 0}


def test_swap_limit_and_free_memory_are_of_server():
    sources = sources_of()
    assert values(sources, "serving_swap_seconds") == {("m",): 2.0}
    assert values(sources, "serving_model_memory_limit_bytes") == {(): 3_000}
    assert values(sources, "serving_memory_available_bytes")[()] > 1_000_000


def test_page_faults_are_those_of_the_process():
    before = values(sources_of(), "serving_process_page_faults_total")
    touched = bytearray(os.urandom(1)) * (64 * 2**20)
    after = values(sources_of(), "serving_process_page_faults_total")
    assert after["minor",] > before["minor",] > 0
    assert len(touched) == 64 * 2**20

"""Metrics of the real parts of a server."""

import os
from collections.abc import Mapping
from dataclasses import replace

from serving.core.servable import AVAILABLE, Routing, ServableId, ServableStatus
from serving.manager.stream import StreamState
from serving.manager.streams import Streams
from serving.monitoring.collector import MetricsCollector
from serving.monitoring.monitored_parts import MonitoredParts, ProcessFigures
from tests.unit.fakes.memory import ARENA_STATISTICS
from tests.unit.fakes.monitored import FakeParts, fake_parts
from tests.unit.fakes.servables import FakeServable

FIRST, SECOND = ServableId("m", 1), ServableId("m", 2)
STATUSES = [ServableStatus(id=item, state=AVAILABLE) for item in (FIRST, SECOND)]


class LoadedVersions(Streams):
    """Streams with these versions."""

    def __init__(self, servables: Mapping[ServableId, FakeServable]) -> None:
        super().__init__()
        self._servables = servables

    def servable(self, servable_id: ServableId) -> FakeServable | None:
        return self._servables.get(servable_id)


def values(parts: MonitoredParts, name: str) -> dict[tuple[str, ...], float]:
    """Returns the values of one metric by its label values."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in MetricsCollector(parts).collect()
        for sample in metric.samples
        if sample.name == name
    }


def of_versions(servables: Mapping[ServableId, FakeServable]) -> MonitoredParts:
    return replace(fake_parts(statuses=STATUSES), streams=LoadedVersions(servables))


def test_version_destroyed_during_query_has_no_series():
    servables = {servable_id: FakeServable(servable_id) for servable_id in (FIRST, SECOND)}
    for servable in servables.values():
        servable.arena = ARENA_STATISTICS
    servables[FIRST].destroy()
    assert values(of_versions(servables), "serving_arena_slab_bytes") == {("m", "2"): 1_111}


def test_gone_or_arenaless_versions_have_no_series():
    parts = of_versions({SECOND: FakeServable(SECOND)})
    assert values(parts, "serving_arena_slab_bytes") == {}


def test_routing_shares_are_those_of_the_stream():
    streams = Streams()
    routing = Routing(default_version=1, canary_version=2, canary_weight=0.25)
    streams.replace(StreamState(name="m", routing=routing, is_idle=False))
    parts = replace(fake_parts(statuses=STATUSES), streams=streams)
    assert values(parts, "serving_routing_share_ratio") == {("m", "1"): 0.75, ("m", "2"): 0.25}


def test_model_readiness_matches_readyz():
    ready = "serving_model_ready"
    scene = FakeParts(statuses=STATUSES, configured=["m", "absent"])
    assert values(scene.parts(), ready) == {("m",): 1, ("absent",): 0}
    scene.health.is_draining = True
    assert values(scene.parts(), ready) == {("m",): 0, ("absent",): 0}


def test_free_memory_and_page_faults_are_the_process_s():
    parts = replace(fake_parts(), process=ProcessFigures(dropped_line_count=int))
    assert values(parts, "serving_memory_available_bytes")[()] > 1_000_000
    name = "serving_process_page_faults_total"
    before = values(parts, name)
    touched = bytearray(os.urandom(1)) * (64 * 2**20)
    assert values(parts, name)["minor",] > before["minor",] > 0
    assert len(touched) == 64 * 2**20

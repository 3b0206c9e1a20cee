import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from fleet.rollout.report_document import server_report
from serving.base.errors import InvalidArgument, NotFound, StatusCode
from serving.core.granted_versions import GrantedVersion
from serving.core.servable import (
    AVAILABLE,
    END,
    GateVerdict,
    Health,
    ServableId,
    ServableStatus,
)
from serving.manager.stream import StreamStatus
from serving.manager.streams import Streams
from serving.reload.grants import Grants
from serving.rpc.fleet_service import FleetService, FleetSources
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.parts import FakeHealth, FakeMonitor, FakeServedModels
from tests.unit.fakes.requests import FakeRequestStatistics
from tests.unit.fakes.servables import FakeServable

EDGES = [1_000_000, 2_000_000]


@dataclass
class FakeMethod:
    """`MethodStatistics` of one method, with the counts up to each edge."""

    method: str
    cumulative: list[int]
    total: int
    model: str = "m"
    version: int = 1

    @property
    def count_by_code(self) -> dict[int, int]:
        return {0: self.total}

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> Sequence[int]:
        assert (phase, list(edges_ns)) == ("total", EDGES)
        return self.cumulative


class FakeStreamsOfM(Streams):
    """Version 1 answers, and version 9 is blocked."""

    def status(self, name: str) -> StreamStatus:
        assert name == "m"
        row = {"version": 9, "by": "operator", "reason": "bad", "since_wall_ns": 0}
        return StreamStatus(policy="availability", default_version=1, blocked_versions=[row])

    def servable(self, servable_id: ServableId) -> FakeServable | None:
        return FakeServable(servable_id) if servable_id.version == 1 else None


class FakeGrants(Grants):
    """Has one grant, and notes those that it takes."""

    def __init__(
        self, granted: GrantedVersion | None, taken: list[tuple[str, int | None, int]]
    ) -> None:
        self._given = granted
        self._taken = taken

    def granted(self, name: str) -> GrantedVersion | None:
        assert name == "m"
        return self._given

    def grant(self, name: str, version: int | None, order: int) -> GrantedVersion:
        self._taken.append((name, version, order))
        return GrantedVersion(version, order)


@dataclass
class World:
    """A server with version 1 AVAILABLE and version 2 failed."""

    methods: list[FakeMethod] = field(default_factory=list)
    granted_version: GrantedVersion | None = GrantedVersion(1, 4)
    taken: list[tuple[str, int | None, int]] = field(default_factory=list)
    is_draining: bool = False
    drain_reports: list[str] = field(default_factory=list)
    verdicts: tuple[GateVerdict, ...] = ()
    found: list[int] = field(default_factory=lambda: [2, 1])
    message: str = "torn"
    ended: ServableStatus = ServableStatus(id=ServableId("m", 2), state=END, state_changed_ns=50)
    grants: Grants | None = None

    def service(self) -> FleetService:
        failed = Health(StatusCode.DATA_LOSS, self.message)
        statuses = (
            ServableStatus(id=ServableId("m", 1), state=AVAILABLE, verdicts=self.verdicts),
            replace(self.ended, health=failed),
        )
        monitor = FakeMonitor(statuses)
        health = FakeHealth(["m"], monitor)
        health.is_draining = self.is_draining
        sources = FleetSources(
            served=FakeServedModels(["m"], found={"m": self.found}),
            monitor=monitor,
            streams=FakeStreamsOfM(),
            requests=FakeRequestStatistics(by_version=list(self.methods)),  # type: ignore[arg-type]
            health=health,
            drain_reported=lambda: self.drain_reports.append("report"),
            free_bytes=lambda: 12,
            incarnation=77,
        )
        grants = self.grants or FakeGrants(self.granted_version, self.taken)
        return FleetService(sources, grants)

    def report(self) -> dict[str, Any]:
        reply = self.service().report(json.dumps({"latency_edges_ns": EDGES}).encode())
        document: dict[str, Any] = json.loads(reply)
        return document


def test_report_is_what_a_coordinator_reads() -> None:
    report = server_report(World().report())
    assert (report.incarnation, report.free_bytes) == (77, 12)
    model = report.models["m"]
    assert (model.granted, model.order, model.default_version) == (1, 4, 1)
    assert model.found == {1, 2}
    assert model.blocked == {9: "bad"}
    assert model.serves(1)
    assert model.versions[2].is_refused


def test_drain_is_noted_once_it_is_reported() -> None:
    world = World()
    assert (world.report()["is_draining"], world.drain_reports) == (False, [])
    world.is_draining = True
    assert (world.report()["is_draining"], world.drain_reports) == (True, ["report"])


def test_report_counts_latencies_by_bucket() -> None:
    methods = [
        FakeMethod("Predict", [3, 5], 6),
        FakeMethod("Classify", [1, 1], 1),
        FakeMethod("GetModelMetadata", [9, 9], 9),
        FakeMethod("Predict", [7, 7], 7, version=5),
    ]
    versions = World(methods).report()["models"]["m"]["versions"]
    assert versions["1"]["latency_counts"] == [4, 2, 1]
    assert versions["2"]["latency_counts"] == []


@pytest.mark.parametrize(("since_ns", "state"), [(51, "START"), (49, "END"), (0, "END")])
def test_failure_before_the_grant_does_not_count(since_ns: int, state: str) -> None:
    report = World(granted_version=GrantedVersion(2, 5, since_ns)).report()
    row = report["models"]["m"]["versions"]["2"]
    assert (row["state"], row["error_code"] != 0) == (state, state == "END")


def test_wall_clock_set_back_keeps_the_order() -> None:
    clock = FakeClock()
    ended = ServableStatus(
        id=ServableId("m", 2),
        state=END,
        state_changed_ns=clock.now_ns(),
        state_changed_wall_ns=clock.wall_ns(),
    )
    clock.set_wall(-86_400)
    clock.advance(1)
    grants = Grants(None, lambda name, versions: None, clock)
    grants.grant("m", 2, 5)
    report = World(ended=ended, grants=grants).report()
    assert report["models"]["m"]["versions"]["2"]["state"] == "START"


def test_report_has_gates_that_only_warn() -> None:
    world = World()
    world.verdicts = (
        GateVerdict(gate="drift", mode="warn", is_passed=False, reason="NaN in 100 of 100 values"),
        GateVerdict(gate="golden", mode="warn", is_passed=True),
        GateVerdict(gate="latency", mode="enforce", is_passed=False, reason="slow"),
    )
    report = server_report(world.report()).models["m"]
    assert report.versions[1].warned == {"drift": "NaN in 100 of 100 values"}
    assert report.versions[2].warned == {}


def test_report_tells_what_was_compared() -> None:
    world = World()
    row = partial(GateVerdict, mode="warn")
    suspects = {"suspect_count": 2.0}
    world.verdicts = (
        row(gate="finite", is_passed=False, figures=suspects, has_predecessor=False),
        row(gate="drift", is_passed=False),
        row(gate="constant", is_passed=True, figures=suspects),
        row(gate="outputs", is_passed=True, figures={"suspect_count": 0.0}),
        row(gate="latency", is_passed=True),
    )
    version = server_report(world.report()).models["m"].versions[1]
    assert version.warned.keys() == {"finite", "drift"}
    assert version.warned_alone == {"finite"}
    assert version.excused == {"constant"}


def test_report_of_many_versions_is_bounded() -> None:
    world = World()
    world.found = list(range(5_000))
    assert world.report()["models"]["m"]["found"] == list(range(4_000, 5_000))
    world.message = "x" * 100_000
    document = world.report()
    assert len(document["models"]["m"]["versions"]["2"]["error_message"]) == 4_000
    assert server_report(document).models["m"].versions[2].is_refused


def test_report_without_a_grant() -> None:
    assert World(granted_version=None).report()["models"]["m"]["granted"] is None


@pytest.mark.parametrize("edges", [[2, 1], "x", ["1"], [True], list(range(2_000))])
def test_report_refuses_wrong_edges(edges: object) -> None:
    with pytest.raises(InvalidArgument):
        World().service().report(json.dumps({"latency_edges_ns": edges}).encode())


def test_grant_is_passed_on() -> None:
    world = World()
    request = {"model": "m", "version": 2, "order": 5}
    assert json.loads(world.service().grant(json.dumps(request).encode())) == {
        "version": 2,
        "order": 5,
    }
    assert world.taken == [("m", 2, 5)]


def test_grant_is_withdrawn() -> None:
    world = World()
    request = {"model": "m", "version": None, "order": 5}
    assert json.loads(world.service().grant(json.dumps(request).encode()))["version"] is None
    assert world.taken == [("m", None, 5)]


@pytest.mark.parametrize(
    ("request_values", "error"),
    [
        ({"model": "n", "version": 2, "order": 5}, NotFound),
        ({"model": "m", "version": "2", "order": 5}, InvalidArgument),
        ({"model": "m", "version": 2}, InvalidArgument),
        ({"model": "m", "order": 5}, InvalidArgument),
    ],
)
def test_wrong_grant_is_refused(request_values: dict[str, object], error: type[Exception]) -> None:
    world = World()
    with pytest.raises(error):
        world.service().grant(json.dumps(request_values).encode())
    assert world.taken == []

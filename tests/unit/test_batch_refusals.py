"""Refused batching: the log has each signature once, whenever the data plane turns it off."""

import threading

import pytest
import structlog
from structlog.typing import EventDict

from serving.base.clock import SystemClock
from serving.core.servable import AVAILABLE, END, ServableId, ServableState, ServableStatus
from serving.loading.batch_refusals import BatchRefusals
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.servables import FakeServable, FakeSignatureBatching

ID = ServableId("m", 1)


class World:
    """Two batched signatures of a version; a test turns them off and looks."""

    def __init__(self) -> None:
        self.refusals = BatchRefusals(FakeClock())
        self.servable = FakeServable(ID)
        self.servable.batched = [
            FakeSignatureBatching(name, is_on=True, refusal="") for name in ("a", "b")
        ]

    def turn_off(self, index: int, reason: str = "rows differ") -> None:
        self.servable.change_batching(index, is_on=False, refusal=reason)

    def reach(self, state: ServableState) -> None:
        self.refusals.on_status(ServableStatus(id=ID, state=state))


@pytest.fixture
def world() -> World:
    return World()


def refused(logs: list[EventDict]) -> list[tuple[str, int, str, str]]:
    assert {(log["event"], log["log_level"]) for log in logs} <= {("batching_refused", "warning")}
    return [(log["model"], log["version"], log["signature"], log["reason"]) for log in logs]


def test_batched_signatures_are_not_reported(world: World) -> None:
    with structlog.testing.capture_logs() as logs:
        world.refusals.add(ID, world.servable)
        world.refusals.look()
        world.reach(END)
    assert refused(logs) == []


def test_refusal_of_the_load_is_reported_at_once(world: World) -> None:
    world.turn_off(0, "rows are mixed")
    with structlog.testing.capture_logs() as logs:
        world.refusals.add(ID, world.servable)
        assert refused(logs) == [("m", 1, "a", "rows are mixed")]
        world.refusals.look()
        world.reach(END)
    assert len(logs) == 1


def test_refusal_of_a_served_version_is_reported_once(world: World) -> None:
    world.turn_off(0)
    with structlog.testing.capture_logs() as logs:
        world.refusals.add(ID, world.servable)
        world.reach(AVAILABLE)
        world.turn_off(1, "a request's answer differed")
        world.refusals.look()
        world.refusals.look()
    assert refused(logs)[1:] == [("m", 1, "b", "a request's answer differed")]


def test_refusal_after_that_of_padding_is_reported(world: World) -> None:
    world.servable.change_batching(0, refusal="its inputs are not padded")
    with structlog.testing.capture_logs() as logs:
        world.refusals.add(ID, world.servable)
        world.turn_off(0)
        world.refusals.look()
    assert refused(logs) == [
        ("m", 1, "a", "its inputs are not padded"),
        ("m", 1, "a", "rows differ"),
    ]


def test_refusal_just_before_the_end_is_reported(world: World) -> None:
    world.refusals.add(ID, world.servable)
    world.turn_off(0)
    with structlog.testing.capture_logs() as logs:
        world.reach(END)
    assert refused(logs) == [("m", 1, "a", "rows differ")]


def test_ended_version_is_not_looked_at(world: World) -> None:
    world.refusals.add(ID, world.servable)
    world.reach(END)
    world.turn_off(0)
    with structlog.testing.capture_logs() as logs:
        world.refusals.look()
        world.reach(END)
    assert refused(logs) == []


def test_version_that_comes_back_is_reported_again(world: World) -> None:
    world.turn_off(0)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            world.refusals.add(ID, world.servable)
            world.reach(END)
    assert len(refused(logs)) == 2


def test_thread_looks_by_itself_and_ends_at_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_looked = threading.Event()
    refusals = BatchRefusals(SystemClock())
    refusals.add(ID, world.servable)

    def batching() -> list[FakeSignatureBatching]:
        has_looked.set()
        return []

    monkeypatch.setattr(world.servable, "batching", batching)
    refusals.start()
    assert has_looked.wait(timeout=30)
    refusals.stop()
    assert "batch-refusals" not in [thread.name for thread in threading.enumerate()]

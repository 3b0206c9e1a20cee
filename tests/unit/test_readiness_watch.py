from typing import Any

from structlog.testing import capture_logs

from serving.core.servable import (
    AVAILABLE,
    LOADING,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.manager.state_monitor import StateMonitor
from serving.rpc.health import HealthReporter
from serving.server.readiness_watch import ReadinessWatch
from serving.source.notes import Note
from tests.unit.fakes.clocks import FakeClock

PORT = 8_500


class FakeModels:
    """Two configured models, without notes."""

    names = ("a", "b")

    def __init__(self) -> None:
        self.unloaded: frozenset[str] = frozenset()

    def notes(self, name: str) -> list[Note]:
        del name
        return []

    def aspired_versions(self, name: str) -> frozenset[int]:
        del name
        return frozenset()


class World:
    """A server that starts; `reported` are the ports that `on_ready` got."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.monitor = StateMonitor(clock)
        models: Any = FakeModels()
        self.models = models
        self.reported: list[int] = []
        health = HealthReporter(models.names, self.monitor)
        self.watch = ReadinessWatch(
            models=models,
            monitor=self.monitor,
            health=health,
            excused=lambda: models.unloaded,
            max_startup_wait_seconds=0,
            on_ready=self.reported.append,
            clock=clock,
        )

    def record(self, **states: ServableState) -> None:
        for name, state in states.items():
            self.monitor.record(ServableStatus(id=ServableId(name, 1), state=state))

    def report(self) -> list[Any]:
        """Reports, and returns the logged lines."""
        with capture_logs() as logs:
            self.watch.report()
        return logs


def test_nothing_is_reported_while_a_model_is_awaited():
    world = World()
    world.watch.note_listening(PORT)
    world.record(a=AVAILABLE, b=LOADING)
    assert world.report() == []
    assert world.reported == []


def test_nothing_is_reported_before_port_is_open():
    world = World()
    world.record(a=AVAILABLE, b=AVAILABLE)
    world.watch.report()
    assert not world.watch.is_listening
    assert world.reported == []


def test_ready_server_is_reported_once():
    world = World()
    world.record(a=AVAILABLE, b=AVAILABLE)
    world.watch.note_listening(PORT)
    (line,) = world.report()
    assert (line["event"], line["log_level"], line["port"]) == ("ready", "info", PORT)
    assert world.report() == []
    assert world.reported == [PORT]


def test_ready_server_without_a_model_is_warned_of():
    world = World()
    world.record(a=AVAILABLE)
    world.models.unloaded = frozenset({"b"})
    world.watch.note_listening(PORT)
    (line,) = world.report()
    assert (line["log_level"], line["unavailable"]) == ("warning", ["b"])


def test_wait_ends_when_no_model_is_awaited():
    world = World()
    world.record(a=AVAILABLE, b=AVAILABLE)
    assert world.watch.wait()


def test_cancelled_wait_does_not_open_the_port():
    world = World()
    world.watch.cancel()
    assert not world.watch.wait()


def test_reasons_name_models_that_are_not_ready():
    world = World()
    world.record(a=AVAILABLE, b=LOADING)
    reasons = world.watch.reasons()
    assert reasons["a"] is None
    assert reasons["b"]

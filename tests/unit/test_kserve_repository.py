from collections.abc import Callable

import pytest

from serving.base.errors import (
    FailedPrecondition,
    MillpondError,
    NotFound,
    PermissionDenied,
    StatusCode,
    Unavailable,
)
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LOADING,
    UNLOADING,
    Health,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.kserve.repository import (
    Repository,
    ready_versions,
    unsupported_load_parameters,
)
from serving.manager.state_monitor import StateMonitor
from tests.unit.fakes.clocks import EventClock, FakeClock
from tests.unit.fakes.parts import FakeServedModels
from tests.unit.fakes.selection import FakeSelection

BAD = Health(StatusCode.DATA_LOSS, "bad checksum")


class Served:
    """A repository of the model m, with events that happen during waits."""

    def __init__(self, *, is_allowed: bool = True) -> None:
        self.clock = EventClock()
        self.monitor = StateMonitor(self.clock)
        self.selection = FakeSelection()
        self.repository = Repository(
            self.selection, self.monitor, FakeServedModels(["m"]), is_allowed=is_allowed
        )

    def record(self, state: ServableState, health: Health = HEALTHY) -> None:
        self.monitor.record(ServableStatus(id=ServableId("m", 1), state=state, health=health))

    def will_be(self, state: ServableState, health: Health = HEALTHY) -> None:
        self.clock.events.append(lambda: self.record(state, health))


@pytest.fixture
def served() -> Served:
    return Served()


def refused(action: Callable[[], None]) -> MillpondError:
    with pytest.raises(MillpondError) as caught:
        action()
    return caught.value


def test_load_waits_until_a_version_is_available(served: Served) -> None:
    served.will_be(LOADING)
    served.will_be(AVAILABLE)
    served.repository.load("m", 60)
    assert served.selection.changes == [("m", False)]
    assert served.clock.events == []


def test_load_of_present_model_returns_at_once(served: Served) -> None:
    served.record(AVAILABLE)
    served.repository.load("m", 60)
    assert served.clock.waits == []


def test_failing_load_has_reason(served: Served) -> None:
    served.will_be(LOADING)
    served.will_be(END, BAD)
    error = refused(lambda: served.repository.load("m", 60))
    assert isinstance(error, FailedPrecondition)
    assert "bad checksum" in error.message


def test_late_load_keeps_model_selected(served: Served) -> None:
    error = refused(lambda: served.repository.load("m", 5))
    assert isinstance(error, Unavailable)
    assert "no version has been found" in error.message
    assert served.selection.changes == [("m", False)]


def test_unload_waits_until_all_versions_are_gone(served: Served) -> None:
    served.record(AVAILABLE)
    served.will_be(UNLOADING)
    served.will_be(END)
    served.repository.unload("m", 60)
    assert served.selection.changes == [("m", True)]
    assert served.clock.events == []


def test_unload_held_by_requests_is_reported(served: Served) -> None:
    served.record(AVAILABLE)
    error = refused(lambda: served.repository.unload("m", 5))
    assert isinstance(error, Unavailable)


def test_load_and_unload_need_flag() -> None:
    served = Served(is_allowed=False)
    for action in (served.repository.load, served.repository.unload):
        error = refused(lambda action=action: action("m", 60))  # type: ignore[misc]
        assert isinstance(error, PermissionDenied)
        assert "--allow_repository_control" in error.message
    assert served.selection.changes == []


def test_unconfigured_model_is_refused_with_known(served: Served) -> None:
    error = refused(lambda: served.repository.unload("q", 60))
    assert isinstance(error, NotFound)
    assert "configured: m" in error.message
    assert served.selection.changes == []


def test_second_waiting_call_is_done_without_wait(served: Served) -> None:
    served.record(AVAILABLE)
    second: list[MillpondError] = []
    served.clock.events.append(
        lambda: second.append(refused(lambda: served.repository.load("m", 60)))
    )
    served.will_be(END)
    served.repository.unload("m", 60)
    assert isinstance(second[0], Unavailable)
    assert "another call waits already" in second[0].message
    assert served.selection.changes == [("m", True), ("m", False)]


def test_ready_versions_are_those_that_answer() -> None:
    monitor = StateMonitor(FakeClock())
    for version, state in enumerate((END, AVAILABLE, LOADING, AVAILABLE)):
        monitor.record(ServableStatus(id=ServableId("m", version), state=state))
    assert ready_versions(monitor.statuses()["m"]) == [1, 3]


def test_model_content_parameters_are_refused() -> None:
    sent = {"config": "{}", "file:1/model.pb": b"", "unload_dependents": False}
    assert unsupported_load_parameters(sent) == ["config", "file:1/model.pb"]

import threading

import pytest
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.manager.startup_wait import LOG_SECONDS, AwaitedModel, StartupWait, is_decided
from serving.manager.state_monitor import Statuses
from tests.unit.fakes.clocks import FakeClock


def statuses(**states: ServableState) -> Statuses:
    return {
        name: (ServableStatus(id=ServableId(name, 1), state=state),)
        for name, state in states.items()
    }


@pytest.mark.parametrize(
    ("states", "aspired", "expected"),
    [
        ([], {}, False),
        ([START], {1}, False),
        ([LOADING], {1}, False),
        ([AVAILABLE], {1}, True),
        ([END], {1}, True),
        # The version that has failed is not aspired any more, and another one is on its way.
        ([END], {2}, False),
        ([END, START], {2}, False),
        ([END, LOADING], {1, 2}, False),
        ([END, AVAILABLE], {2}, True),
        ([LOADING, AVAILABLE], {1, 2, 3}, True),
        ([END, END], {2}, True),
    ],
)
def test_model_is_decided_by_states_of_its_versions(
    states: list[ServableState], aspired: set[int], expected: bool
) -> None:
    versions = [
        ServableStatus(id=ServableId("m", number), state=state)
        for number, state in enumerate(states, 1)
    ]
    assert is_decided(versions, aspired) is expected


def test_awaited_model_is_found_until_all_have_come() -> None:
    names = ["a", "b", "c"]
    states = dict.fromkeys(names, LOADING)
    awaited = AwaitedModel(lambda name: is_decided(statuses(**states)[name]))
    found = []
    while (name := awaited.find(names)) is not None:
        found.append(name)
        states[name] = AVAILABLE
    assert sorted(found) == names
    states["a"] = LOADING
    assert awaited.find(names) == "a"


def test_awaited_model_looks_at_few_models_each_time() -> None:
    names = [f"model-{number}" for number in range(1_000)]
    states = dict.fromkeys(names, LOADING)
    looks: list[str] = []

    def look(name: str) -> bool:
        looks.append(name)
        return states[name] is AVAILABLE

    awaited = AwaitedModel(look)
    for name in names:
        assert awaited.find(names) == name
        states[name] = AVAILABLE
    assert awaited.find(names) is None
    assert len(looks) <= 4 * len(names)


@pytest.mark.parametrize(("unloaded", "found"), [(set(), "b"), ({"b"}, None)])
def test_awaited_model_is_configured_and_not_unloaded(
    unloaded: set[str], found: str | None
) -> None:
    awaited = AwaitedModel(lambda name: False)
    assert awaited.find(["a"]) == "a"
    # The model that was found last has been removed by then.
    assert awaited.find(["b"], unloaded) == found


def test_startup_wait_without_models_is_over_at_once() -> None:
    assert StartupWait(dict, max_seconds=0, clock=FakeClock()).wait()


def test_startup_wait_ends_when_the_last_model_came() -> None:
    awaited = {"m": "version 1 is LOADING"}
    wait = StartupWait(lambda: dict(awaited), max_seconds=0, clock=SystemClock())
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(wait.wait()))
    thread.start()
    wait.changed()
    assert not results
    awaited.clear()
    wait.changed()
    thread.join(30)
    assert results == [True]


def test_startup_wait_that_is_cancelled_opens_nothing() -> None:
    wait = StartupWait(lambda: {"m": "no version"}, max_seconds=0, clock=SystemClock())
    wait.cancel()
    assert not wait.wait()


def test_startup_wait_ends_at_its_limit_with_a_warning() -> None:
    clock = FakeClock()
    with capture_logs() as logs:
        assert StartupWait(lambda: {"m": "no version"}, max_seconds=3, clock=clock).wait()
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("startup_wait_over", "warning")
    assert line["models"] == {"m": "no version"}
    assert clock.waits == [3]


def test_startup_wait_logs_the_models_again_and_again() -> None:
    with capture_logs() as logs:
        wait = StartupWait(lambda: {"m": "why"}, max_seconds=3.5 * LOG_SECONDS, clock=FakeClock())
        wait.wait()
    lines = [log for log in logs if log["event"] == "waiting_for_models"]
    assert [log["models"] for log in lines] == [{"m": "why"}] * 3

import pytest

from serving.health import SERVER_SERVICES, HealthReporter, serving_by_service
from serving.servable import AVAILABLE, END, LOADING, UNLOADING, ServableId, ServableState
from serving.servable import ServableStatus as Status
from serving.state_monitor import StateMonitor
from tests.unit.fakes import FakeClock


def statuses(name: str, *states: ServableState) -> tuple[Status, ...]:
    return tuple(
        Status(id=ServableId(name, version), state=state) for version, state in enumerate(states)
    )


@pytest.mark.parametrize(
    ("states", "is_serving"),
    [
        ((), False),
        ((LOADING,), False),
        ((END,), False),
        ((UNLOADING,), False),
        ((AVAILABLE,), True),
        ((AVAILABLE, END, LOADING), True),
    ],
)
def test_health_of_a_model_is_that_of_its_best_version(
    states: tuple[ServableState, ...], is_serving: bool
) -> None:
    assert serving_by_service(["m"], {"m": statuses("m", *states)})["m"] is is_serving


@pytest.mark.parametrize("service", SERVER_SERVICES)
def test_health_of_the_server_needs_every_model(service: str) -> None:
    a, b = statuses("a", AVAILABLE), statuses("b", AVAILABLE)
    assert not serving_by_service(["a", "b"], {"a": a})[service]
    assert serving_by_service(["a", "b"], {"a": a, "b": b})[service]


class Reporter:
    """A reporter, its monitor, and what it has pushed."""

    def __init__(self) -> None:
        self.monitor = StateMonitor(FakeClock())
        self.pushed: list[tuple[str, bool]] = []
        self.removed: list[str] = []
        self.reporter = HealthReporter(
            ["m"],
            self.monitor.statuses,
            lambda *health: self.pushed.append(health),
            self.removed.append,
        )

    def update(self, state: ServableState) -> list[tuple[str, bool]]:
        """What is pushed when the one version gets to `state`."""
        self.monitor.record(statuses("m", state)[0])
        self.pushed.clear()
        self.reporter.update()
        return sorted(self.pushed)


EVERYTHING = sorted([*SERVER_SERVICES, "m"])


def test_reporter_first_update_pushes_everything() -> None:
    assert Reporter().update(LOADING) == [(service, False) for service in EVERYTHING]


def test_reporter_pushes_only_changes() -> None:
    reporter = Reporter()
    reporter.update(LOADING)
    assert reporter.update(LOADING) == []
    assert reporter.update(AVAILABLE) == [(service, True) for service in EVERYTHING]
    assert reporter.update(UNLOADING) == [(service, False) for service in EVERYTHING]


def test_reporter_draining_is_not_serving_for_good() -> None:
    reporter = Reporter()
    reporter.update(AVAILABLE)
    reporter.pushed.clear()
    reporter.reporter.drain()
    assert sorted(reporter.pushed) == [(service, False) for service in EVERYTHING]
    assert reporter.update(AVAILABLE) == []


def test_reporter_other_models_are_pushed_and_the_old_ones_removed() -> None:
    reporter = Reporter()
    reporter.update(AVAILABLE)
    reporter.pushed.clear()
    reporter.reporter.set_models(["n"])
    assert reporter.removed == ["m"]
    assert sorted(reporter.pushed) == sorted((name, False) for name in [*SERVER_SERVICES, "n"])

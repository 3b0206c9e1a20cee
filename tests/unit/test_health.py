import pytest

from serving.core.servable import AVAILABLE, END, LOADING, UNLOADING, ServableId, ServableState
from serving.core.servable import ServableStatus as Status
from serving.manager.state_monitor import StateMonitor
from serving.rpc.health import SERVER_SERVICES, HealthReporter, serving_by_service
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.servers import FakeGrpcServer


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
@pytest.mark.parametrize(
    ("available", "needed", "is_serving"),
    [
        ("a", "ab", False),
        ("ab", "ab", True),
        ("a", "a", True),
        ("b", "a", False),
        ("a", "", True),
        ("", "", False),
    ],
)
def test_server_health_needs_model_and_all_required(
    service: str, available: str, needed: str, is_serving: bool
) -> None:
    by_model = {name: statuses(name, AVAILABLE) for name in available}
    assert serving_by_service(["a", "b"], by_model, needed)[service] is is_serving


@pytest.mark.parametrize("service", SERVER_SERVICES)
def test_server_without_configured_models_is_serving(service: str) -> None:
    assert serving_by_service([], {})[service]


class PushedHealth(FakeGrpcServer):
    """Records what is pushed to it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.pushed: list[tuple[str, bool]] = []
        self.removed: list[str] = []

    def set_health(self, service: str, is_serving: bool) -> None:
        self.pushed.append((service, is_serving))

    def remove_health(self, service: str) -> None:
        self.removed.append(service)


class Reporter:
    """A reporter, its monitor, and the health that it has pushed."""

    def __init__(self) -> None:
        self.monitor = StateMonitor(FakeClock())
        grpc = PushedHealth()
        self.pushed, self.removed = grpc.pushed, grpc.removed
        self.reporter = HealthReporter(["m"], self.monitor)
        self.reporter.push_to(grpc)

    def update(self, state: ServableState, name: str = "m") -> list[tuple[str, bool]]:
        """Returns the pushed health when the one version gets to `state`."""
        self.monitor.record(statuses(name, state)[0])
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


class CountingMonitor(StateMonitor):
    """Notes the models that are looked at."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.looks: list[str] = []

    def versions(self, name: str) -> tuple[Status, ...]:
        self.looks.append(name)
        return super().versions(name)


def test_reporter_draining_looks_at_no_model_again() -> None:
    monitor = CountingMonitor()
    reporter = HealthReporter(["m"], monitor)
    reporter.update()
    assert monitor.looks == ["m"]
    reporter.drain()
    monitor.looks.clear()
    reporter.update()
    reporter.model_changed("m")
    assert monitor.looks == []


def test_reporter_looks_only_at_the_model_that_changed() -> None:
    monitor, grpc = CountingMonitor(), FakeGrpcServer()
    reporter = HealthReporter(["m", "n", "o"], monitor)
    reporter.push_to(grpc)
    for name in ("o", "m", "n", "not configured"):
        monitor.record(statuses(name, AVAILABLE)[0])
        monitor.looks.clear()
        reporter.model_changed(name)
        assert monitor.looks == [name][: name != "not configured"]
        # The server is SERVING once all models have come.
        assert grpc.health[""] is (name in ("n", "not configured"))
    monitor.record(statuses("m", END)[0])
    reporter.model_changed("m")
    assert (grpc.health[""], grpc.health["m"], grpc.health["n"]) == (False, False, True)


def test_view_of_many_models_decides_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def count(*arguments: object) -> dict[str, bool]:
        calls.append(arguments)
        return dict.fromkeys(["m", "n", ""], True)

    monkeypatch.setattr("serving.rpc.health.serving_by_service", count)
    view = HealthReporter(["m", "n"], StateMonitor(FakeClock())).view()
    assert view.is_serving
    assert view.is_model_serving("m")
    assert view.is_model_serving("n")
    assert len(calls) == 1


def test_reporter_pushes_new_models_and_drops_old() -> None:
    reporter = Reporter()
    reporter.update(AVAILABLE)
    reporter.pushed.clear()
    reporter.reporter.set_models(["n"])
    assert reporter.removed == ["m"]
    assert sorted(reporter.pushed) == sorted((name, False) for name in [*SERVER_SERVICES, "n"])


def test_reporter_counts_model_added_later_once_ready() -> None:
    reporter = Reporter()
    reporter.update(AVAILABLE)
    reporter.pushed.clear()
    reporter.reporter.set_models(["m", "n"])
    assert reporter.pushed == [("n", False)]
    assert reporter.update(END, "n") == []
    assert reporter.update(AVAILABLE, "n") == [("n", True)]
    assert reporter.update(END, "n") == sorted((name, False) for name in [*SERVER_SERVICES, "n"])


def test_reporter_readded_model_must_become_ready() -> None:
    reporter = Reporter()
    reporter.update(AVAILABLE)
    reporter.reporter.set_models(["m", "n"])
    reporter.update(AVAILABLE, "n")
    reporter.reporter.set_models(["m"])
    reporter.update(END, "n")
    reporter.pushed.clear()
    reporter.reporter.set_models(["m", "n"])
    assert reporter.pushed == [("n", False)]


def test_reporter_counts_model_added_before_ready() -> None:
    reporter = Reporter()
    reporter.update(LOADING)
    reporter.reporter.set_models(["m", "n"])
    assert reporter.update(AVAILABLE) == [("m", True)]
    assert reporter.update(AVAILABLE, "n") == sorted(
        (name, True) for name in [*SERVER_SERVICES, "n"]
    )


def test_reporter_ignores_unloaded_model_until_loaded() -> None:
    monitor, grpc, excused = StateMonitor(FakeClock()), FakeGrpcServer(), set[str]()
    pushed = grpc.health
    reporter = HealthReporter(["m", "n"], monitor, excused=lambda: excused)
    reporter.push_to(grpc)

    def record(name: str, state: ServableState) -> None:
        monitor.record(statuses(name, state)[0])
        reporter.update()

    record("m", AVAILABLE)
    record("n", AVAILABLE)
    excused.add("n")
    record("n", END)
    assert (pushed[""], pushed["n"]) == (True, False)
    # While it loads it does not count yet.
    excused.clear()
    record("n", LOADING)
    assert pushed[""]
    record("n", AVAILABLE)
    record("n", END)
    assert not pushed[""]

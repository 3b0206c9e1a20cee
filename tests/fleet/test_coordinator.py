import threading

import pytest
from structlog.testing import capture_logs

from fleet.http.api import FleetApi
from fleet.lead.coordinator import Coordinator
from fleet.rollout.operations import paused
from fleet.rollout.reports import Grant, ServerReport
from fleet.rollout.state import fleet_state_from_json
from fleet.rollout.view import model_views
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from serving.base.errors import DataLoss, Unavailable
from tests.fleet.fakes.state_stores import HeldStore, MemoryStore
from tests.fleet.worlds.fleet import MODEL, SETTINGS, serving
from tests.fleet.worlds.leads import lead_of
from tests.unit.fakes.clocks import FakeClock

FOUND = frozenset({1, 2})
WAIT_SECONDS = 20


class ListedStore(MemoryStore):
    """A store that remembers what happened in which order."""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text)
        self.events: list[str] = []

    def write(self, text: str) -> None:
        super().write(text)
        self.events.append("write")

    def send(self, grants: list[Grant]) -> None:
        self.events += [f"grant {grant.version} to {grant.server}" for grant in grants]


def coordinator_of(store: ListedStore) -> Coordinator:
    made = Coordinator(store, store.send, SETTINGS, FakeClock())  # type: ignore[arg-type]
    made.set_servers(["a", "b"])
    for name in ("a", "b"):
        made.receive(name, ServerReport(models={MODEL: serving(1, found=FOUND)}))
    store.events.clear()
    return made


def test_state_is_written_before_a_grant_is_sent() -> None:
    store = ListedStore()
    coordinator_of(store).step()
    assert store.events[0] == "write"
    assert len(store.events) == 2
    assert store.events[1].startswith("grant 2 to ")


def test_repeated_grant_needs_no_write() -> None:
    store = ListedStore()
    coordinator = coordinator_of(store)
    coordinator.step()
    store.events.clear()
    coordinator.step()
    assert [event.split()[0] for event in store.events] == ["grant"]


def test_full_disk_sends_nothing_and_decides_nothing() -> None:
    store = ListedStore()
    coordinator = coordinator_of(store)
    before, store.is_full = coordinator.state, True
    with pytest.raises(OSError, match="space"):
        coordinator.step()
    assert (coordinator.state, store.events) == (before, [])
    store.is_full = False
    coordinator.step()
    assert len(store.events) == 2


def test_new_coordinator_continues_with_a_higher_order() -> None:
    store = ListedStore()
    first = coordinator_of(store)
    first.step()
    second = coordinator_of(store)
    assert second.state.models == first.state.models
    assert second.state.order == first.state.order + 1
    assert fleet_state_from_json(store.text or "") == second.state


def test_unreadable_state_stops_the_start() -> None:
    with pytest.raises(DataLoss):
        coordinator_of(ListedStore("{"))


def test_report_of_a_foreign_server_is_ignored() -> None:
    coordinator = coordinator_of(ListedStore())
    coordinator.receive("stranger", ServerReport())
    assert sorted(coordinator.sightings) == ["a", "b"]


def test_server_that_left_the_fleet_is_forgotten() -> None:
    coordinator = coordinator_of(ListedStore())
    coordinator.set_servers(["b", "c"])
    assert coordinator.sightings["b"].report is not None
    assert coordinator.sightings["c"].report is None
    assert "a" not in coordinator.sightings


def test_operation_is_durable_when_it_returns() -> None:
    store = ListedStore()
    coordinator = coordinator_of(store)
    coordinator.step()
    coordinator.operate(lambda state: paused(state, MODEL))
    assert fleet_state_from_json(store.text or "").models[MODEL].is_paused


def test_server_that_is_ended_by_its_place_drains() -> None:
    coordinator = coordinator_of(ListedStore())
    coordinator.set_servers(["a", "b"], leaving=["a"])
    drains = {name: seen.is_draining for name, seen in coordinator.sightings.items()}
    assert drains == {"a": True, "b": False}
    coordinator.receive("a", ServerReport(models={MODEL: serving(1, found=FOUND)}))
    assert coordinator.sightings["a"].is_leaving
    (grant,) = coordinator.step().grants
    assert grant.server == "b"


def test_server_that_has_failed_is_lost_at_once() -> None:
    store = ListedStore()
    coordinator = coordinator_of(store)
    coordinator.step()
    for _ in range(2):
        coordinator.set_servers(["b", "c"], ended=["a", "d"])
        sightings = coordinator.sightings
        assert [*sightings] == ["b", "c", "a"]
        view = model_views(sightings, {}, SETTINGS.lost_seconds, FakeClock().now_ns())[MODEL]
        assert ([*view.lost], [*view.live]) == (["a"], ["b"])
    coordinator.set_servers(["b", "c"])
    assert coordinator.sightings.keys() == {"b", "c"}


def test_lost_servers_are_logged_once() -> None:
    coordinator = coordinator_of(ListedStore())
    with capture_logs() as logs:
        coordinator.step()
        coordinator.set_servers(["b", "c"], ended=["a"])
        coordinator.step()
        coordinator.step()
        coordinator.set_servers(["a", "b", "c"], identities={"a": "another"})
        # Nothing has come back before its first report.
        coordinator.step()
        assert logs[-1]["event"] == "fleet_server_lost"
        coordinator.receive("a", coordinator.sightings["b"].report or ServerReport())
        coordinator.step()
    lines = [(log["event"], log["server"]) for log in logs if "server" in log]
    assert lines == [("fleet_server_lost", "a"), ("fleet_server_back", "a")]


def test_version_that_ends_its_servers_is_blocked() -> None:
    """Each server that gets version 2 fails, and one of another name takes its place, as evicted pods do."""
    clock, grants = FakeClock(), list[Grant]()
    settings = WaveSettings(sizes=(WaveSize(1),), judged_seconds=60)
    coordinator = Coordinator(MemoryStore(), grants.extend, settings, clock)
    versions = dict.fromkeys((f"s{number}" for number in range(12)), 1)
    failed: list[str] = []
    for second in range(120):
        clock.advance(1)
        if second % 5 == 4:
            for name in [name for name, version in versions.items() if version == 2]:
                del versions[name]
                failed.append(name)
                versions[f"after-{name}"] = 1
        coordinator.set_servers([*versions], ended=failed)
        for name, version in versions.items():
            report = ServerReport(models={MODEL: serving(version, found=FOUND, order=10**6)})
            coordinator.receive(name, report)
        grants.clear()
        coordinator.step()
        for grant in grants:
            versions[grant.server] = grant.version or 1
    assert 2 in coordinator.state.models[MODEL].blocked
    assert len(failed) == 2


def test_server_with_the_name_of_another_is_new() -> None:
    coordinator = coordinator_of(ListedStore())

    def reported() -> set[str]:
        return {name for name, seen in coordinator.sightings.items() if seen.report is not None}

    coordinator.set_servers(["a", "b"], identities={"b": "1"})
    assert reported() == {"a"}
    coordinator.receive("b", ServerReport())
    coordinator.set_servers(["a", "b"], identities={"b": "1"})
    assert reported() == {"a", "b"}
    coordinator.set_servers(["a", "b"], identities={"b": "2"})
    assert reported() == {"a"}


def test_change_is_reported_once_it_is_durable() -> None:
    store = ListedStore()
    made = Coordinator(
        store,
        store.send,  # type: ignore[arg-type]
        SETTINGS,
        FakeClock(),
        on_change=lambda changes: store.events.extend(change.event for change in changes),
    )
    made.set_servers(["a"])
    made.receive("a", ServerReport(models={MODEL: serving(1, found=FOUND)}))
    made.step()
    assert store.events == [
        "write",
        "write",
        "fleet_wave_began",
        "fleet_stable_version",
        "grant 2 to a",
    ]


def idle_coordinator(store: HeldStore) -> Coordinator:
    """Returns a coordinator with two servers, whose grants go nowhere."""
    made = Coordinator(store, lambda grants: None, SETTINGS, FakeClock())
    made.set_servers(["a", "b"])
    for name in ("a", "b"):
        made.receive(name, ServerReport(models={MODEL: serving(1, found=FOUND)}))
    return made


def pause(coordinator: Coordinator) -> None:
    coordinator.operate(lambda state: paused(state, MODEL))


def test_readers_do_not_wait_for_a_write() -> None:
    store = HeldStore()
    coordinator = idle_coordinator(store)
    api = FleetApi(lead_of(coordinator), SETTINGS, FakeClock())
    with store.held():
        deciding = threading.Thread(target=coordinator.step)
        deciding.start()
        assert store.has_begun.wait(WAIT_SECONDS)
        order = coordinator.state.order
        read = threading.Event()

        def use() -> None:
            coordinator.receive("a", ServerReport(free_bytes=7))
            coordinator.set_servers(["a"])
            api.status()
            read.set()

        threading.Thread(target=use).start()
        assert read.wait(WAIT_SECONDS)
        assert coordinator.state.order == order
    deciding.join(WAIT_SECONDS)
    assert coordinator.state.order > order
    assert coordinator.sightings.keys() == {"a"}


def test_end_waits_for_a_write_and_refuses_others() -> None:
    store = HeldStore()
    coordinator = idle_coordinator(store)
    coordinator.step()
    with store.held():
        operating = threading.Thread(target=pause, args=(coordinator,))
        operating.start()
        assert store.has_begun.wait(WAIT_SECONDS)
        count, counts_at_end = store.write_count, list[int]()

        def close() -> None:
            coordinator.close()
            counts_at_end.append(store.write_count)

        closing = threading.Thread(target=close)
        closing.start()
    operating.join(WAIT_SECONDS)
    closing.join(WAIT_SECONDS)
    assert counts_at_end == [count + 1]
    with pytest.raises(Unavailable):
        pause(coordinator)
    assert store.write_count == count + 1


# --- The order of grants, if the state is behind the servers ---


def ahead(order: int) -> ServerReport:
    return ServerReport(models={MODEL: serving(1, found=FOUND, order=order)})


def test_lost_state_begins_above_its_servers() -> None:
    store = ListedStore()
    coordinator = Coordinator(store, store.send, SETTINGS, FakeClock())  # type: ignore[arg-type]
    coordinator.set_servers(["a", "b"])
    for name, order in (("a", 90), ("b", 500)):
        coordinator.receive(name, ahead(order))
    with capture_logs() as logs:
        grants = coordinator.step().grants
    assert grants
    assert all(grant.order > 500 for grant in grants)
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "fleet_orders_raised"
    ]
    # It was written before it was sent.
    assert fleet_state_from_json(store.text or "") == coordinator.state


def test_later_report_does_not_raise_the_order() -> None:
    coordinator = coordinator_of(ListedStore())
    coordinator.step()
    coordinator.receive("a", ahead(500))
    assert all(grant.order < 500 for grant in coordinator.step().grants)
    assert coordinator.state.order < 500


def test_server_that_joins_can_raise_the_order() -> None:
    coordinator = coordinator_of(ListedStore())
    coordinator.set_servers(["a", "b", "c"])
    coordinator.receive("c", ahead(500))
    coordinator.step()
    assert coordinator.state.order > 500


def test_replaced_coordinator_cannot_raise_its_order() -> None:
    store = ListedStore()
    replaced = Coordinator(store, store.send, SETTINGS, FakeClock())  # type: ignore[arg-type]
    replaced.set_servers(["a", "b"])
    order = replaced.state.order
    # Its successor has granted, before it has had a first report. Its place refuses its writes.
    store.is_full = True
    store.events.clear()
    for name in ("a", "b"):
        replaced.receive(name, ahead(500))
    for _ in range(2):
        with pytest.raises(OSError, match="space"):
            replaced.step()
    assert (replaced.state.order, store.events) == (order, [])


def test_models_of_a_server_come_from_its_place() -> None:
    coordinator = coordinator_of(ListedStore())
    coordinator.set_servers(["a"], models={"a": frozenset({"m"})})
    assert coordinator.sightings["a"].models == frozenset({"m"})
    coordinator.set_servers(["a"])
    assert coordinator.sightings["a"].models is None

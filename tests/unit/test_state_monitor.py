import threading
from dataclasses import replace

from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.base.errors import DataLoss, FilesGone, NotFound
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LOADING,
    START,
    Health,
    LoadStage,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.manager.state_monitor import (
    ENDED_COUNT_MAX,
    FAILED_SECONDS_MAX,
    UNLOADED_SECONDS_MAX,
    StateMonitor,
    Statuses,
)
from tests.unit.fakes.clocks import FakeClock


def status(version: int, state: ServableState = AVAILABLE, name: str = "m") -> ServableStatus:
    return ServableStatus(
        id=ServableId(name, version),
        state=state,
        state_changed_wall_ns=FakeClock.START_WALL_NS,
    )


def is_available(statuses: Statuses) -> bool:
    return any(item.state is AVAILABLE for item in statuses.get("m", ()))


def test_monitor_has_last_status_of_each_version() -> None:
    monitor = StateMonitor(FakeClock())
    for item in (status(2, LOADING), status(1), status(2), status(1, name="n")):
        monitor.record(item)
    assert monitor.status(ServableId("m", 2)) == status(2)
    assert monitor.statuses() == {"m": (status(1), status(2)), "n": (status(1, name="n"),)}


def test_monitor_wakes_waiters_after_listeners() -> None:
    """The documents of HTTP, which a listener keeps up to date, have the change by then."""
    monitor = StateMonitor(FakeClock())
    seen: list[bool] = []
    for add in (monitor.add_stage_listener, monitor.add_listener):
        add(lambda item: seen.append(monitor.wait_until(is_available, timeout_seconds=0)))
    monitor.record(status(1))
    assert seen == [False, False]
    assert monitor.wait_until(is_available, timeout_seconds=0)


def test_monitor_unknown_version_is_none() -> None:
    assert StateMonitor(FakeClock()).status(ServableId("m", 1)) is None


def test_monitor_snapshot_does_not_change_afterwards() -> None:
    monitor = StateMonitor(FakeClock())
    monitor.record(status(1, LOADING))
    before = monitor.statuses()
    monitor.record(status(1))
    assert before == {"m": (status(1, LOADING),)}


def test_monitor_notifies_states_in_order_not_stages() -> None:
    monitor = StateMonitor(FakeClock())
    heard: list[ServableState] = []
    monitor.add_listener(lambda item: heard.append(item.state))
    monitor.record(status(1, START))
    monitor.record(status(1, LOADING))
    monitor.record(ServableStatus(id=ServableId("m", 1), state=LOADING, stage=LoadStage.INIT))
    monitor.record(status(1))
    assert heard == [START, LOADING, AVAILABLE]


def test_monitor_listener_error_spares_next_listener() -> None:
    monitor = StateMonitor(FakeClock())
    heard: list[ServableStatus] = []

    def break_down(item: ServableStatus) -> None:
        raise ValueError("bug")

    monitor.add_listener(break_down)
    monitor.add_listener(heard.append)
    with capture_logs() as logs:
        monitor.record(status(1))
    assert heard == [status(1)]
    assert [log["event"] for log in logs] == ["listener_failed"]


def test_monitor_forgets_the_versions_that_ended_first() -> None:
    monitor = StateMonitor(FakeClock())
    monitor.record(status(0))
    for version in range(ENDED_COUNT_MAX + 5, 0, -1):
        monitor.record(status(version, END))
    kept = [item.id.version for item in monitor.statuses()["m"]]
    assert kept == list(range(ENDED_COUNT_MAX + 1))


def test_monitor_forgets_unloaded_but_not_failed() -> None:
    clock = FakeClock()
    monitor = StateMonitor(clock)

    def record(version: int, state: ServableState, health: Health = HEALTHY) -> None:
        monitor.record(
            ServableStatus(
                id=ServableId("m", version),
                state=state,
                health=health,
                state_changed_ns=clock.now_ns(),
            )
        )

    record(1, END)
    record(2, END, Health.of(DataLoss("bad checksum")))
    clock.advance(UNLOADED_SECONDS_MAX)
    record(3, AVAILABLE)
    assert [item.id.version for item in monitor.statuses()["m"]] == [1, 2, 3]
    clock.advance(1)
    assert [item.id.version for item in monitor.statuses()["m"]] == [2, 3]


FAILED = Health.of(DataLoss("bad checksum"))


def monitor_of_failures(clock: FakeClock, *versions: int) -> StateMonitor:
    monitor = StateMonitor(clock)
    for version in versions:
        monitor.record(
            ServableStatus(
                id=ServableId("m", version),
                state=END,
                health=FAILED,
                state_changed_ns=clock.now_ns(),
            )
        )
    return monitor


def versions_known(monitor: StateMonitor) -> list[int]:
    return [item.id.version for item in monitor.statuses().get("m", ())]


def test_monitor_forgets_failure_of_removed_files() -> None:
    clock = FakeClock()
    monitor = monitor_of_failures(clock, 1, 2)
    monitor.versions_seen("m", frozenset({2}), frozenset({2}))
    clock.advance(UNLOADED_SECONDS_MAX)
    assert versions_known(monitor) == [1, 2]
    clock.advance(1)
    assert versions_known(monitor) == [2]
    assert monitor.failed_versions("m") == {2}


def test_monitor_forgets_finished_failure_next_day() -> None:
    clock = FakeClock()
    monitor = monitor_of_failures(clock, 1, 2)
    # Version 1 is still on disk, and its source does not watch it for a repair.
    monitor.versions_seen("m", frozenset({1, 2}), frozenset({2}))
    clock.advance(FAILED_SECONDS_MAX)
    assert versions_known(monitor) == [1, 2]
    clock.advance(1)
    assert versions_known(monitor) == [2]


def test_monitor_keeps_watched_failure_without_files() -> None:
    clock = FakeClock()
    monitor = monitor_of_failures(clock, 2)
    monitor.versions_seen("m", frozenset(), frozenset({2}))
    clock.advance(10 * FAILED_SECONDS_MAX)
    assert versions_known(monitor) == [2]


def test_monitor_keeps_every_watched_failure() -> None:
    # A base path of many broken versions under `all {}`: each can be mended in place.
    versions = range(1, ENDED_COUNT_MAX + 6)
    monitor = StateMonitor(FakeClock())
    monitor.versions_seen("m", frozenset(versions), frozenset(versions))
    for version in versions:
        monitor.record(replace(status(version, END), health=FAILED))
    assert monitor.failed_versions("m") == frozenset(versions)


def test_monitor_forgets_failures_without_source() -> None:
    clock = FakeClock()
    monitor = monitor_of_failures(clock, 2)
    monitor.versions_seen("m", frozenset({2}), frozenset({2}))
    monitor.versions_seen("m", frozenset(), frozenset())
    clock.advance(UNLOADED_SECONDS_MAX + 1)
    assert "m" not in monitor.statuses()


def test_monitor_stops_watching_forgotten_failure() -> None:
    clock = FakeClock()
    monitor = monitor_of_failures(clock, 2)
    monitor.versions_seen("m", frozenset(), frozenset())
    clock.advance(UNLOADED_SECONDS_MAX + 1)
    monitor.statuses()
    assert monitor.failed_versions("m") == frozenset()


def test_wall_clock_set_forward_forgets_nothing() -> None:
    clock = FakeClock()
    monitor = monitor_of_failures(clock, 2)
    monitor.versions_seen("m", frozenset(), frozenset())
    clock.set_wall(10 * UNLOADED_SECONDS_MAX)
    assert versions_known(monitor) == [2]


def test_monitor_omits_model_with_forgotten_versions() -> None:
    clock = FakeClock()
    monitor = StateMonitor(clock)
    ended = ServableStatus(id=ServableId("m", 1), state=END, state_changed_ns=clock.now_ns())
    monitor.record(ended)
    monitor.record(status(1, name="n"))
    clock.advance(UNLOADED_SECONDS_MAX + 1)
    assert set(monitor.statuses()) == {"n"}
    assert monitor.status(ServableId("m", 1)) is None
    monitor.record(ended)  # It comes too late to be remembered.
    assert set(monitor.statuses()) == {"n"}
    monitor.record(status(2))
    assert monitor.statuses()["m"] == (status(2),)


def test_monitor_failed_versions_ended_with_error() -> None:
    monitor = StateMonitor(FakeClock())
    health = Health.of(DataLoss("bad checksum"))
    monitor.record(status(1, END))
    monitor.record(ServableStatus(id=ServableId("m", 2), state=END, health=health))
    monitor.record(ServableStatus(id=ServableId("m", 3), state=LOADING, health=health))
    monitor.record(ServableStatus(id=ServableId("n", 4), state=END, health=health))
    assert monitor.failed_versions("m") == {2}
    monitor.record(status(2, LOADING))
    assert monitor.failed_versions("m") == set()
    assert monitor.failed_versions("unknown") == set()


def test_monitor_lost_versions_have_what_was_found() -> None:
    monitor = StateMonitor(FakeClock())
    lost = Health.of(FilesGone("removed during the load"))
    other = Health.of(NotFound("no such op"))
    for version, state, health in ((1, END, lost), (2, END, other), (3, LOADING, lost)):
        monitor.record(
            ServableStatus(id=ServableId("m", version), state=state, health=health, found_at_ns=7)
        )
    assert monitor.lost_versions("m") == {1: 7}
    monitor.record(status(1, LOADING))
    assert monitor.lost_versions("m") == {}


def test_monitor_available_versions_of_one_model() -> None:
    monitor = StateMonitor(FakeClock())
    for item in (status(1, AVAILABLE), status(2, LOADING), status(3, END)):
        monitor.record(item)
    assert monitor.available_versions("m") == {1}
    assert monitor.available_versions("unknown") == frozenset()


def test_monitor_wait_for_present_state_returns() -> None:
    monitor = StateMonitor(FakeClock())
    monitor.record(status(1))
    assert monitor.wait_until(is_available, timeout_seconds=0)


def test_monitor_wait_for_absent_state_times_out() -> None:
    clock = FakeClock()
    monitor = StateMonitor(clock)
    assert not monitor.wait_until(is_available, timeout_seconds=5)
    assert sum(clock.waits) == 5


def test_monitor_wait_is_woken_by_a_record() -> None:
    monitor = StateMonitor(SystemClock())
    recorder = threading.Thread(target=lambda: monitor.record(status(1)))
    recorder.start()
    assert monitor.wait_until(is_available, timeout_seconds=10)
    recorder.join()


def test_monitor_waits_end_if_server_stops() -> None:
    monitor = StateMonitor(SystemClock())
    ender = threading.Thread(target=monitor.end_waits)
    ender.start()
    assert not monitor.wait_until(is_available)
    ender.join()
    monitor.record(status(1))
    assert monitor.wait_until(is_available)

import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.base.errors import StatusCode
from serving.base.executor import ThreadExecutor
from serving.base.fingerprint import Fingerprint
from serving.core.aspired_version_policy import POLICIES, Action, AvailabilityPreserving
from serving.core.model_settings import PolicyName
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    TRANSITIONS,
    UNLOADING,
    AspiredVersion,
    LoadStage,
    Routing,
    ServableId,
    ServableSnapshot,
    ServableState,
    UnloadStage,
)
from serving.manager.harness import RetryPolicy
from serving.manager.manager import FAILED_TURN_NS, AspiredVersionsManager
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import Rules
from serving.manager.streams import Streams
from tests.unit.fakes.errors import permanent, transient
from tests.unit.fakes.servables import FakeServable, FakeServingMap
from tests.unit.worlds.manager import RETRY_SECONDS, World, aspired


@pytest.fixture
def world() -> World:
    return World()


# --- Loading --------------------------------------------------------------------------------------


def test_manager_loads_aspired_version(world: World) -> None:
    world.aspire(1)
    assert world.states() == {1: LOADING}
    world.run_loads()
    assert world.states() == {1: AVAILABLE}
    assert world.serving_map.versions("m") == [1]


def test_manager_publishes_before_available(world: World) -> None:
    seen = []
    world.monitor.add_listener(
        lambda status: seen.append((status.state, world.serving_map.versions("m")))
    )
    world.settle(1)
    assert seen == [(START, []), (LOADING, []), (AVAILABLE, [1])]


def test_manager_retires_after_unloading(world: World) -> None:
    world.settle(1)
    seen = []
    world.monitor.add_listener(
        lambda status: seen.append((status.state, world.serving_map.versions("m")))
    )
    world.settle()
    assert seen == [(UNLOADING, [1]), (END, [])]


def test_manager_records_the_stages_of_a_whole_life(world: World) -> None:
    world.settle(1)
    world.settle()
    assert list(world.status(1).stage_seconds) == [
        LoadStage.RESTORE,
        LoadStage.WARM_UP,
        LoadStage.PUBLISH,
        UnloadStage.QUIESCE,
        UnloadStage.DESTROY,
    ]


def test_manager_shows_the_stage_of_a_load_under_way(world: World) -> None:
    stages = []

    def look() -> None:
        world.manager.tick()
        stages.append(world.status(1).stage_seconds)

    world.loading.during = look
    world.settle(1)
    assert stages == [{LoadStage.RESTORE: 0.5, LoadStage.WARM_UP: 0.5}]


def test_manager_loads_the_highest_version_first(world: World) -> None:
    world.settle(1, 3, 2)
    assert [servable_id.version for servable_id in world.loading.loads] == [3, 2, 1]


def test_manager_shows_a_state_before_it_is_logged(world: World) -> None:
    seen = []
    with capture_logs() as logs:
        world.monitor.add_listener(
            lambda status: seen.append((status.state, [log["event"] for log in logs]))
        )
        world.fail(1, permanent())
        world.settle(1)
    assert [events for state, events in seen if state is END] == [["load_started"]]
    assert logs[-1]["event"] == "load_failed"


def test_manager_logs_the_seconds_of_each_stage(world: World) -> None:
    with capture_logs() as logs:
        world.settle(1)
    (log,) = [log for log in logs if log["event"] == "version_available"]
    assert (log["restore_seconds"], log["warm_up_seconds"], log["load_seconds"]) == (0.5, 0.5, 1)
    assert log["publish_seconds"] == 0


# --- Swapping -------------------------------------------------------------------------------------


def test_manager_keeps_old_version_until_new_is_ready(world: World) -> None:
    world.settle(1)
    world.aspire(2)
    assert world.states() == {1: AVAILABLE, 2: LOADING}
    world.run_loads()
    assert world.states() == {1: UNLOADING, 2: AVAILABLE}
    world.run_unloads()
    assert world.states() == {1: END, 2: AVAILABLE}
    assert world.serving_map.log == ["publish m/1", "publish m/2", "retire m/1"]


def test_manager_failing_load_keeps_old_version(world: World) -> None:
    world.settle(1)
    world.fail(2, permanent("bad checksum"))
    world.settle(2)
    assert world.states() == {1: AVAILABLE, 2: END}
    assert world.status(2).health.message == "bad checksum"


def test_manager_tries_next_version_after_failure(world: World) -> None:
    world.settle(1)
    world.fail(2, permanent())
    world.settle(2)
    world.settle(3)
    assert world.states() == {1: END, 2: END, 3: AVAILABLE}


def test_manager_removed_failure_needs_no_reload(world: World) -> None:
    world.settle(1)
    world.fail(2, permanent())
    world.settle(2)
    world.settle(1)
    assert world.states() == {1: AVAILABLE, 2: END}
    assert world.loading.loads.count(ServableId("m", 1)) == 1


def test_manager_empty_list_unloads_everything(world: World) -> None:
    world.settle(1, 2)
    world.settle()
    assert world.states() == {1: END, 2: END}
    assert all(servable.is_destroyed for servable in world.loading.servables)


def test_manager_one_list_does_not_touch_another_model(world: World) -> None:
    world.settle(1, name="a")
    world.settle(5, name="b")
    world.settle(name="a")
    assert (world.states("a"), world.states("b")) == ({1: END}, {5: AVAILABLE})


def test_manager_awaits_last_request_before_destroy(world: World) -> None:
    world.settle(1)
    world.servable(1).handle_count = 1
    world.aspire(2)
    world.run_loads()
    world.run_unloads()
    assert (world.states()[1], world.servable(1).is_destroyed) == (UNLOADING, False)
    world.servable(1).handle_count = 0
    world.run_unloads()
    assert (world.states()[1], world.servable(1).is_destroyed) == (END, True)


def test_manager_held_request_delays_only_own_model(world: World) -> None:
    world.settle(1, name="a")
    world.settle(1, name="b")
    world.loading.servables[0].handle_count = 1
    world.aspire(name="a")
    world.aspire(name="b")
    world.run_unloads()
    assert (world.states("a"), world.states("b")) == ({1: UNLOADING}, {1: END})


def test_manager_running_load_delays_only_own_model(
    world: World,
) -> None:
    world.settle(1, name="b")
    world.aspire(1, name="a")
    world.aspire(name="b")
    assert (world.states("a"), world.states("b")) == ({1: LOADING}, {1: UNLOADING})


# --- Failing and retrying -------------------------------------------------------------------------


def test_manager_retries_transient_failure_when_due(world: World) -> None:
    world.fail(1, transient("disk is away"))
    world.settle(1)
    assert world.states() == {1: LOADING}
    assert "disk is away" in world.status(1).health.message
    assert world.manager.next_due_seconds() == RETRY_SECONDS
    world.clock.advance(RETRY_SECONDS)
    world.manager.tick()
    world.run_loads()
    assert world.states() == {1: AVAILABLE}
    assert world.manager.next_due_seconds() is None


def test_manager_does_not_retry_before_it_is_due(world: World) -> None:
    world.fail(1, transient())
    world.settle(1)
    world.clock.advance(RETRY_SECONDS - 1)
    world.manager.tick()
    assert not world.loaders.tasks
    assert world.manager.next_due_seconds() == 1


def test_manager_gives_up_after_the_last_retry(world: World) -> None:
    world.fail(1, *[transient()] * 3)
    world.settle(1)
    for _ in range(2):
        world.clock.advance(RETRY_SECONDS)
        world.manager.tick()
        world.run_loads()
    assert world.states() == {1: END}
    assert world.status(1).failed_load_count == 3


def test_manager_does_not_retry_a_permanent_failure(world: World) -> None:
    world.fail(1, permanent())
    world.settle(1)
    world.clock.advance(10 * RETRY_SECONDS)
    world.settle(1)
    assert world.loading.loads == [ServableId("m", 1)]


def test_manager_waiting_retry_holds_no_loader(world: World) -> None:
    world.fail(1, transient())
    world.settle(1)
    world.settle(1, name="other")
    assert world.states("other") == {1: AVAILABLE}


def test_manager_retries_failed_version_dropped_again(world: World) -> None:
    world.fail(1, permanent())
    world.settle(1)
    world.settle()
    world.settle(1)
    assert world.states() == {1: AVAILABLE}


def test_manager_retries_failed_version_back_at_once(
    world: World,
) -> None:
    world.fail(1, permanent())
    world.settle(1)
    world.manager.set_aspired("m", [])
    world.settle(1)
    assert world.states() == {1: AVAILABLE}


def test_manager_retries_failed_version_found_anew(world: World) -> None:
    world.fail(1, permanent())
    world.settle(1)
    world.aspire(1, found_at_ns=9)
    world.run_loads()
    assert world.states() == {1: AVAILABLE}


def test_manager_logs_live_version_files_changed(world: World) -> None:
    world.settle(1)
    with capture_logs() as logs:
        world.aspire(1, found_at_ns=9)
        world.aspire(1, 2, found_at_ns=9)
    assert [log["event"] for log in logs].count("live_version_files_changed") == 1
    assert world.states() == {1: AVAILABLE, 2: LOADING}


def move(world: World, *versions: int) -> None:
    """Aspires the versions as a source finds them below another base path."""
    moved = [AspiredVersion(version=version, directory=f"/moved/{version}") for version in versions]
    world.manager.set_aspired("m", moved)
    world.manager.tick()


def test_manager_loads_from_the_latest_directory(world: World) -> None:
    world.aspire(1, 2)
    assert world.states() == {1: LOADING, 2: LOADING}
    move(world, 1, 2)
    world.run_all()
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}
    assert world.loading.directories == {
        ServableId("m", version): f"/moved/{version}" for version in (1, 2)
    }


def test_manager_does_not_retry_in_a_former_directory(world: World) -> None:
    world.fail(1, transient())
    world.aspire(1)
    world.run_loads()
    assert world.states() == {1: LOADING}
    move(world, 1)
    world.run_all()
    assert world.states() == {1: AVAILABLE}
    assert world.loading.directories == {ServableId("m", 1): "/moved/1"}


@pytest.mark.parametrize("is_load_over", [False, True])
def test_manager_says_that_a_load_begins_elsewhere(world: World, is_load_over: bool) -> None:
    """The load in the former directory is under way, or waits for a retry."""
    messages: list[str] = []
    world.monitor.add_listener(
        lambda status: messages.append(status.health.message) if status.state is END else None
    )
    if is_load_over:
        world.fail(1, transient())
    world.aspire(1)
    if is_load_over:
        world.run_loads()
    move(world, 1)
    world.run_all()
    assert world.states() == {1: AVAILABLE}
    (message,) = messages
    assert "it is aspired in another directory now, /moved/1, and loaded from there" in message
    assert "no longer aspired" not in message


def files(ctime_ns: int, own_ctime_ns: int = 0) -> Fingerprint:
    """A version's directory with one file."""
    return Fingerprint((("", 0, 0, own_ctime_ns), ("saved_model.pb", 10, 0, ctime_ns)))


def test_manager_shows_other_files_of_live_version(world: World) -> None:
    def find(directory: str, found_at_ns: int, seen: Fingerprint) -> dict[int, str]:
        version = AspiredVersion(
            version=1, directory=directory, found_at_ns=found_at_ns, fingerprint=seen
        )
        world.manager.set_aspired("m", [version])
        world.manager.tick()
        world.run_all()
        status = world.stream_status()
        assert status is not None
        return dict(status.other_files)

    with capture_logs() as logs:
        assert find("/m/1", 1, files(5)) == {}
        # Moved away and back: only the directory itself has another ctime.
        assert find("/m/1", 2, files(5, own_ctime_ns=6)) == {}
        assert find("/other/1", 3, files(7)) == {1: "/other/1"}
        assert find("/m/1", 4, files(5)) == {}
    changes = [log for log in logs if log["event"] == "live_version_files_changed"]
    assert [(log["version"], log["directory"]) for log in changes] == [(1, "/other/1")]


def test_manager_bug_in_a_load_is_failed_load(world: World) -> None:
    world.loading.failures[ServableId("m", 1)] = [KeyError("/m/1")]
    with capture_logs() as logs:
        world.settle(1)
    assert world.status(1).health.code is StatusCode.INTERNAL
    assert "load_raised" in [log["event"] for log in logs]


def test_manager_publish_that_fails_frees_the_servable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(servable: FakeServable, routing: Routing) -> None:
        raise permanent("published already")

    monkeypatch.setattr(world.serving_map, "publish", refuse)
    world.settle(1)
    assert world.states() == {1: END}
    assert world.servable(1).is_destroyed


def test_manager_unload_of_unpublished_version_ends(world: World) -> None:
    world.settle(1)
    world.serving_map.published.clear()  # This makes retire raise.
    with capture_logs() as logs:
        world.settle()
    assert world.states() == {1: END}
    assert world.status(1).health.code is StatusCode.INTERNAL
    assert "retire_raised" in [log["event"] for log in logs]


class RefusingMap(FakeServingMap):
    """Refuses the changes for which `refusals` are drawn, as the native map does: nothing is changed."""

    def __init__(self, refusals: Sequence[bool]) -> None:
        super().__init__()
        self.refusals = [*refusals]

    def _refuse(self) -> None:
        if self.refusals and self.refusals.pop():
            raise permanent("refused")

    def publish(self, servable: FakeServable, routing: Routing) -> None:
        self._refuse()
        super().publish(servable, routing)

    def retire(self, name: str, version: int, routing: Routing) -> None:
        self._refuse()
        super().retire(name, version, routing)

    def set_routing(self, name: str, routing: Routing) -> None:
        self._refuse()
        super().set_routing(name, routing)


@given(
    st.lists(st.booleans(), max_size=8),
    st.lists(st.sets(st.integers(1, 4), max_size=3), min_size=1, max_size=5),
)
def test_state_is_what_requests_see(refusals: list[bool], drops: list[set[int]]) -> None:
    serving_map = RefusingMap(refusals)
    world = World(serving_map=serving_map)
    with capture_logs():
        for versions in [*drops, set[int]()]:
            serving_map.refusals *= bool(versions)
            world.aspire(*versions)
            for _ in range(4):
                world.run_all()
                seen = serving_map.routings.get("m", Routing())
                assert world.streams.routing("m") == seen
                ready = {key for key, state in world.states().items() if state is AVAILABLE}
                assert ready == {*serving_map.versions("m")}
                world.clock.ns += FAILED_TURN_NS
                world.manager.tick()
    assert world.serving_map.published == {}
    assert all(servable.is_destroyed for servable in world.loading.servables)


# --- Omitting in the middle -----------------------------------------------------------------------


def test_manager_version_omitted_before_load_ends(world: World) -> None:
    world.aspire(1)
    world.aspire()
    assert world.states() == {1: LOADING}
    world.run_loads()
    assert world.states() == {1: END}
    assert world.status(1).health.code is StatusCode.CANCELLED
    assert world.loading.servables == []


def test_manager_undoes_load_finished_after_cancel(world: World) -> None:
    world.loading.during = world.aspire
    world.settle(1)
    assert world.states() == {1: END}
    assert world.status(1).health.code is StatusCode.CANCELLED
    assert [servable.is_destroyed for servable in world.loading.servables] == [True]
    assert world.serving_map.log == []


def test_manager_cancel_after_load_never_publishes(world: World) -> None:
    world.aspire(1)
    world.manager.set_aspired("m", [])
    world.loaders.run_all()
    world.settle()
    assert world.states() == {1: END}
    assert world.history[ServableId("m", 1)] == [START, LOADING, END]
    assert world.serving_map.log == []
    assert [servable.is_destroyed for servable in world.loading.servables] == [True]


def test_manager_files_that_came_back_load_anew(world: World) -> None:
    world.aspire(1)
    world.manager.set_aspired("m", [])
    world.manager.set_aspired("m", aspired(1, found_at_ns=7))
    world.run_loads()
    world.run_all()
    assert world.states() == {1: AVAILABLE}
    # The version of before may have had other files.
    assert [servable.is_destroyed for servable in world.loading.servables] == [True, False]


def test_manager_omitting_ends_the_retries(world: World) -> None:
    world.fail(1, transient())
    world.settle(1)
    world.aspire()
    assert world.states() == {1: END}
    assert world.status(1).health.code is StatusCode.CANCELLED
    assert world.manager.next_due_seconds() is None


def test_manager_reloads_version_aspired_during_cancel(world: World) -> None:
    world.aspire(1)
    world.aspire()
    world.aspire(1)
    assert world.states() == {1: LOADING}
    world.run_loads()
    world.run_loads()
    assert world.states() == {1: AVAILABLE}
    assert world.history[ServableId("m", 1)] == [START, LOADING, END, START, LOADING, AVAILABLE]


def test_manager_reloads_version_aspired_during_unload(world: World) -> None:
    world.settle(1)
    world.servable(1).handle_count = 1
    world.aspire()
    world.run_unloads()
    world.aspire(1)
    assert world.states() == {1: UNLOADING}
    world.servable(1).handle_count = 0
    world.run_unloads()
    assert world.states() == {1: LOADING}
    world.run_loads()
    assert world.states() == {1: AVAILABLE}


def test_manager_rollback_to_cover_is_instant(world: World) -> None:
    world.settle(1)
    world.aspire(2)
    world.aspire(1)
    world.settle(1)
    assert world.states() == {1: AVAILABLE, 2: END}
    assert world.loading.loads == [ServableId("m", 1)]


def test_manager_newer_version_overtakes_load(world: World) -> None:
    world.settle(1)
    world.aspire(2)
    world.settle(3)
    assert world.states() == {1: END, 2: END, 3: AVAILABLE}
    assert ServableId("m", 2) not in world.loading.loads


# --- Bugs, threads, stopping ----------------------------------------------------------------------


def test_manager_policy_error_stops_only_own_model(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(AvailabilityPreserving):
        def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
            if snapshots[0].id.name == "bad":
                raise ValueError("bug")
            return super().next_action(snapshots)

    monkeypatch.setitem(POLICIES, PolicyName.AVAILABILITY, Broken())
    with capture_logs() as logs:
        world.aspire(1, name="bad")
        world.settle(1, name="good")
    assert world.states("good") == {1: AVAILABLE}
    assert "control_failed" in [log["event"] for log in logs]


def test_manager_decides_again_soon_after_a_bug(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(self: AvailabilityPreserving, snapshots: Sequence[ServableSnapshot]) -> None:
        raise ValueError("bug")

    with monkeypatch.context() as patched:
        patched.setattr(AvailabilityPreserving, "next_action", raises)
        world.aspire(1)
        assert world.states() == {1: START}
        assert world.manager.next_due_seconds() == 1
    world.clock.advance(1)
    world.manager.tick()
    world.run_loads()
    assert world.states() == {1: AVAILABLE}


def test_manager_stop_ignores_later_lists(world: World) -> None:
    world.settle(1)
    assert world.manager.stop(timeout_seconds=0)
    world.manager.tick()
    world.settle(2)
    assert world.states() == {1: END}
    assert world.loaders.is_stopped
    assert world.unloaders.is_stopped


def threaded_world() -> World:
    world = World()
    world.clock = SystemClock()  # type: ignore[assignment]
    world.monitor = StateMonitor(world.clock)
    world.manager = AspiredVersionsManager(
        loader=world.loading,
        loaders=ThreadExecutor("loader", 2),
        unloaders=ThreadExecutor("unloader", 1),
        serving_map=world.serving_map,
        streams=Streams(Rules(retry=RetryPolicy(retry_count_max=5, interval_ns=1))),
        monitor=world.monitor,
        clock=world.clock,
        random=float,
    )
    return world


def wait_for(world: World, states: dict[int, ServableState]) -> bool:
    return world.monitor.wait_until(
        lambda statuses: {item.id.version: item.state for item in statuses.get("m", ())} == states,
        timeout_seconds=30,
    )


def test_manager_with_threads_swaps_retries_and_stops() -> None:
    world = threaded_world()
    world.fail(2, transient(), transient())
    world.manager.start()
    world.manager.set_aspired("m", aspired(1))
    assert wait_for(world, {1: AVAILABLE})
    world.manager.set_aspired("m", aspired(2))
    assert wait_for(world, {1: END, 2: AVAILABLE})
    assert world.manager.stop(timeout_seconds=30)
    assert world.states() == {1: END, 2: END}
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("control", "loader-", "unloader-"))]


def test_manager_stop_during_a_load_undoes_it(world: World) -> None:
    def stop() -> None:
        world.manager.stop(timeout_seconds=0)
        world.manager.tick()

    world.loading.during = stop
    world.settle(1)
    assert world.states() == {1: END}
    assert world.status(1).health.code is StatusCode.CANCELLED
    assert world.servable(1).is_destroyed


# --- Any sequence of events -----------------------------------------------------------------------

VERSIONS = st.integers(1, 4)


class ManagerMachine(RuleBasedStateMachine):
    """Drops, removals, failures, held requests and time, in any order and at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.aspired: set[int] = set()
        self.available_before = 0

    @rule(versions=st.sets(VERSIONS, min_size=1))
    def aspire(self, versions: set[int]) -> None:
        self.aspired = versions
        self.world.manager.set_aspired("m", aspired(*versions))

    @rule(version=VERSIONS)
    def drop(self, version: int) -> None:
        self.aspire(self.aspired | {version})

    @rule(version=VERSIONS, at_ns=st.integers(1, 3))
    def drop_anew(self, version: int, at_ns: int) -> None:
        self.aspired = self.aspired | {version}
        anew = aspired(version, found_at_ns=at_ns)
        self.world.manager.set_aspired("m", [*aspired(*self.aspired - {version}), *anew])

    @precondition(lambda self: self.aspired)
    @rule()
    def empty(self) -> None:
        self.aspired = set()
        self.world.aspire()
        self.available_before = 0

    @rule(version=VERSIONS, failures=st.lists(st.sampled_from([transient, permanent]), max_size=4))
    def fail(self, version: int, failures: list[type]) -> None:
        self.world.fail(version, *[make() for make in failures])

    @rule()
    def tick(self) -> None:
        self.world.manager.tick()

    @rule()
    def load(self) -> None:
        self.world.loaders.run_one()

    @rule()
    def unload(self) -> None:
        self.world.unloaders.run_one()

    @rule(version=VERSIONS)
    def request_begins(self, version: int) -> None:
        servable = self.world.serving_map.published.get(ServableId("m", version))
        if servable is not None:
            servable.handle_count += 1

    @rule()
    def requests_end(self) -> None:
        for servable in self.world.loading.servables:
            servable.handle_count = 0

    @rule(seconds=st.sampled_from([1, RETRY_SECONDS]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    @invariant()
    def every_move_is_in_the_table(self) -> None:
        for states in self.world.history.values():
            assert states[0] is START
            for old, new in pairwise(states):
                assert new in TRANSITIONS[old] or (old, new) == (END, START)

    @invariant()
    def a_version_serves_while_one_could(self) -> None:
        available = [state for state in self.world.states().values() if state is AVAILABLE]
        if self.aspired and self.available_before:
            assert available
        self.available_before = len(available)

    @invariant()
    def available_versions_are_published(self) -> None:
        published = set(self.world.serving_map.versions("m"))
        states = self.world.states()
        assert {version for version in states if states[version] is AVAILABLE} <= published
        assert not {version for version in published if states[version] in (START, END)}

    @invariant()
    def ended_versions_are_freed(self) -> None:
        for servable in self.world.loading.servables:
            if not servable.is_destroyed:
                assert self.world.status(servable.id.version).state in (
                    LOADING,
                    AVAILABLE,
                    UNLOADING,
                )

    def teardown(self) -> None:
        """Everything ends: aspired versions are AVAILABLE or failed, then nothing is left."""
        self.requests_end()
        self.run_until_idle()
        for version in self.aspired:
            status = self.world.status(version)
            assert status.state is AVAILABLE or status.failed_load_count > 0
        assert self.world.manager.next_due_seconds() is None
        self.world.aspire()
        self.run_until_idle()
        assert set(self.world.states().values()) <= {END}
        assert not self.world.serving_map.published
        assert all(servable.is_destroyed for servable in self.world.loading.servables)
        assert list(self.world.streams.states()) == []

    def run_until_idle(self) -> None:
        self.world.manager.tick()
        while (
            self.world.loaders.tasks
            or self.world.unloaders.tasks
            or self.world.manager.next_due_seconds() is not None
        ):
            self.world.clock.advance(RETRY_SECONDS)
            self.world.manager.tick()
            self.world.run_loads()
            self.world.run_unloads()


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(stateful_step_count=40)


def test_manager_reports_freed_memory(world: World) -> None:
    world.settle(1)
    world.settle(2)
    assert world.memory.log == ["unloaded m/1"]
    world.settle()
    assert world.memory.log == ["unloaded m/1", "unloaded m/2", "forget m"]


def test_manager_undone_load_returns_memory(world: World) -> None:
    world.aspire(1)
    world.loading.during = lambda: world.aspire()
    world.run_loads()
    # The load has ended the room of its model, so this version leaves one in its place.
    assert "unloaded m/1 for a load" in world.memory.log


class CountingPolicy(AvailabilityPreserving):
    """Counts the looks at each stream."""

    def __init__(self) -> None:
        self.looks: list[str] = []

    def next_action(self, snapshots: Sequence[ServableSnapshot]) -> Action | None:
        self.looks += [snapshots[0].id.name] if snapshots else []
        return super().next_action(snapshots)


def test_load_looks_at_no_other_stream(monkeypatch: pytest.MonkeyPatch):
    world, policy = World(), CountingPolicy()
    monkeypatch.setitem(POLICIES, PolicyName.AVAILABILITY, policy)
    for name in ("m", "n"):
        world.manager.set_aspired(name, aspired(1))
    world.manager.tick()
    assert set(policy.looks) == {"m", "n"}
    looks_while_loading: list[str] = []

    def during() -> None:
        policy.looks.clear()
        world.manager.tick()
        looks_while_loading.extend(policy.looks)

    world.loading.during = during
    world.loaders.run_one()
    assert looks_while_loading == []
    world.manager.tick()
    assert set(policy.looks) == {"m"}


def test_change_of_labels_looks_at_its_stream(monkeypatch: pytest.MonkeyPatch):
    world, policy = World(), CountingPolicy()
    monkeypatch.setitem(POLICIES, PolicyName.AVAILABILITY, policy)
    for name in ("m", "n"):
        world.manager.set_aspired(name, aspired(1))
    world.manager.tick()
    policy.looks.clear()
    world.set_labels({"stable": 1}, "n")
    world.manager.tick()
    assert set(policy.looks) == {"n"}


def test_retry_that_is_due_waits_for_no_other_load(monkeypatch: pytest.MonkeyPatch):
    world = World()
    world.loading.failures[ServableId("n", 1)] = [transient()]
    world.manager.set_aspired("n", aspired(1))
    world.manager.tick()
    world.loaders.run_all()
    world.manager.tick()
    world.manager.set_aspired("m", aspired(1))
    world.manager.tick()
    world.clock.advance(RETRY_SECONDS)
    retries = []

    def during() -> None:
        world.manager.tick()
        retries.append(len(world.loaders.tasks))

    world.loading.during = during
    world.loaders.run_one()
    assert retries == [1]

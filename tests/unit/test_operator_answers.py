"""The order of an operator's change: what its answer waits for, and what follows after the answer."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future

import pytest
from structlog.testing import capture_logs

from serving.base.errors import FailedPrecondition
from serving.core.blocked_versions import BlockedVersions
from serving.core.operator_api import Rollback
from serving.core.servable import AVAILABLE, Routing
from serving.manager.manager import REPLY_SECONDS_MAX
from serving.manager.turn import Decision, StopLoad
from tests.unit.fakes.servables import FakeServingMap
from tests.unit.worlds.manager import KEEP, World, answer, aspired, routing


class NotedMap(FakeServingMap):
    """Notes each change of the routing."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def set_routing(self, name: str, routing: Routing) -> None:
        super().set_routing(name, routing)
        self._note("routed")


class NotedDict(dict[str, object]):
    """Notes each item that is set."""

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self._note = note

    def __setitem__(self, key: str, value: object) -> None:
        super().__setitem__(key, value)
        self._note()


def noted_world() -> tuple[World, list[str]]:
    """A world in which version 2 answers and version 1 is kept, and the list of what happens from now on."""
    steps: list[str] = []
    world = World(serving_map=NotedMap(steps.append))
    world.manager.set_settings("m", KEEP)
    world.on_disk = {1, 2}
    world.settle(1)
    world.settle(1, 2)
    world.streams.add_routing_listener(lambda name: steps.append("documents"))
    world.kept_blocked_versions = NotedDict(lambda: steps.append("kept"))  # type: ignore[assignment]
    world.blocked_versions = NotedDict(lambda: steps.append("source"))  # type: ignore[assignment]
    steps.clear()
    return world, steps


def noted_rollback(world: World, steps: list[str]) -> "Future[Rollback]":
    future = world.manager.rollback("m")
    future.add_done_callback(lambda _: steps.append("answered"))
    world.manager.tick()
    return future


def test_rollback_routes_answers_and_then_tells() -> None:
    world, steps = noted_world()
    with capture_logs() as logs:
        noted_rollback(world, steps)
    assert steps == ["routed", "kept", "answered", "documents", "source"]
    assert logs[0]["event"] == "rolled_back"
    assert world.changeovers == [("m", 1, 2, "rolled_back")]


def test_answer_comes_before_log_and_swap_record() -> None:
    world, _ = noted_world()
    seen: list[object] = []
    with capture_logs() as logs:
        future = world.manager.rollback("m")
        future.add_done_callback(lambda _: seen.append((len(logs), len(world.changeovers))))
        world.manager.tick()
    assert seen == [(0, 0)]


def test_answered_operator_finds_the_new_state() -> None:
    world, _ = noted_world()
    seen: list[object] = []
    future = world.manager.rollback("m")
    future.add_done_callback(
        lambda _: seen.append((routing(world).default_version, world.streams.answering("m")))
    )
    world.manager.tick()
    assert seen == [(1, 1)]


def test_control_thread_waits_for_the_reply() -> None:
    world, steps = noted_world()
    world.clock.waits.clear()
    noted_rollback(world, steps)
    assert world.clock.waits == [REPLY_SECONDS_MAX]


def test_next_message_ends_the_wait_for_a_reply() -> None:
    world, _ = noted_world()
    world.clock.waits.clear()
    world.manager.rollback("m")
    allowed = world.manager.allow("m", 2)
    world.manager.tick()
    assert allowed.done()
    # The second message was there after the first answer, and none after the second one.
    assert len(world.clock.waits) == 1


class SlowSource(dict[str, object]):
    """Aspires the newest version that is not left out. An operator is faster: rolls back before version 2 is
    aspired again.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.rollbacks: list[Future[Rollback]] = []

    def __setitem__(self, name: str, left_out: object) -> None:
        assert isinstance(left_out, frozenset)
        super().__setitem__(name, left_out)
        if not left_out:
            self.rollbacks.append(self._world.manager.rollback(name))
        newest = max(self._world.on_disk - left_out)
        self._world.manager.set_aspired(name, aspired(newest))


def test_stale_list_of_source_changes_no_routing() -> None:
    """The list without a version that was rolled back is stale once that version is allowed."""
    world, _ = noted_world()
    source = SlowSource(world)
    world.blocked_versions = source  # type: ignore[assignment]
    world.manager.rollback("m")
    world.manager.allow("m", 2)
    world.manager.tick()
    (second,) = source.rollbacks
    assert second.result(timeout=0).rolled_back == 2
    world.run_all()
    assert world.states() == {1: AVAILABLE, 2: AVAILABLE}


def test_list_that_a_poll_made_before_allow_is_stale() -> None:
    """The source is told of an operator's call only after its answer, and a poll may end in between."""
    world, _ = noted_world()
    world.manager.rollback("m")
    world.settle(1)
    world.manager.allow("m", 2)
    world.settle(2)
    world.manager.set_aspired("m", aspired(1), frozenset({2}))
    second = world.manager.rollback("m")
    world.manager.set_aspired("m", aspired(2), frozenset())
    world.manager.tick()
    assert second.result(timeout=0).rolled_back == 2


def test_last_list_is_never_stale() -> None:
    world, _ = noted_world()
    world.manager.set_aspired("m", aspired(1), frozenset({2}))
    world.manager.tick()
    assert world.streams.answering("m") == 1


def test_refused_rollback_tells_nothing() -> None:
    world, steps = noted_world()
    noted_rollback(world, steps)
    steps.clear()
    world.clock.waits.clear()
    future = noted_rollback(world, steps)
    with pytest.raises(FailedPrecondition):
        future.result(timeout=0)
    assert (steps, world.clock.waits) == (["answered"], [])


class Crash(BaseException):
    """The end of the process."""


def crash(condition: object, timeout_seconds: float | None) -> bool:
    raise Crash


def crashed_after_answer() -> Mapping[str, BlockedVersions]:
    """The blocks that a process keeps which ends when it has answered a rollback."""
    world, steps = noted_world()
    world.clock.wait = crash  # type: ignore[method-assign]
    with pytest.raises(Crash):
        noted_rollback(world, steps)
    assert steps == ["routed", "kept", "answered"]
    return dict(world.kept_blocked_versions)


def test_kept_block_holds_after_crash_past_answer() -> None:
    world = World(blocked_versions=crashed_after_answer())
    world.on_disk = {1, 2}
    world.settle(1, 2)
    # The source learns of the block with the first versions that it finds.
    assert world.blocked_versions == {"m": frozenset({2})}
    world.settle(1)
    assert routing(world).default_version == 1


def test_failing_effect_stops_no_other_effect() -> None:
    world = World()
    world.settle(1)
    acted: list[object] = []

    def act(state: object, effect: object) -> None:
        acted.append(effect)
        raise RuntimeError

    world.manager._act = act  # type: ignore[method-assign]
    state = world.streams.of("m")
    effects = (StopLoad(1), StopLoad(2))
    with capture_logs() as logs:
        world.manager._follow(state, Decision(state=state, is_rest=False, effects=effects))
    assert acted == [*effects]
    assert [log["event"] for log in logs] == ["control_failed"] * 2


def test_failing_document_stops_nothing_after_it() -> None:
    world, _ = noted_world()

    def fail(name: str) -> None:
        raise RuntimeError(name)

    world.streams.add_routing_listener(fail)
    with capture_logs() as logs:
        assert answer(world, world.manager.rollback("m")).version == 1
    assert [log["event"] for log in logs] == ["control_failed", "rolled_back"]
    assert world.changeovers

"""Rollbacks and promotions: the versions that they block, and the log of a canary's end."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from structlog.testing import capture_logs

from serving.core.model_settings import CanarySettings, ModelSettings
from serving.manager.stream import StreamStatus
from tests.unit.fakes.errors import permanent
from tests.unit.worlds.manager import CANARY, JUDGED, World, answer, figures, judge, world_with

KEPT = ModelSettings(keep_previous_seconds=300, canary=CanarySettings(weight=0.1))
OFF = ModelSettings(keep_previous_seconds=300)

Step = Callable[[World], object]


def logs_of(settings: ModelSettings, *steps: Step) -> list[dict[str, object]]:
    """Returns the log of `steps` on a world with version 2 as a canary beside version 1."""
    world = world_with(settings)
    world.settle(1)
    world.settle(2)
    world.servable(1).figures = figures(1_000)
    with capture_logs() as logs:
        for step in steps:
            step(world)
            world.manager.tick()
            world.run_all()
    names = ("canary_promoted", "canary_failed", "canary_ended", "rolled_back")
    return [dict(log) for log in logs if log["event"] in names]


def answers(failed_count: int) -> Step:
    """The canary has answered enough requests to be judged."""

    def answer(world: World) -> None:
        world.servable(2).figures = figures(100, failed_count)
        world.clock.advance(1)

    return answer


@pytest.mark.parametrize(
    ("settings", "step", "by"),
    [
        (CANARY, lambda world: world.manager.promote("m"), "operator"),
        (JUDGED, answers(failed_count=0), "canary"),
        (KEPT, lambda world: world.manager.set_settings("m", OFF), "settings"),
    ],
)
def test_canary_promotion_names_promoter(settings: ModelSettings, step: Step, by: str) -> None:
    (log,) = logs_of(settings, step)
    assert (log["event"], log["version"], log["by"]) == ("canary_promoted", 2, by)


@pytest.mark.parametrize(
    ("settings", "step", "by"),
    [
        (CANARY, lambda world: world.manager.rollback("m"), "operator"),
        (JUDGED, answers(failed_count=50), "canary"),
    ],
)
def test_canary_rollback_names_initiator(settings: ModelSettings, step: Step, by: str) -> None:
    log = logs_of(settings, step)[-1]
    assert (log["event"], log["version"], log["by"]) == ("rolled_back", 2, by)
    assert log["is_canary"] is True


def test_rule_promotion_logs_its_figures() -> None:
    (log,) = logs_of(JUDGED, answers(failed_count=0))
    assert (log["request_count"], log["failed_count"], log["error_ratio"]) == (100, 0, 0)
    assert log["stable_request_count"] == 993
    assert "latency is judged up to p90 only" in str(log["reason"])


def test_canary_progress_is_in_the_status() -> None:
    world = world_with(JUDGED)
    world.settle(1)
    world.settle(2)
    world.servable(2).figures = figures(42)
    judge(world)
    status = world.stream_status()
    assert status is not None
    assert status.canary_progress.startswith("42 of 100 requests, rule: p90 to p999")
    answer(world, world.manager.promote("m"))
    status = world.stream_status()
    assert status is not None
    assert status.canary_progress == ""


def test_rule_rollback_names_bad_figures() -> None:
    failed, _ = logs_of(JUDGED, answers(failed_count=50))
    assert failed["event"] == "canary_failed"
    assert "50.0% of its requests failed" in str(failed["reason"])


# --- The answer and the status --------------------------------------------------------------------


def status_at_answer(world: World, future: Future[Any]) -> StreamStatus:
    """Returns the status at the moment at which an operator gets the answer."""
    seen: list[StreamStatus | None] = []
    future.add_done_callback(lambda _: seen.append(world.stream_status()))
    world.manager.tick()
    future.result(timeout=0)
    (status,) = seen
    assert status is not None
    return status


def test_status_shows_a_change_when_its_answer_comes() -> None:
    world = world_with(KEPT)
    world.settle(1)
    world.settle(2)
    assert status_at_answer(world, world.manager.promote("m")).default_version == 2
    status = status_at_answer(world, world.manager.rollback("m"))
    assert (status.default_version, status.blocked) == (1, (2,))
    assert status_at_answer(world, world.manager.allow("m", 2)).blocked == ()


def test_status_of_idle_model_stays_without_version() -> None:
    world = world_with(OFF)
    world.settle(1)
    world.settle(2)
    answer(world, world.manager.rollback("m"))
    world.settle()
    future = world.manager.allow("m", 2)
    world.manager.tick()
    future.result(timeout=0)
    assert world.stream_status() is None


# --- Versions that a rollback blocks --------------------------------------------------------------


def blocked_by_rollback(world: World) -> dict[int, tuple[bool, str]]:
    """Rolls back, cold if need be.

    Returns by version whether it served, and the end of the reason.
    """
    done = answer(world, world.manager.rollback("m", is_cold_allowed=True))
    assert {item.version for item in done.blocked} <= world.blocked_versions["m"]
    return {
        item.version: (item.has_served, item.reason.rpartition("; ")[2]) for item in done.blocked
    }


def test_rollback_names_the_version_that_served() -> None:
    world = world_with(OFF)
    world.settle(1)
    world.settle(2)
    assert blocked_by_rollback(world) == {2: (True, "it served until now")}


def test_rollback_names_loading_version() -> None:
    world = world_with(OFF)
    world.settle(1)
    world.settle(2)
    world.aspire(3)
    assert blocked_by_rollback(world) == {
        2: (True, "it served until now"),
        3: (False, "its load was under way"),
    }


def test_cold_rollback_names_failed_version() -> None:
    world = World()
    world.settle(2)
    world.fail(3, permanent())
    world.settle(3)
    world.on_disk = {1, 2, 3}
    assert blocked_by_rollback(world) == {
        2: (True, "it served until an earlier one is loaded"),
        3: (False, "its load failed"),
    }


def test_rollback_names_version_not_yet_loading() -> None:
    world = World(load_jitter_seconds=60)
    world.settle(2)
    world.aspire(3)
    world.on_disk = {1, 2, 3}
    assert blocked_by_rollback(world)[3] == (False, "its load has not begun")


def test_rollback_names_version_just_serving() -> None:
    world = world_with(OFF)
    world.settle(1)
    world.aspire(2)
    # Version 2 is published; the control thread handles the end of the load together with the
    # rollback.
    world.loaders.run_all()
    assert blocked_by_rollback(world) == {2: (True, "it served until now")}


def test_rollback_names_unloaded_former_version() -> None:
    world = World()
    world.settle(3)
    world.settle(2)
    world.fail(3, permanent())
    world.settle(3)
    world.on_disk = {1, 2, 3}
    assert blocked_by_rollback(world)[3] == (True, "it served earlier")


def test_rollback_omits_already_blocked_version() -> None:
    world = world_with(OFF)
    for version in (1, 2):
        world.settle(version)
    answer(world, world.manager.rollback("m"))
    world.settle(1)
    world.on_disk = {0, 1, 2}
    assert blocked_by_rollback(world) == {1: (True, "it served until an earlier one is loaded")}


def test_rollback_logs_the_versions_that_never_served() -> None:
    world = world_with(OFF)
    world.settle(1)
    world.settle(2)
    world.aspire(3)
    with capture_logs() as logs:
        answer(world, world.manager.rollback("m"))
    (log,) = [log for log in logs if log["event"] == "rolled_back"]
    assert (log["blocked"], log["never_served"]) == ([2, 3], [3])


def test_rollback_without_canary_logs_no_canary() -> None:
    log = logs_of(OFF, lambda world: world.manager.rollback("m"))[-1]
    assert (log["event"], log["is_canary"]) == ("rolled_back", False)


def test_allowed_canary_without_share_is_promoted() -> None:
    logs = logs_of(
        KEPT,
        lambda world: world.manager.rollback("m"),
        lambda world: world.manager.set_settings("m", OFF),
        lambda world: world.manager.allow("m", 2),
    )
    assert [(log["event"], log["by"]) for log in logs] == [
        ("rolled_back", "operator"),
        ("canary_promoted", "settings"),
    ]


def test_withdrawn_canary_is_reported_as_ended() -> None:
    (log,) = logs_of(CANARY, lambda world: world.aspire(1))
    assert (log["event"], log["version"]) == ("canary_ended", 2)
    assert log["reason"] == "it is no longer aspired"


def test_rollback_names_the_version_that_answers() -> None:
    world = world_with(CANARY)
    for versions in ((1,), (1, 2), (1, 2, 3)):
        world.settle(*versions)
    # Versions 2 and 3 began as canaries, and neither was promoted.
    done = answer(world, world.manager.rollback("m"))
    assert (done.rolled_back, done.version) == (3, 1)
    assert world.streams.answering("m") == 1
    assert world.changeovers == [("m", 1, 3, "rolled_back")]

import pytest
from structlog.testing import capture_logs

from serving.core.servable import ServableId, UnloadStage
from serving.data_plane.servables import ArenaRemains
from serving.loading.unload import QUIESCE_WARNING_SECONDS, VersionUnload
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.servables import FakeServable

ID = ServableId("m", 7)


class WayOut:
    """A retired servable and its unload."""

    def __init__(self, handle_count: int = 0) -> None:
        self.clock = FakeClock()
        self.servable = FakeServable(ID)
        self.servable.handle_count = handle_count
        self.stages: dict[UnloadStage, float] = {}
        self.unload = VersionUnload(
            ID,
            self.servable,
            clock=self.clock,
            stage_ended=self.stages.__setitem__,
        )


def test_unload_without_handles_takes_one_turn() -> None:
    way_out = WayOut()
    assert way_out.unload.take_turn()
    assert way_out.servable.is_destroyed
    assert list(way_out.stages) == [UnloadStage.QUIESCE, UnloadStage.DESTROY]


def test_unload_held_by_a_request_is_not_destroyed() -> None:
    way_out = WayOut(handle_count=1)
    assert not way_out.unload.take_turn()
    assert not way_out.servable.is_destroyed


def test_version_is_destroyed_right_after_last_handle() -> None:
    way_out = WayOut(handle_count=1)
    way_out.unload.take_turn()
    way_out.clock.advance(2)
    way_out.servable.handle_count = 0
    assert way_out.unload.take_turn()
    assert way_out.stages[UnloadStage.QUIESCE] == 2


def test_unload_held_for_long_is_logged_once() -> None:
    way_out = WayOut(handle_count=3)
    with capture_logs() as logs:
        for _ in range(3):
            way_out.unload.take_turn()
            way_out.clock.advance(QUIESCE_WARNING_SECONDS)
    assert [(log["event"], log["handle_count"]) for log in logs] == [("quiesce_slow", 3)]


def test_unload_logs_requests_of_version() -> None:
    with capture_logs() as logs:
        WayOut().unload.take_turn()
    (log,) = logs
    assert log["event"] == "version_unloaded"
    assert (log["request_count"], log["failed_count"]) == (7, 2)
    assert log["latency_seconds_p999"] == pytest.approx(0.003)


def test_unload_logs_remains_of_arena() -> None:
    way_out = WayOut()
    way_out.servable.remains = ArenaRemains(4096, [(4096, 1)])
    with capture_logs() as logs:
        assert way_out.unload.take_turn()
    leaks = [log for log in logs if log["event"] == "arena_leaked"]
    assert [(log["log_level"], log["live_bytes"]) for log in leaks] == [("error", 4096)]
    assert logs[-1]["arena_live_bytes"] == 4096


def test_unload_that_leaves_nothing_reports_no_leak() -> None:
    way_out = WayOut()
    with capture_logs() as logs:
        way_out.unload.take_turn()
    assert [log["event"] for log in logs] == ["version_unloaded"]
    assert logs[0]["arena_live_bytes"] == 0

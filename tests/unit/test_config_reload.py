from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from serving.base.errors import (
    FailedPrecondition,
    InvalidConfig,
    MillpondError,
    NotFound,
    StatusCode,
    Unavailable,
)
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.core.model_settings import ModelSettings
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LOADING,
    START,
    Health,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.reload.config_reload import has_failed
from tests.unit.worlds.reload import A, Reload

B = ModelConfig(name="b", base_path="/b")
C = ModelConfig(name="c", base_path="/c")
BAD = Health(StatusCode.DATA_LOSS, "bad checksum")
GIVEN_UP = Health(StatusCode.CANCELLED, "cancelled before it was loaded; it is no longer aspired")


@pytest.fixture
def reload() -> Reload:
    return Reload()


def test_reload_waits_for_each_new_model(reload: Reload) -> None:
    for name, state in [("b", LOADING), ("c", LOADING), ("c", AVAILABLE), ("b", AVAILABLE)]:
        reload.will_be(name, state)
    plan = reload.reloader.reload([A, B, C], 60)
    assert plan.lines() == ("+ model b: /b, versions latest 1", "+ model c: /c, versions latest 1")
    assert reload.clock.events == []


def test_reload_skips_wait_for_present_models(reload: Reload) -> None:
    reload.reloader.reload([replace(A, base_path="/other")], 60)
    assert reload.clock.waits == []
    assert reload.world.running["a"].base_path == "/other"


def test_reload_of_failing_model_keeps_change(reload: Reload) -> None:
    reload.will_be("b", LOADING)
    reload.will_be("b", END, BAD)
    error = reload.error(A, B)
    assert isinstance(error, FailedPrecondition)
    assert error.message == (
        "1 model(s) did not become available: b: version 1 is END: bad checksum"
    )
    assert reload.world.models.names == ("a", "b")


def test_reload_of_empty_model_ends_at_deadline(reload: Reload) -> None:
    error = reload.error(A, B, timeout_seconds=7)
    assert error.code == StatusCode.UNKNOWN
    assert error.message == (
        "1 model(s) did not become available: b: no version found in '/b' "
        "(no_version_in_base_path). The change stands; the same request waits for them again"
    )
    assert sum(reload.clock.waits) == 7


def test_reload_counts_the_time_that_its_change_took(reload: Reload) -> None:
    reload.world.on_set_settings = lambda: reload.clock.advance(5)
    reload.error(A, B, timeout_seconds=7)
    assert sum(reload.clock.waits) == 2


def test_reload_names_every_model_that_did_not_come(reload: Reload) -> None:
    reload.will_be("b", LOADING)
    reload.will_be("c", END, BAD)
    error = reload.error(A, B, C)
    assert isinstance(error, FailedPrecondition)
    assert "2 model(s)" in error.message
    assert "b: version 1 is LOADING; c: version 1 is END" in error.message


def test_reload_awaits_new_life_of_returning_model(reload: Reload) -> None:
    reload.record("b", END, BAD)
    reload.will_be("b", AVAILABLE)
    reload.reloader.reload([A, B], 60)
    assert reload.clock.events == []


def test_reload_after_deadline_awaits_same_model(reload: Reload) -> None:
    reload.error(A, B, timeout_seconds=1)
    reload.will_be("b", AVAILABLE)
    assert reload.reloader.reload([A, B], 60).is_empty
    assert reload.clock.events == []
    reload.reloader.reload([A, B], 60)


def test_reload_reports_failure_only_once(reload: Reload) -> None:
    reload.will_be("b", END, BAD)
    reload.error(A, B)
    assert reload.reloader.reload([A, B], 60).is_empty


def test_reload_that_cannot_be_planned_changes_nothing(reload: Reload) -> None:
    reload.world.log.clear()
    error = reload.error(B, B)
    assert isinstance(error, InvalidConfig)
    assert (reload.world.models.models, reload.world.log) == ((A,), [])


def test_waiting_reload_yields_to_newer_change(reload: Reload) -> None:
    reload.clock.events.append(lambda: reload.reloader.change([A, B, C]))
    error = reload.error(A, B)
    assert error.code == StatusCode.ABORTED
    assert reload.world.models.names == ("a", "b", "c")


def test_reload_keeps_waiting_through_same_change(reload: Reload) -> None:
    reload.clock.events.append(lambda: reload.reloader.change([A, B]))
    reload.will_be("b", AVAILABLE)
    reload.reloader.reload([A, B], 60)
    assert reload.clock.events == []


def test_reload_yields_to_same_reload(reload: Reload) -> None:
    again: list[MillpondError] = []
    reload.clock.events.append(lambda: again.append(reload.error(A, B, timeout_seconds=1)))
    assert reload.error(A, B).code == StatusCode.ABORTED
    assert [error.code for error in again] == [StatusCode.UNKNOWN]


def test_waiting_reload_ends_if_server_stops(reload: Reload) -> None:
    reload.clock.events.append(reload.reloader.stop)
    assert isinstance(reload.error(A, B), Unavailable)


def test_change_after_the_stop_is_refused(reload: Reload) -> None:
    reload.reloader.stop()
    with pytest.raises(Unavailable, match="the server is stopping"):
        reload.reloader.change([])
    assert reload.world.models.names == ("a",)


def test_settings_reach_present_and_future_models(reload: Reload) -> None:
    kept = ModelSettings(keep_previous_seconds=60)
    with capture_logs() as logs:
        reload.reloader.change(settings=SettingsByModel(kept))
    assert reload.world.settings["a"] == kept
    assert [log["changes"] for log in logs] == [
        ("~ model a: settings keep_previous_seconds 0 -> 60",)
    ]
    reload.reloader.change([A, B])
    assert reload.world.settings["b"] == kept


def test_changes_that_change_something_are_counted(reload: Reload) -> None:
    reload.reloader.change([A, B])
    reload.reloader.change([A, B])
    reload.error(A, B)
    with pytest.raises(InvalidConfig):
        reload.reloader.change([B, B])
    assert reload.reloader.applied_count == 1
    reload.reloader.change(settings=SettingsByModel(ModelSettings(keep_previous_seconds=60)))
    assert reload.reloader.applied_count == 2


def test_change_to_the_same_is_not_logged(reload: Reload) -> None:
    with capture_logs() as logs:
        reload.reloader.change([A])
    assert logs == []


@pytest.mark.parametrize(
    ("states", "aspired", "expected"),
    [
        ([], set(), False),
        ([(END, HEALTHY)], {0}, False),
        ([(END, BAD)], {0}, True),
        # Another version is aspired in its place, and has no status yet.
        ([(END, BAD)], {7}, False),
        ([(END, BAD), (START, HEALTHY)], {1}, False),
        ([(END, BAD), (LOADING, BAD)], {0, 1}, False),
        ([(END, BAD), (END, HEALTHY)], {0}, True),
        ([(END, GIVEN_UP)], {0}, False),
        ([(END, GIVEN_UP), (END, BAD)], {1}, True),
    ],
)
def test_has_failed_when_nothing_is_on_its_way(
    states: list[tuple[ServableState, Health]], aspired: set[int], expected: bool
) -> None:
    statuses = [
        ServableStatus(id=ServableId("m", version), state=state, health=health)
        for version, (state, health) in enumerate(states)
    ]
    assert has_failed(statuses, (), aspired) is expected
    assert not has_failed(statuses, statuses, aspired)


def test_reloader_unloads_only_configured_until_stop(reload: Reload) -> None:
    reload.reloader.set_unloaded("a", is_unloaded=True)
    assert reload.reloader.unloaded == {"a"}
    with pytest.raises(NotFound, match="'q' is not configured"):
        reload.reloader.set_unloaded("q", is_unloaded=True)
    reload.reloader.stop()
    with pytest.raises(Unavailable):
        reload.reloader.set_unloaded("a", is_unloaded=False)
    assert reload.reloader.unloaded == {"a"}

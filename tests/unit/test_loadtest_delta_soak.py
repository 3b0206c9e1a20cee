from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from loadtest.commands.delta_soak import DeltaSoakResult, shown_figures
from loadtest.drive.delta_series import DeltaSeries
from loadtest.measure.delta_events import (
    EVENTS,
    DoesNotHappen,
    World,
    happens,
    keep_previous,
    restart,
    schedule,
    write_settings,
)
from loadtest.measure.delta_servers import DeltaServers, ServerEnd, resident_mb
from loadtest.plan.delta_load import DeltaLoad, has_same_bits
from loadtest.plan.plan import Outcome, Reply
from serving.base.errors import StatusCode
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.config.model_settings_file import read_model_settings_file
from tests.unit.loadtest_outcomes import outcome_of

ANSWERS = {7: np.arange(8, dtype=np.float32).reshape(2, 1, 4)}


def reply(version: int, payload: int, y: Any, output: str = "y") -> Reply:
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    response.outputs[output].CopyFrom(to_tensor_proto(y))
    return Reply(payload, 0, response.SerializeToString())


def answered_by(*replies: Reply) -> Outcome:
    codes = [item.code for item in replies]
    return outcome_of([(0, 0, 1)] * len(replies), codes, replies, list(range(len(replies))))


def wrong_count(*replies: Reply) -> int:
    load = DeltaLoad("trained", np.zeros((2, 1), np.int64))
    return load.wrong_count(answered_by(*replies), ANSWERS)


def test_schedule_has_all_events_before_a_second_one() -> None:
    events = list(schedule(len(EVENTS) * 6, 3, 0, seed=2).values())
    assert set(events[: len(EVENTS)]) == set(EVENTS)
    assert set(events[len(EVENTS) :]) == set(EVENTS)


def test_schedule_of_a_seed_is_always_the_same() -> None:
    assert schedule(100, 2, 2, seed=3) == schedule(100, 2, 2, seed=3)
    assert schedule(100, 2, 2, seed=3) != schedule(100, 2, 2, seed=4)


def test_schedule_spreads_the_restarts() -> None:
    events = schedule(30, 7, 2, seed=1)
    assert [number for number, event in events.items() if event is restart] == [10, 20]


def test_event_that_could_not_happen_is_counted_apart(tmp_path: Path) -> None:
    world = World(
        cast("DeltaSeries", None), cast("DeltaServers", None), tmp_path / "settings.toml", 0.5
    )

    def none_to_roll_back(world: World) -> None:
        raise DoesNotHappen

    happens(world, none_to_roll_back)
    happens(world, keep_previous)
    assert world.done == {"no none_to_roll_back": 1, "keep_previous": 1}


def test_settings_of_a_soak_are_read_by_the_server(tmp_path: Path) -> None:
    write_settings(tmp_path / "settings.toml", 600)
    settings = read_model_settings_file(tmp_path / "settings.toml", ["trained"])
    assert settings.of("trained").keep_previous_seconds == 600


def test_right_bits_of_the_version_are_right() -> None:
    assert wrong_count(reply(7, 0, ANSWERS[7][0]), reply(7, 1, ANSWERS[7][1])) == 0


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param(reply(7, 1, ANSWERS[7][0]), id="of another request"),
        pytest.param(reply(8, 0, ANSWERS[7][0]), id="of a version that must not answer"),
        pytest.param(reply(7, 0, ANSWERS[7][0].astype(np.float64)), id="of another dtype"),
        pytest.param(reply(7, 0, ANSWERS[7][0], "z"), id="another output"),
        pytest.param(Reply(0, 0, b"\xff"), id="no message"),
    ],
)
def test_any_other_answer_is_wrong(answered: Reply) -> None:
    assert wrong_count(answered) == 1


def test_failed_request_is_not_wrong() -> None:
    assert wrong_count(Reply(0, StatusCode.UNAVAILABLE, b"gone")) == 0


def test_zero_of_another_sign_has_other_bits() -> None:
    assert not has_same_bits(np.array([0.0]), np.array([-0.0]))
    assert has_same_bits(np.array([np.nan]), np.array([np.nan]))


def end(*resident_bytes: int) -> ServerEnd:
    return ServerEnd(answered_by(reply(7, 0, ANSWERS[7][0])), (), resident_bytes)


def test_resident_memory_is_shown_for_each_server() -> None:
    assert resident_mb([end(10_000_000, 40_000_000, 20_000_000), end()]) == [[10, 20, 40, 20]]


def result(**changes: object) -> DeltaSoakResult:
    values: dict[str, object] = {
        "ends": [end(1)],
        "wrong_count": 0,
        "faults": [],
        "compared_count": 1,
        "compared_with_tensorflow_count": 1,
        "done": {"delta": 1},
        "loads": {"version_available": 1},
        "read_in_full": {"held": 1},
        "restored": {"restored_bytes": 5, "kept_bytes": 6, "copied_bytes": 2},
        "available_seconds": [0.5],
        "seconds": 60.0,
    }
    return DeltaSoakResult(**(values | changes))  # type: ignore[arg-type]


def test_soak_without_a_fault_is_good() -> None:
    assert result().is_good
    assert shown_figures(result())["requests"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"wrong_count": 1},
        {"faults": ["version 3"]},
        {"ends": [ServerEnd(answered_by(Reply(0, 14, b"gone")), (), [1])]},
        {"ends": [ServerEnd(answered_by(), ({"event": "arena_leaked"},), [1])]},
    ],
)
def test_soak_with_a_fault_is_not_good(changes: dict[str, object]) -> None:
    assert not result(**changes).is_good

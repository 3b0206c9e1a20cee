import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.commands.soak import SoakResult, answers_of
from loadtest.drive.demo_model import DemoModel
from loadtest.drive.mixing_model import expected, sender
from loadtest.drive.soak_events import (
    FIRST_VERSION,
    World,
    change_settings,
    come_to_rest,
    drop,
    drop_broken,
    drop_lower,
    select_all,
    select_specific,
    toggle_neighbour,
)
from loadtest.drive.soak_unfit import UnfitVersion, add_golden_answers
from loadtest.drive.traffic import Answer
from loadtest.drive.traffic import Outcome as BurstOutcome
from loadtest.drive.version_series import VersionSeries
from loadtest.plan.plan import Reply
from serving.base.errors import FailedPrecondition, StatusCode
from serving.base.protos import predict_pb2, prediction_log_pb2
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from serving.commands.ctr_model import reference_answer, request_inputs
from serving.commands.ctr_request import predict_request
from serving.config.model_config_file import read_model_config_file
from serving.config.model_settings_file import read_model_settings_file
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.core.model_settings import GateMode, PolicyName
from serving.core.version_selection import All, Latest, Specific
from tests.unit.fakes.clocks import FakeClock
from tests.unit.loadtest_outcomes import outcome_of, steady_outcome
from warmup.records import read_records, write_records


class FakePerson:
    """A client of a server without a version to roll back to and with one blocked version."""

    def __init__(self) -> None:
        self.allowed: list[int] = []

    def rollback(self, name: str, *, is_cold_allowed: bool = False) -> None:
        raise FailedPrecondition(f"{name} has no version before, cold {is_cold_allowed}")

    def promote(self, name: str) -> None:
        raise FailedPrecondition(f"{name} has no canary")

    def allow(self, name: str, version: int) -> None:
        self.allowed.append(version)

    def describe_models(self) -> Mapping[str, Any]:
        return {"ctr": {"blocked": [7]}}


class FakeUnfitVersion(UnfitVersion):
    """Records dropped versions without exporting any."""

    def __init__(self) -> None:
        self.dropped: list[int] = []

    def drop(self, version: int) -> None:
        self.dropped.append(version)


@pytest.fixture
def world(tmp_path: Path) -> World:
    exports = DemoModel.below(tmp_path, 10)
    for path in (exports.base_path / "1", exports.staged / "2"):
        (path / "variables").mkdir(parents=True)
        (path / "saved_model.pb").write_text("graph")
        (path / "variables" / "variables.data-00000-of-00001").write_bytes(b"weights")
    series = VersionSeries(exports, "ctr", "records", ())
    series.drop(FIRST_VERSION)
    return World(
        *(series, tmp_path, FakePerson(), FakeClock(), random.Random(3), FakeUnfitVersion()),
        is_memory_tight=True,
    )


def configured(world: World) -> dict[str, ModelConfig]:
    """The server must be able to read this."""
    models = read_model_config_file(world.directory / "models.config")
    return {model.name: model for model in models}


def settings_of(world: World) -> SettingsByModel:
    return read_model_settings_file(world.directory / "settings.toml", list(configured(world)))


def on_disk(world: World) -> set[int]:
    return {int(path.name) for path in world.series.base_path.iterdir()}


# --- Events ---------------------------------------------------------------------------------------


def test_lower_version_is_dropped_and_selected(world: World) -> None:
    drop(world)
    drop_lower(world)
    drop_lower(world)
    assert on_disk(world) == {FIRST_VERSION + delta for delta in (-2, -1, 0, 1)}
    assert configured(world)["ctr"].version_selection == Specific(frozenset({FIRST_VERSION - 2}))


def test_selections_are_readable_by_server(world: World) -> None:
    select_all(world)
    assert configured(world)["ctr"].version_selection == All()
    select_specific(world)
    assert configured(world)["ctr"].version_selection == Specific(frozenset({FIRST_VERSION}))


def test_removed_broken_version_stays_forbidden(world: World) -> None:
    drop_broken(world)
    last = come_to_rest(world)
    assert world.forbidden == {FIRST_VERSION + 1}
    assert on_disk(world) == {FIRST_VERSION, last}


@pytest.mark.parametrize("seed", range(8))
def test_settings_enforce_gates_and_can_be_read(world: World, seed: int) -> None:
    world.dice = random.Random(seed)
    toggle_neighbour(world)
    change_settings(world)
    settings = settings_of(world)
    for name in ("ctr", "neighbour"):
        gates = settings.of(name).gates
        assert (gates.golden, gates.drift) == (GateMode.ENFORCE, GateMode.ENFORCE)
    # A model under load must never lose its only version to another version's memory.
    assert settings.of("ctr").aspired_version_policy is PolicyName.AVAILABILITY


def test_rest_restores_all_and_drops_highest_version(world: World) -> None:
    toggle_neighbour(world)
    drop_lower(world)
    world.label_version = FIRST_VERSION
    last = come_to_rest(world)
    assert last == max(on_disk(world)) > FIRST_VERSION
    (model,) = configured(world).values()
    assert (model.version_selection, model.labels) == (Latest(1), {})
    assert isinstance(world.client, FakePerson)
    assert world.client.allowed == [7]


def test_config_keeps_models_that_no_event_changes(world: World) -> None:
    world.lasting["mixing"] = world.directory / "mixing"
    toggle_neighbour(world)
    select_all(world)
    come_to_rest(world)
    assert configured(world)["mixing"].base_path == str(world.directory / "mixing")


# --- The model that mixes rows --------------------------------------------------------------------


class FakePredictions:
    """Runs the requests of a burst together if `is_batching`, as a server that batches wrongly."""

    def __init__(self, *, is_batching: bool) -> None:
        self._is_batching = is_batching
        self._inputs: list[Any] = []
        self.Predict = self

    def future(self, request: Any, *, timeout: float) -> "FakeCall":
        del timeout
        self._inputs.append(from_tensor_proto(request.inputs["x"]))
        return FakeCall(self, self._inputs[-1])

    def answer(self, x: Any) -> predict_pb2.PredictResponse:
        together = np.concatenate(self._inputs) if self._is_batching else x
        response = predict_pb2.PredictResponse()
        is_doubled = (expected(together) != together).any()
        response.outputs["y"].CopyFrom(to_tensor_proto(x * 2 if is_doubled else x))
        return response


class FakeCall:
    def __init__(self, predictions: FakePredictions, x: Any) -> None:
        self._predictions, self._x = predictions, x

    def result(self) -> predict_pb2.PredictResponse:
        return self._predictions.answer(self._x)


@pytest.mark.parametrize("is_batching", [True, False])
def test_burst_with_a_rare_row_shows_batching(is_batching: bool) -> None:
    bursts = range(50)
    are_right = {sender(FakePredictions(is_batching=is_batching))(n).is_right for n in bursts}
    assert are_right == ({True, False} if is_batching else {True})


# --- Versions that must not serve -----------------------------------------------------------------


def reply_of_version(version: int, code: StatusCode = StatusCode.OK) -> Reply:
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    return Reply(payload=0, code=code, data=response.SerializeToString())


def test_answers_are_counted_by_version_of_reply() -> None:
    replies = [reply_of_version(5), reply_of_version(6), reply_of_version(7, StatusCode.INTERNAL)]
    outcome = outcome_of([(0, 0, 1)] * 5, replies=replies, reply_of=[0, 1, 1, 2, -1])
    assert answers_of(outcome, {6, 7, 8}) == {6: 2}


def result_of(**changes: Any) -> SoakResult:
    values: dict[str, Any] = {
        "outcome": steady_outcome(10),
        "wrong_count": 0,
        "forbidden_answers": {},
        "blocked_answers": {},
        "bugs": [],
        "mixing": [BurstOutcome(0, 1, Answer(1, is_right=True))],
        **changes,
    }
    return SoakResult(done={}, loads={}, refusals={}, resident_mb=[], **values)


@pytest.mark.parametrize(
    "changes",
    [
        {"wrong_count": 1},
        {"forbidden_answers": {6: 1}},
        {"blocked_answers": {6: 1}},
        {"bugs": [{"event": "control_failed"}]},
        {"mixing": [BurstOutcome(0, 1, None, "unavailable")]},
        {"mixing": [BurstOutcome(0, 1, Answer(1, is_right=False))]},
        {"outcome": outcome_of([(0, 0, 1)], codes=[14])},
    ],
)
def test_soak_is_good_only_without_any_fault(changes: dict[str, Any]) -> None:
    assert result_of().is_good
    assert not result_of(**changes).is_good


def test_golden_answers_are_those_of_the_good_version(tmp_path: Path) -> None:
    inputs = request_inputs(1, 2, 10)
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(predict_request("ctr", inputs))
    path, other_name = tmp_path / "records", tmp_path / "linked"
    write_records(path, [log.SerializeToString()])
    other_name.hardlink_to(path)
    before = path.read_bytes()
    add_golden_answers(path, table_rows=10)
    (record,) = read_records(path)
    golden = prediction_log_pb2.PredictionLog.FromString(record).predict_log.response
    answer = from_tensor_proto(golden.outputs["ctr"])
    np.testing.assert_allclose(answer, reference_answer(1, inputs, 10), atol=1e-6)
    # The export that shares the file keeps its own records.
    assert other_name.read_bytes() == before

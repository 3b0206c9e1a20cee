"""The part `zipf` of `gpu`: its load, and the figures that need no server."""

from pathlib import Path

import numpy as np
import pytest

from loadtest.measure.accelerator_zipf import fitting_share, parameter_bytes
from loadtest.plan.plan import NOT_KEPT, Reply
from loadtest.plan.zipf_load import ZipfLoad, zipf_shares
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import to_tensor_proto
from tests.unit.loadtest_outcomes import outcome_of

NAMES = ("first", "second", "third", "fourth")


def model_of(payload: bytes) -> str:
    name: str = predict_pb2.PredictRequest.FromString(payload).model_spec.name
    return name


def reply_of(payload: int, *values: float) -> Reply:
    response = predict_pb2.PredictResponse()
    response.outputs["y"].CopyFrom(to_tensor_proto(np.array([values], np.float32)))
    return Reply(payload, 0, response.SerializeToString())


def test_zipf_shares_fall_with_the_rank():
    shares = zipf_shares(4)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] / shares == pytest.approx([1, 2, 3, 4])


def test_zipf_plan_asks_models_by_their_shares():
    load = ZipfLoad(NAMES, rows=2)
    plan = load.plan(np.arange(20_000), seed=1)
    asked = [model_of(payload) for payload in plan.payloads]
    assert asked == list(NAMES)
    counts = np.bincount(plan.payload_of, minlength=len(NAMES))
    assert counts / counts.sum() == pytest.approx(zipf_shares(len(NAMES)), abs=0.02)


def test_zipf_plan_is_that_of_its_seed():
    load, offsets = ZipfLoad(NAMES, rows=1), np.arange(100)
    numbers = [load.plan(offsets, seed).payload_of.tolist() for seed in (1, 1, 2)]
    assert numbers[0] == numbers[1] != numbers[2]


def test_zipf_answers_that_differ_are_wrong():
    load, expected = ZipfLoad(NAMES, rows=1), np.array([[1.0, 2.0]])
    replies = [reply_of(0, 1, 2.00001), reply_of(1, 1, 2.1), reply_of(2, 1)]
    outcome = outcome_of([(0, 0, 1)] * 4, (), replies, (0, 1, 2, NOT_KEPT))
    assert load.wrong_count(outcome, expected, 1e-4) == 3


def test_fitting_share_is_that_of_the_most_popular():
    assert fitting_share(2, 1) == pytest.approx(2 / 3, abs=1e-4)
    assert fitting_share(2, 5) == 1


def test_parameters_are_the_files_of_variables(tmp_path: Path):
    variables = tmp_path / "1" / "variables"
    variables.mkdir(parents=True)
    with pytest.raises(Unavailable, match="has no variables"):
        parameter_bytes(tmp_path)
    (variables / "variables.data-00000-of-00001").write_bytes(b"12345")
    (variables / "variables.index").write_bytes(b"1")
    assert parameter_bytes(tmp_path) == 5

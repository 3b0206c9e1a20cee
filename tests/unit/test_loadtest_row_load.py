import numpy as np
import pytest

from loadtest.plan.plan import NOT_KEPT, Reply
from loadtest.plan.row_load import RowLoad
from loadtest.plan.row_values import RowValues
from serving.base.errors import InvalidConfig
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from tests.unit.loadtest_outcomes import outcome_of

VALUES = RowValues(row_count=500, pool_count=50, step_count=10, seed=3)
LOAD = RowLoad("trained", VALUES, rows=12, version_count=4, seed=1)


def ids_of(payload: int) -> np.ndarray:
    request = predict_pb2.PredictRequest.FromString(LOAD.payloads[payload])
    return from_tensor_proto(request.inputs["ids"])


def reply_of(
    payload: int, version: int, *, content: int | None = None, output: int | None = None
) -> Reply:
    """A reply that names `version`, with the rows of `content` and the `version` output `output`."""
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    answers = VALUES.answers(ids_of(payload), 5)
    response.outputs["y"].CopyFrom(to_tensor_proto(answers[content or version]))
    versions = np.full(12, output or version)
    response.outputs["version"].CopyFrom(to_tensor_proto(versions))
    return Reply(payload, 0, response.SerializeToString())


def versions_of(*replies: Reply) -> list[int]:
    requests = [(0.0, 0.0, 1.0)] * len(replies)
    codes = [reply.code for reply in replies]
    outcome = outcome_of(requests, codes, replies, list(range(len(replies))))
    return [int(version) for version in LOAD.versions(outcome)]


def test_right_answers_have_their_version():
    assert versions_of(reply_of(0, 1), reply_of(7, 3), reply_of(7, 4)) == [1, 3, 4]


def test_rows_of_another_version_are_wrong():
    assert versions_of(reply_of(0, 3, content=2), reply_of(0, 2, content=3)) == [NOT_KEPT] * 2


def test_one_row_of_another_version_is_wrong():
    response = predict_pb2.PredictResponse.FromString(reply_of(5, 3).data)
    answer = from_tensor_proto(response.outputs["y"]).copy()
    answer[0] = VALUES.answers(ids_of(5), 2)[2][0]
    response.outputs["y"].CopyFrom(to_tensor_proto(answer))
    assert versions_of(Reply(5, 0, response.SerializeToString())) == [NOT_KEPT]


def test_dense_variable_of_another_version_is_wrong():
    assert versions_of(reply_of(0, 3, output=2)) == [NOT_KEPT]


def test_unknown_version_and_no_outputs_are_wrong():
    empty = predict_pb2.PredictResponse().SerializeToString()
    replies = [reply_of(0, 5), Reply(0, 0, empty), Reply(0, 0, b"\xff")]
    assert versions_of(*replies) == [NOT_KEPT] * 3


def test_failed_request_has_no_version():
    assert versions_of(Reply(0, 14, b"unavailable")) == [0]


def test_answer_that_was_not_kept_is_wrong():
    outcome = outcome_of([(0, 0, 1)], [0], [reply_of(0, 1)], [NOT_KEPT])
    assert LOAD.versions(outcome).tolist() == [NOT_KEPT]


def test_every_request_asks_for_the_marks():
    marks = VALUES.marks.tolist()
    assert all(ids_of(payload)[: len(marks)].tolist() == marks for payload in range(64))


def test_request_without_other_rows_is_refused():
    with pytest.raises(InvalidConfig, match="--rows=4"):
        RowLoad("trained", VALUES, rows=4, version_count=2, seed=1)

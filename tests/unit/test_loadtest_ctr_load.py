from typing import Any

import numpy as np
import pytest

from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import NOT_KEPT, Reply
from serving.base.errors import InvalidArgument
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from serving.commands.ctr_model import reference_answer
from tests.unit.loadtest_outcomes import outcome_of

TABLE_ROWS = 50
LOAD = CtrLoad("ctr", rows=2, table_rows=TABLE_ROWS, seed=7)
RESOURCE_EXHAUSTED = 8


def parsed_request(load: CtrLoad, payload: int) -> predict_pb2.PredictRequest:
    return predict_pb2.PredictRequest.FromString(load.payloads[payload])


def right_reply(
    payload: int, version: int, content: int, outputs: tuple[str, ...] = ("ctr", "version")
) -> Reply:
    """Returns the reply of a server on which the export `content` serves as `version`."""
    request = parsed_request(LOAD, payload)
    inputs = {name: from_tensor_proto(tensor) for name, tensor in request.inputs.items()}
    ctr = reference_answer(content, inputs, TABLE_ROWS).astype(np.float32)
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    arrays: dict[str, np.ndarray[Any, Any]] = {"ctr": ctr, "version": np.full(2, content, np.int64)}
    for name in outputs:
        response.outputs[name].CopyFrom(to_tensor_proto(arrays[name]))
    return Reply(payload, 0, response.SerializeToString())


def same(version: int) -> int:
    return version


def test_payloads_are_distinct_and_repeat_from_seed():
    assert len(set(LOAD.payloads)) == len(LOAD.payloads) == 64
    assert CtrLoad("ctr", rows=2, table_rows=TABLE_ROWS, seed=7).payloads == LOAD.payloads
    assert CtrLoad("ctr", rows=2, table_rows=TABLE_ROWS, seed=8).payloads != LOAD.payloads


def test_plan_has_payload_per_instant_from_seed():
    offsets_ns = np.arange(1_000, dtype=np.int64)
    plan = LOAD.plan(offsets_ns, seed=3)
    assert plan.offsets_ns.tolist() == offsets_ns.tolist()
    assert set(plan.payload_of) == set(range(len(plan.payloads)))
    assert plan.payloads == LOAD.payloads
    assert plan.payload_of.tolist() == LOAD.plan(offsets_ns, seed=3).payload_of.tolist()
    assert plan.payload_of.tolist() != LOAD.plan(offsets_ns, seed=4).payload_of.tolist()


def test_payloads_name_model_and_output_filter():
    load = CtrLoad("other", rows=2, table_rows=TABLE_ROWS, seed=7, output_filter=["ctr"])
    request = parsed_request(load, 0)
    assert (request.model_spec.name, list(request.output_filter)) == ("other", ["ctr"])


def test_unknown_output_filter_is_refused():
    with pytest.raises(InvalidArgument, match="nonsense"):
        CtrLoad("ctr", rows=2, table_rows=TABLE_ROWS, seed=7, output_filter=["nonsense"])


@pytest.mark.parametrize("content", [1, 2])
def test_reply_matches_content_of_its_version(content: int):
    assert LOAD.is_right(right_reply(3, 9, content), lambda version: content)


def test_reply_contradicts_reference_of_other_content():
    assert not LOAD.is_right(right_reply(3, 9, 1), lambda version: 2)


def test_reply_to_another_payload_is_wrong():
    reply = right_reply(3, 1, 1)
    assert not LOAD.is_right(Reply(4, 0, reply.data), same)


@pytest.mark.parametrize(
    "reply",
    [Reply(0, 0, b"\xff\xff"), Reply(0, 0, b""), right_reply(0, 1, 1, ("ctr",))],
    ids=["no_message", "empty", "output_missing"],
)
def test_reply_without_requested_outputs_is_wrong(reply: Reply):
    assert not LOAD.is_right(reply, same)


def test_reply_to_filter_has_filtered_output_only():
    load = CtrLoad("ctr", rows=2, table_rows=TABLE_ROWS, seed=7, output_filter=["ctr"])
    assert load.is_right(right_reply(0, 1, 1, ("ctr",)), same)
    assert not load.is_right(right_reply(0, 1, 1), same)


def test_wrong_counts_replies_but_not_failures():
    replies = [right_reply(0, 1, 1), Reply(0, 0, b"\xff"), Reply(0, RESOURCE_EXHAUSTED, b"full")]
    outcome = outcome_of(
        [(0, 0, 1)] * 5,
        codes=[0, 0, 0, RESOURCE_EXHAUSTED, 0],
        replies=replies,
        reply_of=[0, 1, 1, 2, NOT_KEPT],
    )
    assert LOAD.wrong(outcome, same).tolist() == [False, True, True, False, True]

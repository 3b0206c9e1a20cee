"""The descriptions of wrong replies, by which their cause is looked for."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import NOT_KEPT, Reply
from loadtest.plan.wrong_replies import DESCRIBED_MAX, WrongReply
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from serving.commands.ctr_model import reference_answer
from tests.unit.loadtest_outcomes import outcome_of

TABLE_ROWS, ROWS = 50, 3
LOAD = CtrLoad("ctr", rows=ROWS, table_rows=TABLE_ROWS, seed=7)
# Version 9 is made from export 1 and version 10 from export 2.
VERSION, OTHER_VERSION = 9, 10
Inputs = Mapping[str, Any]


def content_of(version: int) -> int:
    return 2 - version % 2


def inputs_of(payload: int) -> Inputs:
    request = predict_pb2.PredictRequest.FromString(LOAD.payloads[payload])
    return {name: from_tensor_proto(tensor) for name, tensor in request.inputs.items()}


def ctr_of(payload: int, content: int = 1, **changes: Any) -> Any:
    """The right output `ctr` float32[3, 1] of a request, with other inputs if `changes` has some."""
    inputs = {**inputs_of(payload), **changes}
    return reference_answer(content, inputs, TABLE_ROWS).astype(np.float32)


def reply(payload: int, ctr: Any, version: int = VERSION, output: Sequence[int] = ()) -> Reply:
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    response.outputs["ctr"].CopyFrom(to_tensor_proto(np.asarray(ctr, np.float32)))
    versions = np.array(output or [content_of(version)] * ROWS, np.int64)
    response.outputs["version"].CopyFrom(to_tensor_proto(versions))
    return Reply(payload, 0, response.SerializeToString())


def found(*replies: Reply) -> Sequence[WrongReply]:
    """Describes the wrong ones of these replies, which are issued 1 ms apart and take 3 ms each."""
    # The other version answers, too, so its export is known.
    answers = [reply(0, ctr_of(0, 2), OTHER_VERSION), *replies]
    requests = [(0, 1_000 + i, 1_003 + i) for i in range(len(answers))]
    outcome = outcome_of(requests, replies=answers, reply_of=list(range(len(answers))))
    return LOAD.wrong_replies(outcome, content_of)


def with_rows(ctr: Any, rows: Mapping[int, Any]) -> Any:
    changed = ctr.copy()
    for row, value in rows.items():
        changed[row] = value
    return changed


def test_right_replies_are_not_described():
    assert found(reply(3, ctr_of(3))) == []


def test_description_has_time_rows_and_difference():
    ctr = ctr_of(3)
    (wrong,) = found(reply(3, with_rows(ctr, {1: ctr[1] + 0.25})))
    assert (wrong.at_seconds, wrong.latency_ms) == (1.001, 3)
    assert (wrong.payload, wrong.version, wrong.version_output) == (3, VERSION, {"1": ROWS})
    assert (wrong.rows, wrong.bad_rows, wrong.not_finite_count) == (ROWS, [1], 0)
    assert wrong.difference_max == pytest.approx(0.25, abs=1e-6)
    assert [float(value) for value in wrong.right_values] == pytest.approx(ctr[1].tolist())
    assert [float(value) for value in wrong.values] == pytest.approx((ctr[1] + 0.25).tolist())


def zeros_for(*names: str) -> Inputs:
    return {name: inputs_of(3)[name] * 0 for name in names}


@pytest.mark.parametrize(
    ("value", "origin"),
    [
        (ctr_of(3, 2)[1], "its row by export 2"),
        (ctr_of(3)[2], "another row of its request by export 1"),
        (ctr_of(5)[0], "row 0 of payload 5 by export 1"),
        (ctr_of(5, 2)[2], "last row of payload 5 by export 2"),
        (ctr_of(3, **zeros_for("dense", "sparse"))[1], "zeros by export 1"),
        (
            ctr_of(3, sparse=inputs_of(5)["sparse"])[1],
            "dense of its own with row 1 of payload 5 by export 1",
        ),
        (ctr_of(3, **zeros_for("dense"))[1], "sparse of its own with zeros by export 1"),
        (np.inf, "not finite"),
        (2.5, "unknown"),
    ],
)
def test_origin_of_a_bad_row_is_named(value: Any, origin: str):
    (wrong,) = found(reply(3, with_rows(ctr_of(3), {1: value})))
    assert list(wrong.origins) == [f"row 1: {origin}"]


def test_nan_is_counted_and_fits_json():
    (wrong,) = found(reply(3, with_rows(ctr_of(3), {0: np.nan, 2: np.nan})))
    assert (wrong.bad_rows, wrong.not_finite_count) == ([0, 2], 2)
    assert wrong.difference_max is None
    assert "NaN" in str(wrong)
    json.dumps(asdict(wrong), allow_nan=False)


def test_version_output_that_does_not_fit_is_shown():
    (wrong,) = found(reply(3, ctr_of(3), output=[1, 2, 2]))
    assert (wrong.version_output, list(wrong.bad_rows)) == ({"1": 1, "2": 2}, [])
    assert "{'1': 1, '2': 2}" in str(wrong)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff\xff", "no PredictResponse"),
        (b"", r"the outputs \[\]"),
        (reply(3, np.zeros((2, 1))).data, r"'ctr' has the shape \(2, 1\)"),
    ],
    ids=["no_message", "empty", "rows"],
)
def test_reply_that_cannot_be_compared_says_why(data: bytes, problem: str):
    (wrong,) = found(Reply(3, 0, data))
    assert wrong.payload == 3
    assert re.search(problem, str(wrong))


def test_reply_that_was_not_kept_is_described():
    outcome = outcome_of([(0, 2, 5)], replies=[], reply_of=[NOT_KEPT])
    (wrong,) = LOAD.wrong_replies(outcome, content_of)
    assert (wrong.at_seconds, wrong.payload) == (0.002, None)
    assert "not kept" in wrong.problem


def test_first_wrong_replies_by_issue_are_described():
    bad = reply(3, ctr_of(4))
    requests = [(0, 100 - i, 200) for i in range(2 * DESCRIBED_MAX)]
    outcome = outcome_of(requests, replies=[bad], reply_of=[0] * len(requests))
    wrong = LOAD.wrong_replies(outcome, content_of)
    first_ms = 100 - 2 * DESCRIBED_MAX + 1
    assert [each.at_seconds * 1e3 for each in wrong] == pytest.approx(
        [first_ms + i for i in range(DESCRIBED_MAX)]
    )


def test_line_sums_up_the_origins():
    (wrong,) = found(reply(3, with_rows(ctr_of(5), {0: 2.5})))
    assert str(wrong) == (
        "wrong reply at 1.001 s, after 3.00 ms, to payload 3: version 9, its output {'1': 3}, 3 of 3 "
        f"rows bad, 0 to 2, difference {wrong.difference_max:.2e}, 0 not finite: 1 x unknown; "
        "1 x payload 5 by export 1"
    )

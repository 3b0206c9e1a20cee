"""The times of rollbacks, from the answers to a client that asks beside them."""

import pytest

from loadtest.measure.rollbacks import Asked, Instants
from loadtest.plan.plan import NOT_KEPT, Reply
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2
from tests.unit.loadtest_outcomes import MS, outcome_of

OLD, NEW = 1, 2
ROLLBACK = Instants(began_ns=10 * MS, replied_ns=13 * MS, allowed_ns=20 * MS)


def asked(*requests: tuple[float, float, int]) -> Asked:
    """Requests with the ms at which each was sent and answered, and the version that answered."""
    replies = []
    for version in (OLD, NEW):
        response = predict_pb2.PredictResponse()
        response.model_spec.version.value = version
        replies.append(Reply(0, 0, response.SerializeToString()))
    times = [(issued, issued, completed) for issued, completed, _ in requests]
    return Asked(outcome_of(times, replies=replies, reply_of=[item[2] - OLD for item in requests]))


def test_first_answer_is_of_the_version_before():
    found = asked((2, 3, OLD), (9, 11, NEW), (11, 12.5, OLD), (12, 13, OLD))
    assert found.first_answer_ms(ROLLBACK, OLD) == 2.5


def test_answer_after_the_version_is_allowed_is_none():
    with pytest.raises(Unavailable, match="no request got an answer of version 1"):
        asked((9, 11, NEW), (21, 22, OLD)).first_answer_ms(ROLLBACK, OLD)


@pytest.mark.parametrize(
    ("request_ms", "is_late"),
    [((12, 14, NEW), False), ((13, 14, OLD), False), ((13, 14, NEW), True), ((21, 22, NEW), False)],
)
def test_only_requests_after_the_reply_are_late(
    request_ms: tuple[float, float, int], is_late: bool
):
    assert asked(request_ms).is_late(ROLLBACK, OLD) is is_late


def test_client_that_ended_before_a_rollback_is_named():
    with pytest.raises(Unavailable, match="had sent all of its requests"):
        asked((2, 3, NEW)).first_answer_ms(ROLLBACK, OLD)


@pytest.mark.parametrize(("code", "match"), [(0, "too many to be kept"), (14, "failed")])
def test_request_without_a_kept_reply_is_refused(code: int, match: str):
    with pytest.raises(Unavailable, match=match):
        Asked(outcome_of([(0, 0, 1)], codes=[code], reply_of=[NOT_KEPT]))


def test_failed_request_beside_rollback_is_refused():
    outcome = outcome_of([(0, 0, 1)], codes=[14], replies=[Reply(0, 14, b"gone")])
    with pytest.raises(Unavailable, match="gone"):
        Asked(outcome)

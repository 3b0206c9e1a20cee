from datetime import datetime, timezone
from typing import Any

from loadtest.measure.soak_blocked import blocked_answers, blocked_spans
from tests.unit.loadtest_outcomes import outcome_of

SECOND_NS = 1_000_000_000
US_NS = 1_000


def line(second: int, event: str, **values: Any) -> dict[str, Any]:
    timestamp = datetime.fromtimestamp(second, timezone.utc).isoformat().replace("+00:00", "Z")
    return {"event": event, "timestamp": timestamp, "model": "ctr", **values}


def at(second: int) -> int:
    return second * SECOND_NS + US_NS


SWAP = [line(1, "version_available", version=1), line(2, "version_available", version=2)]
ROLLBACK = line(3, "rolled_back", version=2, to=1, blocked=[2])


def test_rolled_back_version_is_blocked_until_allowed():
    spans = blocked_spans([*SWAP, ROLLBACK], [(5 * SECOND_NS, 2)], "ctr")
    assert spans == {2: [(at(3), 5 * SECOND_NS)]}


def test_without_an_end_a_version_stays_blocked():
    ((begin, end),) = blocked_spans([*SWAP, ROLLBACK], [], "ctr")[2]
    assert begin == at(3)
    assert end > at(1_000_000_000)


def test_blocked_version_may_answer_until_another_can():
    cold = line(3, "rolled_back", version=2, to=None, blocked=[2])
    events = [SWAP[1], cold, line(6, "version_available", version=1)]
    ((begin, _),) = blocked_spans(events, [], "ctr")[2]
    assert begin == at(6)


def test_blocked_version_may_answer_once_no_other_can():
    events = [*SWAP, ROLLBACK, line(4, "unload_started", version=1)]
    assert blocked_spans(events, [], "ctr") == {2: [(at(3), at(4))]}


def test_other_models_and_events_block_nothing():
    other = {**ROLLBACK, "model": "neighbour"}
    assert blocked_spans([*SWAP, other, line(4, "swap", version=2)], [], "ctr") == {}


def test_answers_count_if_fully_within_span():
    requests = [(0, 0, 1), (9, 9, 11), (11, 11, 12), (13, 13, 14), (19, 19, 21)]
    outcome = outcome_of(requests)
    spans = {2: [(10_000_000 + SECOND_NS, 20_000_000 + SECOND_NS)]}
    versions = [2, 2, 2, 1, 2]
    assert blocked_answers(outcome, versions, spans, SECOND_NS) == {2: 1}
    assert blocked_answers(outcome, [None] * 5, spans, SECOND_NS) == {}

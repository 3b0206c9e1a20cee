"""The figures of stops under load."""

from loadtest.commands.stops import Stops, stops_report
from loadtest.plan.plan import NOT_KEPT, Outcome
from serving.base.errors import StatusCode
from tests.unit.loadtest_outcomes import outcome_of


def outcome(codes: list[StatusCode], took_ms: int) -> Outcome:
    """Returns one request each 10 ms, answered after `took_ms`."""
    requests = [(10 * i, 10 * i, 10 * i + took_ms) for i in range(len(codes))]
    return outcome_of(requests, codes, reply_of=[NOT_KEPT] * len(codes))


def test_stops_count_lost_requests_and_runs_in_vain():
    stops = Stops()
    stops.add(outcome([StatusCode.OK, StatusCode.OK, StatusCode.UNAVAILABLE], 1), run_count=2)
    assert stops_report(stops, 1)["lost_count"] == 0
    assert stops.unanswered_run_count == 0
    stops.add(outcome([StatusCode.OK, StatusCode.CANCELLED], 1), run_count=2)
    report = stops_report(stops, 2)
    assert report["codes"] == {"OK": 3, "UNAVAILABLE": 1, "CANCELLED": 1}
    assert (report["lost_count"], report["unanswered_run_count"]) == (1, 1)

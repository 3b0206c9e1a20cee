"""The report of `loadtest life crashes`."""

from collections import Counter

from loadtest.commands.crashes import Crashes, crashes_report, report_line


def report(**codes: int):
    crashes = Crashes(Counter(codes), [1.5, 1.25], [1.0, 0.5])
    return crashes_report(crashes, crash_count=2, mb=500)


def test_calls_in_flight_are_not_lost():
    assert report(OK=100, UNAVAILABLE=4)["lost_count"] == 0


def test_more_failures_than_calls_in_flight_are_lost():
    assert report(OK=100, UNAVAILABLE=6)["lost_count"] == 2


def test_other_codes_are_lost():
    assert report(OK=100, UNAVAILABLE=1, INTERNAL=1)["lost_count"] == 1


def test_line_has_median_and_highest_times():
    line = report_line(report(OK=1))
    assert "other model 0.75 s (at most 1.0)" in line
    assert "500 MB that crashed 1.375 s (at most 1.5)" in line

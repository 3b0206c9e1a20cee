"""`loadtest saturation`: its options, the rates of its shares and the report."""

import argparse
import io

import pytest
from rich.console import Console

from loadtest.commands.saturation import (
    closed_loops,
    numbers,
    print_saturation,
    saturation_report,
    shares,
)
from loadtest.measure.shares import LOWEST, OWN, saturations, share_rates, turn_seconds
from loadtest.measure.turns import Results, Turn
from loadtest.plan.loops import ClosedLoop, ShareLoop
from tests.unit.loadtest_outcomes import QUIET_CORES, outcome_of, turn_of

ONE, MANY = ClosedLoop(1, 1, 1), ClosedLoop(1, 4, 16)
HALF = ShareLoop(1, 0.5)

# One request in flight: 1,000 requests/s take 1 ms each.
CLOSED: Results = {
    (ONE, "plain"): [turn_of(1), turn_of(2), turn_of(1)],
    (ONE, "batching"): [turn_of(2)] * 3,
    (MANY, "plain"): [turn_of(0.5)] * 3,
    (MANY, "batching"): [turn_of(0.1), turn_of(0.2), turn_of(0.25)],
}


def test_loops_are_of_all_rows_and_counts_in_flight():
    assert closed_loops([1, 100], [1, 16], 4) == [
        ClosedLoop(1, 1, 1),
        ClosedLoop(1, 4, 16),
        ClosedLoop(100, 1, 1),
        ClosedLoop(100, 4, 16),
    ]


def test_lists_are_numbers_between_commas():
    assert numbers("1,100") == [1, 100]
    assert shares("0.1,1") == [0.1, 1]
    assert shares("") == []


@pytest.mark.parametrize("text", ["0", "1,x", "1,1"])
def test_malformed_list_is_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError):
        numbers(text)


@pytest.mark.parametrize("text", ["80", "0", "0.5,0.5"])
def test_malformed_shares_are_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError):
        shares(text)


def test_saturation_is_highest_median_of_all_loops():
    found = saturations(CLOSED)
    assert {rows: dict(each) for rows, each in found.items()} == {
        1: {"plain": pytest.approx(2_000), "batching": pytest.approx(5_000)}
    }


def test_share_of_lowest_saturation_is_one_rate():
    rates = share_rates({1: {"a": 2_000, "b": 5_000}}, [0.5], LOWEST)
    assert rates == {(HALF, "a"): 1_000, (HALF, "b"): 1_000}


def test_share_of_own_saturation_differs_by_server():
    rates = share_rates({1: {"a": 2_000, "b": 5_000}}, [0.5], OWN)
    assert rates == {(HALF, "a"): 1_000, (HALF, "b"): 2_500}


@pytest.mark.parametrize(
    ("rate_per_second", "seconds"), [(10_000, 1), (270, 4), (200, 5.4), (10, 8)]
)
def test_open_turn_is_longer_for_p999_of_all_rounds(rate_per_second: float, seconds: float):
    assert turn_seconds(rate_per_second, round_count=5, seconds=1) == seconds


def test_first_requests_of_open_turn_are_left_out():
    outcome = outcome_of([(0, 0, 90), (299, 299, 389), (300, 300, 301)])
    shown = Turn(outcome, 0, 0, QUIET_CORES, settle_ns=300_000_000)
    assert list(shown.latencies_ns(HALF)) == [1_000_000]


def test_report_has_loops_shares_and_saturations():
    at_shares: Results = {(HALF, "plain"): [turn_of(1)], (HALF, "batching"): [turn_of(1)]}
    report = saturation_report({}, CLOSED, saturations(CLOSED), at_shares, LOWEST)
    assert list(report["loops"]) == ["1:1x1", "1:4x16"]
    assert report["loops"]["1:4x16"]["batching"]["ratios"]["requests_per_second"] == 2.5
    assert report["saturation"] == {1: {"plain": 2_000, "batching": 5_000}}
    assert list(report["shares"]["1:50%"]) == ["plain", "batching"]
    assert (report["errors"], report["wrong_answers"]) == (0, 0)


def test_printed_tables_name_loads_and_saturations():
    console = Console(file=io.StringIO(), width=200)
    at_shares: Results = {(HALF, "plain"): [turn_of(1)], (HALF, "batching"): [turn_of(1)]}
    report = saturation_report({}, CLOSED, saturations(CLOSED), at_shares, OWN)
    print_saturation(report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "saturation at 1 rows: plain 2,000/s, batching 5,000/s" in text
    assert "×2.50" in text
    assert "1:50%" in text
    assert "of each server's own saturation" in text
    assert "server 0.80" in text


def test_lost_request_of_a_share_is_counted():
    at_shares: Results = {(HALF, "plain"): [turn_of(1, failed_count=3)]}
    report = saturation_report({}, CLOSED, saturations(CLOSED), at_shares, OWN)
    assert report["errors"] == 3

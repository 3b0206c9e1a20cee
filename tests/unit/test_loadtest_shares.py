"""`loadtest turns` at shares of a saturation: the rates, the report and the exit status."""

import argparse
import io

import pytest
from rich.console import Console

from loadtest.__main__ import main
from loadtest.commands.turns import shares, status_of
from loadtest.measure.shares import LOWEST, OWN, saturations, share_rates, turn_seconds
from loadtest.measure.turns import Results, Turn
from loadtest.plan.loops import ClosedLoop, ShareLoop
from loadtest.plan.plan import NOT_KEPT
from loadtest.report.turns_report import print_turns, turns_report
from serving.base.errors import StatusCode
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

# One request each 10 ms: a third is answered, a third refused, a third too late.
_CODES = [StatusCode.OK, StatusCode.RESOURCE_EXHAUSTED, StatusCode.DEADLINE_EXCEEDED] * 20
_OVERLOADED = outcome_of(
    [(10 * i, 10 * i, 10 * i + 3) for i in range(len(_CODES))],
    _CODES,
    reply_of=[NOT_KEPT] * len(_CODES),
)
AT_SHARES: Results = {
    (HALF, "plain"): [turn_of(1)],
    (HALF, "batching"): [Turn(_OVERLOADED, 0, 0, QUIET_CORES)],
}


def test_shares_are_numbers_between_commas():
    assert shares("0.1,1,2") == [0.1, 1, 2]
    assert shares("") == []


@pytest.mark.parametrize("text", ["0", "0.5,x"])
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
    report = turns_report({}, {**CLOSED, **AT_SHARES}, saturations({**CLOSED, **AT_SHARES}))
    assert list(report["loops"]) == ["1:1x1", "1:4x16", "1:50%"]
    assert report["loops"]["1:4x16"]["batching"]["ratios"]["requests_per_second"] == 2.5
    assert report["saturation"] == {"1": {"plain": 2_000, "batching": 5_000}}
    assert list(report["loops"]["1:50%"]) == ["plain", "batching"]


def test_printed_table_names_saturation_and_refusals():
    console = Console(file=io.StringIO(), width=200)
    results: Results = {**CLOSED, **AT_SHARES}
    print_turns(turns_report({}, results, saturations(results)), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "saturation at 1 rows: plain 2,000/s, batching 5,000/s" in text
    assert "×2.50" in text
    assert "1:50%" in text
    assert "batching, 1:50%: refused 20, after p50 3.00, p99 - ms" in text
    assert "plain, 1:50%" not in text


def test_only_answers_count_in_figures_of_overload():
    (refusing,) = AT_SHARES[HALF, "batching"]
    assert len(refusing.latencies_ns(HALF)) == len(refusing.refused_ns(HALF)) == 20
    shown = turns_report({}, AT_SHARES)["loops"]["1:50%"]["batching"]
    # 20 answers from the first issue to the last answer.
    assert shown["requests_per_second"] == pytest.approx(20 / 0.593, abs=0.1)
    assert (shown["refused"]["count"], shown["failed_count"]) == (20, 40)


@pytest.mark.parametrize(
    ("shares", "errors", "wrong", "status"),
    [("0.5", 3, 0, 1), ("0.5,1.6", 3, 0, 0), ("1.6", 0, 1, 1), ("", 0, 0, 0), ("", 1, 0, 1)],
)
def test_only_an_overload_may_fail_requests(shares: str, errors: int, wrong: int, status: int):
    report = {"errors": errors, "wrong_answers": wrong}
    assert status_of(report, [float(share) for share in shares.split(",") if share]) == status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shapes=", "--rates="], "--shapes and --rates are both empty"),
        (["--shapes=", "--rates=1:10", "--shares=0.5"], "--shares needs --shapes"),
        (["--transports", "--flags=a="], "--transports names the servers"),
    ],
)
def test_contradicting_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
):
    assert main(["turns", *arguments]) == 2
    assert words in capsys.readouterr().err

"""`loadtest turns`: its options, the order of turns and the report."""

import argparse
import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from loadtest.__main__ import main
from loadtest.commands.turns import SHAPES, closed_loops, open_loops
from loadtest.measure.processor_time import CoreShares
from loadtest.measure.turns import Results, Turn, closed_loop_request_count, run_rounds
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop, Loop, OpenLoop
from loadtest.report.turns_report import print_turns, turns_report
from tests.unit.loadtest_outcomes import QUIET_CORES, outcome_of, turn_of

LOOP = ClosedLoop(rows=1, channels=1, in_flight=1)


def results(old_ms: Sequence[float], new_ms: Sequence[float]) -> Results:
    return {
        (LOOP, "old"): [turn_of(latency_ms) for latency_ms in old_ms],
        (LOOP, "new"): [turn_of(latency_ms) for latency_ms in new_ms],
    }


def test_shapes_are_rows_channels_and_in_flight():
    assert closed_loops("1:4x16,100:64x64") == [ClosedLoop(1, 4, 16), ClosedLoop(100, 64, 64)]
    assert ",".join(str(loop) for loop in closed_loops(SHAPES)) == SHAPES
    assert closed_loops("") == []


@pytest.mark.parametrize("text", ["1", "1:4", "1:4x", "0:1x1", "1:1x-1", "1:1x1x1", "1:1x1;1:4x4"])
def test_malformed_shape_is_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="is not ROWS:CHANNELSxIN_FLIGHT"):
        closed_loops(text)


def test_rates_are_rows_and_requests_per_second():
    assert open_loops("100:300,1:0.5") == [OpenLoop(100, 300), OpenLoop(1, 0.5)]


@pytest.mark.parametrize("text", ["300", "1:", "1:0", "1:fast", "x:300"])
def test_malformed_rate_is_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="is not ROWS:RATE"):
        open_loops(text)


def test_long_turn_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["turns", "--seconds=20"])
    assert "20 is above 10; use more rounds" in capsys.readouterr().err


def test_every_second_round_reverses_servers():
    other = OpenLoop(rows=1, rate_per_second=300)
    loops: list[Loop] = [LOOP, other]
    order: list[tuple[Loop, str, int]] = []

    def take_turn(loop: Loop, name: str, round_number: int) -> Turn:
        order.append((loop, name, round_number))
        return turn_of(round_number + 1, count=1)

    turns = run_rounds(3, loops, ["a", "b"], take_turn)
    assert order == [
        (loop, name, number)
        for number, names in enumerate(["ab", "ba", "ab"])
        for loop in loops
        for name in names
    ]
    assert [len(each) for each in turns.values()] == [3] * 4


def test_ratios_are_of_turns_in_same_round():
    # The machine slows down in the second round. The medians over the rounds alone would say 2.
    report = turns_report({}, results(old_ms=[1, 4, 1], new_ms=[2, 4.8, 1.2]))
    shown = report["loops"]["1:1x1"]
    assert (shown["old"]["requests_per_second"], shown["new"]["requests_per_second"]) == (
        1_000,
        500,
    )
    assert shown["new"]["ratios"]["p50_ms"] == 1.2
    assert shown["new"]["ratios"]["requests_per_second"] == 0.833
    assert shown["old"]["ratios"] == dict.fromkeys(shown["old"]["ratios"], 1)
    assert shown["new"]["cpu_us"] == 100


def test_p999_is_of_all_rounds_together():
    enough = turns_report({}, results(old_ms=[1] * 9, new_ms=[1] * 9))["loops"]["1:1x1"]["new"]
    assert (enough["pooled"]["count"], enough["pooled"]["p999_ms"]) == (5_400, 1)
    too_few = turns_report({}, results(old_ms=[1] * 8, new_ms=[1] * 8))["loops"]["1:1x1"]["new"]
    assert (too_few["pooled"]["count"], too_few["pooled"]["p999_ms"]) == (4_800, None)


def test_latencies_of_open_loop_count_from_due_time():
    shown = Turn(outcome_of([(0, 4, 5)]), 0, 0, QUIET_CORES)
    assert shown.latencies_ns(OpenLoop(1, 300)) == [5_000_000]
    assert shown.latencies_ns(LOOP) == [1_000_000]


def test_failed_requests_are_counted_and_left_out():
    failing = turn_of(1, count=1_000, failed_count=400)
    report = turns_report({}, {(LOOP, "old"): [failing, turn_of(1)]})
    shown = report["loops"]["1:1x1"]["old"]
    assert (shown["failed_count"], report["errors"]) == (400, 400)
    assert shown["pooled"]["count"] == 1_200
    assert shown["rounds"][0]["requests_per_second"] == 600


def test_closing_line_names_stolen_cores():
    stolen = CoreShares(server=0.6, generator=0.2, other=0, stolen=0.4)
    turns: Results = {
        (LOOP, "old"): [turn_of(1), turn_of(1, cores=stolen)],
        (LOOP, "new"): [turn_of(2), turn_of(2)],
    }
    console = Console(file=io.StringIO(), width=200)
    print_turns(turns_report({}, turns), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "×0.50" in text
    assert "×2.00" in text
    assert "errors 0, wrong answers 0" in text
    assert "server 0.75, generator 0.20, others 0.00, stolen 0.10" in text


@pytest.mark.parametrize(
    ("rate_per_second", "request_count"), [(10_000, 7_000), (300, 600), (50, 250), (0.1, 1)]
)
def test_closed_turn_is_longer_for_its_p99(rate_per_second: float, request_count: int):
    assert closed_loop_request_count(rate_per_second, seconds=0.7) == request_count


def test_open_loop_plan_has_about_its_count():
    load = CtrLoad("ctr", rows=1, table_rows=10, seed=1)
    plan = OpenLoop(rows=1, rate_per_second=300).plan(load, 600, seed=1)
    assert 500 < len(plan.offsets_ns) < 700
    assert plan.in_flight_max == 0
    closed = ClosedLoop(rows=1, channels=2, in_flight=8).plan(load, 600, seed=1)
    assert len(closed.offsets_ns) == 600
    assert (closed.channel_count, closed.in_flight_max) == (2, 8)

import math
from dataclasses import fields
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import InvalidArgument
from serving.core.model_settings import GateMode, GateSettings
from serving.core.servable import GateVerdict, ServableId
from serving.gates.gates import (
    LATENCY_NOISE_SECONDS,
    Gate,
    Latency,
    convergence_ratio,
    convergence_verdict,
    drift_faults,
    drift_figures,
    golden_faults,
    golden_figures,
    is_worth_another_pass,
    latency_faults,
    latency_figures,
    mode_of,
    refusal,
    refused,
    settings_of,
    skipped,
    verdict_of,
    warm_up_faults,
)
from serving.gates.tensor_compare import Comparison

ENFORCE, WARN = GateMode.ENFORCE, GateMode.WARN


# --- Verdicts -------------------------------------------------------------------------------------


def test_verdict_without_faults_is_passed():
    verdict = verdict_of(Gate.DRIFT, WARN, [], {"answer_count": 3})
    assert (verdict.gate, verdict.mode, verdict.is_passed) == ("drift", "warn", True)
    assert verdict.figures == {"answer_count": 3}


def test_verdict_has_every_fault_as_its_reason():
    verdict = verdict_of(Gate.SIGNATURE, ENFORCE, ["one", "two"])
    assert (verdict.is_passed, verdict.reason) == (False, "one; two")


def test_skipped_gate_passes_with_reason():
    verdict = skipped(Gate.LATENCY, WARN, "no requests")
    assert (verdict.is_passed, verdict.reason) == (True, "skipped: no requests")


@pytest.mark.parametrize("gate", list(Gate))
def test_every_gate_has_a_mode_in_the_settings(gate: Gate):
    settings = GateSettings(**{gate.value: GateMode.ENFORCE})  # type: ignore[arg-type]
    assert mode_of(gate, settings) is GateMode.ENFORCE


def test_refusal_names_failed_enforced_gates():
    error = refusal(
        ServableId("m", 7),
        [
            verdict_of(Gate.SIGNATURE, ENFORCE, ["input 'x' is gone"]),
            verdict_of(Gate.GOLDEN, ENFORCE, []),
            verdict_of(Gate.LATENCY, WARN, ["slow"]),
            verdict_of(Gate.DRIFT, ENFORCE, ["NaN"]),
        ],
    )
    assert error is not None
    assert not error.is_transient
    for words in ("m/7", "gate 'signature': input 'x' is gone", "gate 'drift': NaN", "'warn'"):
        assert words in error.message
    assert "slow" not in error.message


@pytest.mark.parametrize(
    "verdict", [verdict_of(Gate.DRIFT, WARN, ["NaN"]), verdict_of(Gate.DRIFT, ENFORCE, [])]
)
def test_refusal_is_none_without_failed_enforced_gate(verdict: Any):
    assert refusal(ServableId("m", 7), [verdict]) is None


# --- Settings -------------------------------------------------------------------------------------


def test_gates_that_refuse_by_default():
    refusing = [gate for gate in Gate if mode_of(gate, GateSettings()) is ENFORCE]
    assert refusing == [
        *(Gate.WARM_UP, Gate.SIGNATURE, Gate.SELF_WARM_UP, Gate.FAILED_SHARE),
        *(Gate.OUTPUTS, Gate.FINITE, Gate.CONSTANT),
    ]


def test_every_setting_belongs_to_a_gate():
    of_gates = [settings_of(gate, GateSettings()) for gate in Gate]
    assert {name for settings in of_gates for name in settings} == {
        item.name for item in fields(GateSettings)
    }


@pytest.mark.parametrize(
    ("gate", "names"),
    [
        (Gate.WARM_UP, {"warm_up"}),
        (Gate.SIGNATURE, {"signature"}),
        (Gate.SELF_WARM_UP, {"self_warm_up"}),
        (
            Gate.FAILED_SHARE,
            {"failed_share", "failed_share_max", "failed_share_request_count_min"},
        ),
        (Gate.LATENCY, {"latency", "latency_ratio_max"}),
        (Gate.DRIFT, {"drift", "drift_tolerance", "drift_share_max", "golden"}),
    ],
)
def test_gate_settings_are_own_and_shared(gate: Gate, names: set[str]):
    assert set(settings_of(gate, GateSettings())) == names


# --- Warm-up --------------------------------------------------------------------------------------


def test_warm_up_faults_show_first_few_and_count():
    assert warm_up_faults([]) == []
    faults = [f"record {number}: bad" for number in range(1, 6)]
    assert warm_up_faults(faults) == ["record 1: bad / record 2: bad / record 3: bad / and 2 more"]


@pytest.mark.parametrize(
    ("durations_ns", "ratio"),
    [
        ([], None),
        ([[100], [100]], None),
        # The first run is left out: a warm-up exists for it.
        ([[900, 100]], None),
        ([[900, 100, 100]], 1.0),
        ([[900, 100, 50]], 0.5),
        # With an odd number of warm runs, the first is left out.
        ([[900, 800, 100, 50]], 0.5),
        ([[900, 8, 8, 800, 8, 8, 8]], 1.0),
        # The ratio is the median over the records: an interrupted record does not decide.
        ([[1, 100, 100], [1, 900, 100], [1, 100, 100]], 1.0),
        ([[0, 0, 0]], 0.0),
    ],
)
def test_convergence_compares_last_runs_with_earlier(
    durations_ns: list[list[int]], ratio: float | None
):
    assert convergence_ratio(durations_ns) == ratio


def convergence(durations_ns: list[list[int]], **how: Any) -> GateVerdict:
    return convergence_verdict(durations_ns, GateSettings(**how), {})


def milliseconds(*runs: float) -> list[int]:
    return [round(run * 1e6) for run in runs]


def test_convergence_fails_if_version_still_speeds_up():
    verdict = convergence([milliseconds(90, 64, 32, 16, 8, 4, 2)], convergence=ENFORCE)
    assert (verdict.gate, verdict.mode, verdict.is_passed) == ("convergence", "enforce", False)
    assert "the last took 0.125 of the time of the earlier runs, and at least 0.5" in verdict.reason
    assert verdict.figures["convergence_ratio"] == 0.125


def test_convergence_of_too_few_runs_is_skipped():
    verdict = convergence([milliseconds(90, 64, 32, 16, 8, 4)])
    assert verdict.is_passed
    assert verdict.reason.startswith(
        "skipped: 7 runs of a record are needed, but there was only time"
    )


def test_convergence_passes_fast_version():
    assert convergence([milliseconds(9, 0.2, 0.2, 0.2, 0.01, 0.01, 0.01)]).is_passed


def test_convergence_unset_passes_everything():
    runs = [milliseconds(90, 64, 32, 16, 8, 4, 2)]
    assert not convergence(runs).is_passed
    assert convergence(runs, convergence_ratio_min=0.0).is_passed


def test_convergence_forgives_slow_runs_of_long_ago():
    assert convergence([milliseconds(*[80] * 20, *[9] * 8)]).is_passed
    assert not convergence([milliseconds(*[80] * 20, *[9] * 3)]).is_passed


@given(
    steady=st.integers(1, 10**9),
    run_count=st.integers(7, 20),
    cold=st.integers(0, 10**12),
    outlier=st.tuples(st.integers(1, 100), st.integers(0, 10**12)),
)
def test_convergence_of_steady_version_ignores_outlier(
    steady: int, run_count: int, cold: int, outlier: tuple[int, int]
):
    runs = [cold, *[steady] * (run_count - 1)]
    where, took = outlier
    runs[where % run_count] = took
    assert convergence([runs]).is_passed


@given(
    last_ns=st.integers(10**6, 10**9),
    factor=st.floats(1.5, 10),
    run_count=st.integers(7, 20),
    record_count=st.integers(1, 5),
)
def test_convergence_fails_if_every_run_gains(
    last_ns: int, factor: float, run_count: int, record_count: int
):
    runs = [round(last_ns * factor ** (run_count - index)) for index in range(run_count)]
    assert not convergence([runs] * record_count).is_passed


@given(
    st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=12), max_size=6),
    st.floats(0, 1),
    st.randoms(use_true_random=False),
)
def test_convergence_ignores_order_of_records(
    durations_ns: list[list[int]], ratio_min: float, random: Random
):
    shuffled = random.sample(durations_ns, len(durations_ns))
    one, other = (
        convergence(records, convergence_ratio_min=ratio_min)
        for records in (durations_ns, shuffled)
    )
    assert (one.is_passed, one.reason) == (other.is_passed, other.reason)
    assert is_worth_another_pass(durations_ns, ratio_min) == is_worth_another_pass(
        shuffled, ratio_min
    )


@pytest.mark.parametrize(
    ("runs", "is_worth"),
    [
        ([milliseconds(9)], True),
        ([milliseconds(9, 4)], True),
        ([milliseconds(9, 4, 4)], False),
        ([milliseconds(9, 4, 8)], False),
        ([milliseconds(9, 4, 3.7)], False),
        ([milliseconds(9, 4, 3.5)], True),
        # This is below the noise.
        ([milliseconds(9, 0.2, 0.1)], False),
        # The rule looks at most records.
        ([milliseconds(9, 4, 3), milliseconds(9, 4, 4), milliseconds(9, 4, 4)], False),
    ],
)
def test_another_pass_is_worth_its_time_while_it_gains(runs: list[list[int]], is_worth: bool):
    assert is_worth_another_pass(runs, 0.5) == is_worth


def test_another_pass_runs_if_more_is_expected():
    runs = [milliseconds(9, 4, 3.7)]
    assert is_worth_another_pass(runs, 0.95)


# --- Latency --------------------------------------------------------------------------------------


def latencies(predecessor_ms: list[float], candidate_ms: list[float]) -> list[Latency]:
    return [
        Latency(predecessor_ns=round(was * 1e6), candidate_ns=round(now * 1e6))
        for was, now in zip(predecessor_ms, candidate_ms, strict=True)
    ]


@pytest.mark.parametrize(
    ("predecessor_ms", "candidate_ms", "is_passed"),
    [
        ([], [], True),
        ([1], [1], True),
        ([1, 2], [1, 5.9], True),
        ([1, 2], [1, 6.1], False),
        # Requests are not compared one by one: clients see the distribution.
        ([1, 9], [9, 1], True),
        # Within the noise, however large the ratio is.
        ([0.01], [0.2], True),
        ([0.01], [0.22], False),
        ([0], [1], False),
        # A share of 1 in 200 is beyond p99.
        ([1] * 200, [1] * 199 + [100], True),
        ([1] * 200, [1] * 197 + [100] * 3, False),
    ],
)
def test_latency_is_judged_by_p99(
    predecessor_ms: list[float], candidate_ms: list[float], is_passed: bool
):
    assert (not latency_faults(latencies(predecessor_ms, candidate_ms), 3)) == is_passed


def test_latency_fault_states_ratio():
    (fault,) = latency_faults(latencies([1, 2], [2, 8]), 3)
    assert fault == (
        "p99 over 2 requests is 8 ms, 4 times the predecessor's 2 ms, and at most 3 times is allowed"
    )


def test_latency_figures_of_few_are_slowest():
    assert latency_figures(latencies([1, 2], [3, 4])) == {
        "request_count": 2,
        "p99_seconds": 0.004,
        "predecessor_p99_seconds": 0.002,
        "p99_ratio": 2.0,
    }
    assert latency_figures([]) == {"request_count": 0}


def test_latency_keeps_faster_round_per_version():
    (one,), (other,) = latencies([1], [5]), latencies([2], [4])
    assert [one.or_faster(other)] == latencies([1], [4])


@given(st.lists(st.integers(1, 10 * NS_PER_SECOND), min_size=1), st.floats(1, 10))
def test_latency_passes_version_as_fast_as_predecessor(durations_ns: list[int], ratio_max: float):
    equal = [Latency(predecessor_ns=ns, candidate_ns=ns) for ns in durations_ns]
    assert latency_faults(equal, ratio_max) == []
    assert latency_figures(equal)["p99_ratio"] == 1


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_latency_fault_is_one_way_at_most(one_ns: int, other_ns: int):
    noise_ns = round(LATENCY_NOISE_SECONDS * NS_PER_SECOND)
    assume(abs(one_ns - other_ns) != noise_ns)
    there = latency_faults([Latency(predecessor_ns=one_ns, candidate_ns=other_ns)], 1)
    back = latency_faults([Latency(predecessor_ns=other_ns, candidate_ns=one_ns)], 1)
    assert len(there) + len(back) == (1 if abs(one_ns - other_ns) > noise_ns else 0)


# --- Answers --------------------------------------------------------------------------------------

SAME = Comparison(value_count=4)
CHANGED = Comparison(value_count=4, changed_count=3, first_change="output 'y' value 0 is 2, was 1")
NAN = Comparison(value_count=4, faults=("output 'y' is NaN in 4 of 4 values",))
WIDER = Comparison(value_count=4, added_outputs=("z",))


def test_golden_answers_must_be_met_in_all():
    assert golden_faults([SAME, CHANGED, NAN, WIDER]) == [
        "3 of 4 golden answers differ: output 'y' value 0 is 2, was 1 / "
        "output 'y' is NaN in 4 of 4 values / output 'z' is new"
    ]
    assert golden_figures([SAME, CHANGED, NAN, WIDER]) == {"golden_count": 4, "failed_count": 3}
    assert golden_faults([SAME, SAME]) == []


@pytest.mark.parametrize(
    ("comparisons", "share_max", "faults"),
    [
        ([], 0.0, []),
        ([SAME, WIDER], 0.0, []),
        ([CHANGED], 1.0, []),
        ([CHANGED], 0.75, []),
        (
            [CHANGED],
            0.5,
            ["75.0% of the values changed, and at most 50.0% may: output 'y' value 0 is 2, was 1"],
        ),
        ([CHANGED, SAME], 0.5, []),
        ([SAME, NAN], 1.0, ["1 of 2 answers: output 'y' is NaN in 4 of 4 values"]),
    ],
)
def test_drift_faults_obey_allowed_share(
    comparisons: list[Comparison], share_max: float, faults: list[str]
):
    assert drift_faults(comparisons, share_max) == faults


def test_drift_figures_are_over_all_answers():
    assert drift_figures([SAME, CHANGED]) == {
        "answer_count": 2,
        "value_count": 8,
        "changed_ratio": 0.375,
    }
    assert math.isfinite(drift_figures([])["changed_ratio"])


def test_drift_of_a_request_that_is_refused_is_a_fault():
    (fault,) = drift_faults([refused(InvalidArgument("no input 'x'"))], 1.0)
    assert fault == "1 of 1 answers: refused: no input 'x'"

from typing import Any

import pytest

from serving.base.errors import (
    Cancelled,
    InternalError,
    InvalidArgument,
    MillpondError,
    ResourceExhausted,
    StatusCode,
    Unavailable,
)
from serving.core.model_settings import GateMode, GateSettings
from serving.gates.replay_gate import (
    ReplayCounts,
    failed_share_verdict,
    is_failure_of_model,
    self_warm_up_verdict,
)


def counts(answered_count: int, failed_count: int, error: str = "no input 'x'") -> ReplayCounts:
    return ReplayCounts(
        answered_count=answered_count,
        failed_count=failed_count,
        asked_count=failed_count,
        errors=[error] * failed_count,
    )


def few_asked(answered_count: int, failed_count: int, asked: int, confirmed: int) -> ReplayCounts:
    return ReplayCounts(
        answered_count=answered_count,
        failed_count=failed_count,
        asked_count=asked,
        errors=["no input 'x'"] * confirmed,
    )


@pytest.mark.parametrize(
    ("counts_of_few", "is_passed"),
    [
        (few_asked(50, 14, asked=14, confirmed=14), False),
        (few_asked(50, 14, asked=5, confirmed=5), False),
        (few_asked(50, 14, asked=4, confirmed=1), True),  # 3.5 of 53.5
        (few_asked(50, 14, asked=4, confirmed=2), False),  # 7 of 57
        (few_asked(50, 14, asked=14, confirmed=5), True),  # 5 of 55
        (few_asked(50, 14, asked=4, confirmed=0), True),
    ],
)
def test_failed_share_counts_unsent_failures(counts_of_few: ReplayCounts, is_passed: bool):
    assert failed_share_verdict(counts_of_few, GateSettings()).is_passed is is_passed


def test_failed_share_judges_few_sent_requests():
    verdict = failed_share_verdict(few_asked(0, 14, asked=4, confirmed=4), GateSettings())
    assert not verdict.is_passed


def test_failed_share_of_few_sent_is_estimate():
    verdict = failed_share_verdict(few_asked(50, 14, asked=5, confirmed=5), GateSettings())
    assert "about 14 of 64" in verdict.reason
    assert "5 of 14 were sent" in verdict.reason
    assert verdict.figures == {"request_count": 64, "failed_count": 14, "asked_count": 5}


@pytest.mark.parametrize(
    ("answered_count", "failed_count", "is_passed"),
    [(0, 0, True), (1, 0, True), (0, 1, False), (0, 64, False), (1, 63, True)],
)
def test_self_warm_up_needs_one_answer(answered_count: int, failed_count: int, is_passed: bool):
    verdict = self_warm_up_verdict(counts(answered_count, failed_count), GateSettings())
    assert (verdict.gate, verdict.mode, verdict.is_passed) == ("self_warm_up", "enforce", is_passed)


def test_self_warm_up_reason_has_count_and_error():
    verdict = self_warm_up_verdict(counts(0, 2), GateSettings())
    assert verdict.reason == (
        "it fails all 2 replayed live requests that its predecessor answers: no input 'x'"
    )
    assert verdict.figures == {"request_count": 2, "failed_count": 2}


@pytest.mark.parametrize(
    ("answered_count", "failed_count", "settings", "is_passed"),
    [
        (8, 1, {}, True),  # too few requests
        (9, 1, {}, True),  # 1 in 10 and not more
        (8, 2, {}, False),
        (63, 1, {}, True),
        (0, 10, {}, False),
        (5, 5, {"failed_share_max": 0.5}, True),
        (4, 6, {"failed_share_max": 0.5}, False),
        (1, 1, {"failed_share_request_count_min": 2}, False),
        (0, 0, {"failed_share_request_count_min": 0}, True),
    ],
)
def test_failed_share_is_held_to_its_limits(
    answered_count: int, failed_count: int, settings: dict[str, Any], is_passed: bool
):
    verdict = failed_share_verdict(counts(answered_count, failed_count), GateSettings(**settings))
    assert (verdict.gate, verdict.mode, verdict.is_passed) == ("failed_share", "enforce", is_passed)


def test_failed_share_reason_has_counts_and_limit():
    verdict = failed_share_verdict(
        counts(30, 10), GateSettings(failed_share=GateMode.WARN, failed_share_max=0.2)
    )
    assert verdict.mode == "warn"
    for words in ("10 of 40", "at most 0.2", "no input 'x'"):
        assert words in verdict.reason


def test_failed_share_of_few_requests_states_count():
    verdict = failed_share_verdict(counts(2, 1), GateSettings())
    assert verdict.reason == "skipped: 3 live requests were replayed, and 10 are needed"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidArgument("x"), True),
        (InternalError("x"), True),
        (ResourceExhausted("x"), True),
        (Cancelled("x"), False),
        (Unavailable("x"), False),
        (MillpondError("x", code=StatusCode.DEADLINE_EXCEEDED), False),
    ],
)
def test_failures_from_outside_are_not_the_models(error: MillpondError, expected: bool):
    assert is_failure_of_model(error) is expected

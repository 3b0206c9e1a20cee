from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import InvalidArgument, StatusCode, Unavailable
from serving.client.failures import Failure, error_of, failure_of
from serving.client.retries import ONE_ATTEMPT, Attempts, RetryPolicy, pause_seconds
from tests.unit.fakes.client import FakeRpcError
from tests.unit.fakes.clocks import FakeClock

UNAVAILABLE = Failure(StatusCode.UNAVAILABLE)
POLICY = RetryPolicy(attempt_count_max=4, pause_seconds_first=0.1, pause_seconds_max=0.3)
NEARLY_ONE = 1 - 2**-53


@pytest.mark.parametrize(
    ("attempt_count", "shortest", "longest"), [(1, 0.05, 0.1), (2, 0.1, 0.2), (3, 0.15, 0.3)]
)
def test_pause_doubles_to_limit_and_is_spread(attempt_count: int, shortest: float, longest: float):
    assert pause_seconds(POLICY, UNAVAILABLE, attempt_count, 60, 0) == pytest.approx(shortest)
    assert pause_seconds(POLICY, UNAVAILABLE, attempt_count, 60, NEARLY_ONE) == pytest.approx(
        longest
    )


def test_pause_after_the_last_attempt_is_none():
    assert pause_seconds(POLICY, UNAVAILABLE, 4, 60, 0) is None
    assert pause_seconds(ONE_ATTEMPT, UNAVAILABLE, 1, 60, 0) is None


@pytest.mark.parametrize(
    ("failure", "is_repeated"),
    [
        (Failure(StatusCode.UNAVAILABLE), True),
        (Failure(StatusCode.CANCELLED), True),
        (Failure(StatusCode.RESOURCE_EXHAUSTED), False),
        (Failure(StatusCode.RESOURCE_EXHAUSTED, pushback_seconds=0.2), True),
        (Failure(StatusCode.RESOURCE_EXHAUSTED, pushback_seconds=-1), False),
        (Failure(StatusCode.UNAVAILABLE, pushback_seconds=-1), False),
        (Failure(StatusCode.INVALID_ARGUMENT, pushback_seconds=0.2), False),
        (Failure(StatusCode.DEADLINE_EXCEEDED), False),
        (Failure(StatusCode.INTERNAL), False),
    ],
    ids=lambda value: (
        f"{value.code.name}_{value.pushback_seconds}" if isinstance(value, Failure) else ""
    ),
)
def test_pause_follows_only_transient_errors(failure: Failure, is_repeated: bool):
    assert (pause_seconds(POLICY, failure, 1, 60, 0.5) is not None) is is_repeated


@given(
    st.integers(1, 2_000),
    st.floats(0, 100),
    st.floats(0, NEARLY_ONE),
    st.one_of(st.none(), st.floats(-1, 100)),
)
def test_pause_stays_positive_within_deadline_and_hint(
    attempt_count: int, remaining: float, ratio: float, pushback: float | None
):
    failure = Failure(StatusCode.UNAVAILABLE, pushback_seconds=pushback)
    policy = RetryPolicy(attempt_count_max=10_000)
    pause = pause_seconds(policy, failure, attempt_count, remaining, ratio)
    if pause is not None:
        assert 0 <= pause < remaining
        assert pause >= (pushback or 0)


def test_attempts_end_if_pause_passes_deadline():
    clock = FakeClock()
    attempts = Attempts(POLICY, 0.2, clock, lambda: NEARLY_ONE)
    assert attempts.pause_after(UNAVAILABLE) == pytest.approx(0.1)
    clock.advance(0.1)
    assert attempts.remaining_seconds == pytest.approx(0.1)
    assert attempts.pause_after(UNAVAILABLE) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"attempt_count_max": 0},
        {"pause_seconds_first": -1.0},
        {"pause_seconds_first": 2.0, "pause_seconds_max": 1.0},
    ],
)
def test_retry_policy_that_makes_no_sense_is_refused(settings: dict[str, Any]):
    with pytest.raises(InvalidArgument, match=str(next(iter(settings.values())))):
        RetryPolicy(**settings)


@pytest.mark.parametrize(
    ("pushback_ms", "expected"), [(None, None), ("250", 0.25), ("-1", -0.001), ("soon", -1)]
)
def test_failure_reads_the_servers_pushback(pushback_ms: str | None, expected: float | None):
    error = FakeRpcError(StatusCode.RESOURCE_EXHAUSTED, "full", pushback_ms)
    assert failure_of(error) == Failure(StatusCode.RESOURCE_EXHAUSTED, "full", expected)


def test_error_of_an_unreachable_server_names_it():
    error = error_of(Failure(StatusCode.UNAVAILABLE, "refused"), "a:1", 5)
    assert isinstance(error, Unavailable)
    assert "a:1" in error.message
    assert "refused" in error.message

import pytest

from serving.base.errors import InvalidConfig
from serving.core.model_settings import CanarySettings
from serving.core.servable import GateVerdict
from serving.manager.canary import P999_REQUEST_COUNT_MIN, judge, rule_text
from tests.unit.fakes.requests import FakeStatistics

MANY = 10 * P999_REQUEST_COUNT_MIN
NOT_JUDGED = "p999 is not judged below 1000 requests of either version"


def figures(request_count: int, failed_count: int = 0, p999_ns: int = 1_000_000) -> FakeStatistics:
    return FakeStatistics(
        request_count=request_count, failed_count=failed_count, latency_ns_p999=p999_ns
    )


def verdict_on(canary: FakeStatistics, stable: FakeStatistics) -> GateVerdict:
    verdict = judge(CanarySettings(weight=0.1, request_count=100), canary, stable)
    assert verdict is not None
    return verdict


def test_judge_waits_for_the_canarys_requests() -> None:
    settings = CanarySettings(weight=0.1, request_count=100)
    assert judge(settings, figures(99, failed_count=99), figures(MANY)) is None
    assert judge(settings, figures(100), figures(MANY)) is not None


def test_judge_without_request_count_awaits_operator() -> None:
    assert judge(CanarySettings(weight=0.1), figures(MANY), figures(MANY)) is None


def test_judge_passes_equal_figures() -> None:
    verdict = verdict_on(figures(MANY, 5), figures(MANY, 5))
    assert (verdict.is_passed, verdict.reason) == (True, "")


@pytest.mark.parametrize("stable", [figures(0), figures(2), figures(2, 2), figures(MANY, MANY)])
def test_judge_canary_that_always_fails_is_not_passed(
    stable: FakeStatistics,
) -> None:
    verdict = verdict_on(figures(100, failed_count=100), stable)
    assert (verdict.is_passed, verdict.reason) == (False, "all its requests failed")


@pytest.mark.parametrize(
    ("failed_count", "stable_failed_count", "is_passed"),
    [
        (10, 0, True),  # no more than 10 %, and a ratio over 4 requests proves nothing
        (11, 0, False),
        (50, 1, False),  # 50 % and 25 %
        (40, 1, True),  # 40 % and 25 %
    ],
)
def test_judge_share_of_failures_has_a_bound(
    failed_count: int, stable_failed_count: int, is_passed: bool
) -> None:
    verdict = verdict_on(figures(100, failed_count), figures(4, stable_failed_count))
    assert verdict.is_passed is is_passed
    assert ("more than 10%" in verdict.reason) is not is_passed


def test_judge_compares_failure_share_with_stable() -> None:
    assert verdict_on(figures(1000, 2), figures(1000, 1)).is_passed
    verdict = verdict_on(figures(1000, 3), figures(1000, 1))
    assert not verdict.is_passed
    assert verdict.reason == "its share of failures is 3.00 times the stable version's"


def test_judge_single_failure_is_an_accident() -> None:
    assert verdict_on(figures(100, 1), figures(MANY)).is_passed


def test_judge_slow_canary_is_not_passed() -> None:
    verdict = verdict_on(figures(1000, p999_ns=2_100_000), figures(1000))
    assert not verdict.is_passed
    assert verdict.reason == "p999 is 2.10 times the stable version's"


@pytest.mark.parametrize(("count", "stable_count"), [(999, 1000), (1000, 999), (100, 0)])
def test_judge_skips_tail_of_few_requests(count: int, stable_count: int) -> None:
    verdict = verdict_on(figures(count, p999_ns=9_000_000), figures(stable_count))
    assert (verdict.is_passed, verdict.reason) == (True, NOT_JUDGED)


@pytest.mark.parametrize("header", ["", "user", "x-user_id.2"])
def test_canary_settings_header_that_is_a_metadata_key(header: str) -> None:
    assert CanarySettings(header=header).header == header


@pytest.mark.parametrize("header", ["X-User", "user id", "user\n", "größe", ":path"])
def test_canary_settings_refuse_unsendable_header(header: str) -> None:
    with pytest.raises(InvalidConfig, match="gRPC metadata keys are lower-case") as caught:
        CanarySettings(header=header)
    assert repr(header) in caught.value.message


def test_canary_settings_refuse_negative_request_count() -> None:
    assert CanarySettings(request_count=1).request_count == 1
    with pytest.raises(InvalidConfig, match="request_count -1 "):
        CanarySettings(request_count=-1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (CanarySettings(weight=0.1), "a person decides"),
        (
            CanarySettings(weight=0.1, request_count=500, error_ratio_max=1.5),
            "after 500 requests: p999 at most 2 times, failures at most 1.5 times the stable "
            "version's",
        ),
    ],
)
def test_rule_text_names_judge_and_limits(settings: CanarySettings, expected: str) -> None:
    assert rule_text(settings) == expected

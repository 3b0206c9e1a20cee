import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import InvalidConfig
from serving.core.model_settings import CanarySettings
from serving.core.servable import GateVerdict
from serving.fleet.figures import VersionFigures, total
from serving.manager.canary import judge, rule_text
from tests.unit.fakes.requests import FakeStatistics
from tests.unit.worlds.fleet import requests

MANY = 10_000
NOT_JUDGED = "latency is not judged below 100 requests of either version"


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
    verdict = verdict_on(figures(MANY, p999_ns=2_100_000), figures(MANY))
    assert not verdict.is_passed
    assert verdict.reason == (
        "0.2% of its requests take 2.10 times the stable version's p999 or longer"
    )
    assert verdict.figures["slower_ratio"] == 2.1


def with_slow(count: int, slow_count: int) -> VersionFigures:
    """Returns requests of which some take 200 ms, and the others 2 ms."""
    return total([requests(count - slow_count), requests(slow_count, latency_ns=200_000_000)])


@pytest.mark.parametrize(("share", "count"), [(0.2, 100), (0.02, 1_000), (0.002, MANY)])
@pytest.mark.parametrize("is_stable_fewer", [False, True])
def test_judge_forgives_some_slow_requests(
    share: float, count: int, *, is_stable_fewer: bool
) -> None:
    def passes(fewer: int, slow_more: int) -> bool:
        counts = (3 * count, fewer) if is_stable_fewer else (fewer, 3 * count)
        slow_count = round(share * counts[0]) + slow_more
        canary, stable = with_slow(counts[0], slow_count), requests(counts[1])
        verdict = judge(CanarySettings(request_count=1), canary, stable)
        return verdict is not None and verdict.is_passed

    assert passes(count, 0)
    assert not passes(count, 1)
    # One request less, and so few slow ones may be an accident.
    assert passes(count - 1, 1)


@given(
    counts=st.lists(st.integers(0, 5_000), min_size=121, max_size=121),
    canary_factor=st.integers(1, 9),
)
def test_judge_passes_equal_latencies(counts: list[int], canary_factor: int) -> None:
    def figures_of(factor: int) -> VersionFigures:
        return VersionFigures(factor * sum(counts), 0, tuple(factor * count for count in counts))

    verdict = judge(CanarySettings(request_count=1), figures_of(canary_factor), figures_of(1))
    assert verdict is None or (verdict.is_passed and verdict.figures.get("slower_ratio", 0) <= 1)


@pytest.mark.parametrize(("count", "stable_count"), [(99, 100), (100, 99), (100, 0)])
def test_judge_skips_latency_of_few_requests(count: int, stable_count: int) -> None:
    settings = CanarySettings(request_count=99)
    slow = requests(count, latency_ns=200_000_000)
    verdict = judge(settings, slow, requests(stable_count))
    assert verdict is not None
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
            "after 500 requests: slow requests at most 2 times, failures at most 1.5 times the stable "
            "version's",
        ),
    ],
)
def test_rule_text_names_judge_and_limits(settings: CanarySettings, expected: str) -> None:
    assert rule_text(settings) == expected

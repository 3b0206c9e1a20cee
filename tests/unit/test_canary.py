from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fleet.rollout.figures import EDGES_NS, EDGES_PER_DOUBLING, VersionFigures
from serving.base.errors import InvalidConfig
from serving.core.model_settings import CanarySettings
from serving.core.servable import GateVerdict
from serving.data_plane.servables import ServableStatistics
from serving.manager.canary import BEYOND_PER_MILLE, Judgement, judge, progress_text, rule_text
from tests.unit.fakes.requests import FakeStatistics

MANY = 10_000
SETTINGS = CanarySettings(request_count=1)
NOT_JUDGED = "latency is not judged below 100 requests of each version"


def figures(request_count: int, failed_count: int = 0, p999_ns: int = 1_000_000) -> FakeStatistics:
    return FakeStatistics(
        request_count=request_count, failed_count=failed_count, latency_ns_p999=p999_ns
    )


def judgement_on(
    canary: ServableStatistics, stable: ServableStatistics, settings: CanarySettings = SETTINGS
) -> Judgement:
    judgement = judge(settings, canary, stable)
    assert judgement is not None
    return judgement


def verdict_on(canary: ServableStatistics, stable: ServableStatistics) -> GateVerdict:
    return judgement_on(canary, stable).verdict


def test_judge_waits_for_the_canarys_requests() -> None:
    settings = CanarySettings(request_count=100)
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


def latencies(*rows: tuple[int, int]) -> VersionFigures:
    """Returns requests, given as their number and the index of their bucket of latencies."""
    counts = [0] * (len(EDGES_NS) + 1)
    for count, bucket in rows:
        counts[bucket] += count
    return VersionFigures(sum(counts), 0, tuple(counts))


# Buckets with a factor of 2 between each of them and the next one.
FAST, SLOW, SLOWER = 12, 12 + EDGES_PER_DOUBLING, 12 + 2 * EDGES_PER_DOUBLING


def test_judge_slow_canary_is_not_passed() -> None:
    judgement = judgement_on(latencies((MANY, SLOWER)), latencies((MANY, FAST)))
    assert judgement.is_only_slow
    assert not judgement.verdict.is_passed
    assert judgement.verdict.reason == (
        "20.0% of its requests take 4.00 times the stable version's p90 or longer"
    )
    assert judgement.verdict.figures["latency_ratio"] == 4.0


def test_judge_slow_canary_that_fails_is_not_only_slow() -> None:
    failing = replace(latencies((MANY, SLOWER)), failed_count=MANY // 2)
    judgement = judgement_on(failing, latencies((MANY, FAST)))
    assert not judgement.is_only_slow
    assert "50.0% of its requests failed" in judgement.verdict.reason
    assert "4.00 times" in judgement.verdict.reason


@pytest.mark.parametrize(("limit", "is_passed"), [(1.9, False), (2.0, True), (2.1, True)])
def test_judge_has_a_limit_of_latency(limit: float, *, is_passed: bool) -> None:
    # Twice, exactly.
    settings = CanarySettings(request_count=1, latency_ratio_max=limit, error_ratio_max=9)
    judgement = judgement_on(latencies((MANY, SLOW)), latencies((MANY, FAST)), settings)
    assert judgement.verdict.is_passed is is_passed


@pytest.mark.parametrize("quantile", BEYOND_PER_MILLE)
@pytest.mark.parametrize("is_stable_fewer", [False, True])
def test_judge_forgives_some_slow_requests(quantile: str, *, is_stable_fewer: bool) -> None:
    """Twice the share beyond a quantile may be slow, from the count on that shows so much."""
    per_mille = BEYOND_PER_MILLE[quantile]
    count = MANY // per_mille

    def judged(fewer: int, slow_more: int) -> Judgement:
        counts = (3 * count, fewer) if is_stable_fewer else (fewer, 3 * count)
        slow_count = 2 * per_mille * counts[0] // 1_000 + slow_more
        canary = latencies((counts[0] - slow_count, FAST), (slow_count, SLOWER))
        return judgement_on(canary, latencies((counts[1], FAST)))

    assert judged(count, 0).verdict.is_passed
    assert not judged(count, 1).verdict.is_passed
    assert f"times the stable version's {quantile} or" in judged(count, 1).verdict.reason
    # One request less, and so few slow ones may be an accident.
    assert judged(count - 1, 0).verdict.is_passed


def test_judge_excuses_what_the_stable_version_does() -> None:
    stable = latencies((850, FAST), (150, SLOWER))
    canary = latencies((750, FAST), (250, SLOWER))
    assert verdict_on(canary, stable).is_passed
    assert not verdict_on(canary, latencies((950, FAST), (50, SLOWER))).is_passed


def test_judge_says_which_latencies_it_did_not_judge() -> None:
    def reason(count: int) -> str:
        return verdict_on(latencies((count, FAST)), latencies((MANY, FAST))).reason

    up_to = "latency is judged up to {} only: p999 needs 10000 requests of each version"
    assert reason(99) == NOT_JUDGED
    assert reason(100) == up_to.format("p90")
    assert reason(9_999) == up_to.format("p998")
    assert reason(MANY) == ""


def test_judge_takes_a_stable_version_of_no_latency() -> None:
    assert not verdict_on(latencies((MANY, FAST)), figures(MANY, p999_ns=0)).is_passed


@given(
    counts=st.lists(st.integers(0, 5_000), min_size=121, max_size=121),
    canary_factor=st.integers(1, 9),
)
def test_judge_passes_equal_latencies(counts: list[int], canary_factor: int) -> None:
    assume(sum(counts))
    rows = [(count, bucket) for bucket, count in enumerate(counts)]
    canary = latencies(*((canary_factor * count, bucket) for count, bucket in rows))
    verdict = verdict_on(canary, latencies(*rows))
    assert verdict.is_passed
    assert verdict.figures.get("latency_ratio", 0) <= 1


@pytest.mark.parametrize(("count", "stable_count"), [(99, 100), (100, 99), (100, 0)])
def test_judge_skips_latency_of_few_requests(count: int, stable_count: int) -> None:
    verdict = verdict_on(latencies((count, SLOWER)), latencies((stable_count, FAST)))
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
            "after 500 requests: p90 to p999 at most 2 times, failures at most 1.5 times the stable "
            "version's",
        ),
    ],
)
def test_rule_text_names_judge_and_limits(settings: CanarySettings, expected: str) -> None:
    assert rule_text(settings) == expected


@pytest.mark.parametrize(
    ("request_count", "is_doubted", "expected"),
    [
        (0, False, "a person decides"),
        (1_000, False, "142 of 1,000 requests, rule: p90 to p999 at most 2 times"),
        (1_000, True, "it was slow, and is compared once more: 142 of 1,000 requests"),
    ],
)
def test_progress_text_counts_requests(request_count: int, is_doubted: bool, expected: str) -> None:
    settings = CanarySettings(weight=0.1, request_count=request_count)
    assert progress_text(settings, 142, is_doubted=is_doubted).startswith(expected)

"""Judging a canary: whether a version that answers a share of the requests may have them all."""

from serving.base.clock import NS_PER_SECOND
from serving.core.model_settings import CanarySettings, GateMode
from serving.core.servable import GateVerdict
from serving.data_plane.servables import ServableStatistics

PERIOD_SECONDS = 1.0
"""How often a canary that is judged by rule is looked at."""

FAILED_SHARE_MAX = 0.1
"""Of a canary's requests: more is bad whatever `error_ratio_max` allows, unless the stable version
fails nearly as often. A stable version with few requests proves nothing by a ratio."""

STABLE_SHARE_FACTOR_MAX = 0.5
"""A stable version whose share of failures is more than this many times the canary's fails nearly
as often: then it is the requests that are bad."""

P999_REQUEST_COUNT_MIN = 1_000
"""Of either version: below that p999 is the slowest request of all, which is an accident's."""

GATE = "canary"

BY_A_PERSON = "a person decides"


def rule_text(settings: CanarySettings) -> str:
    """Who decides on a canary, and by what, for people. Pure."""
    if settings.request_count == 0:
        return BY_A_PERSON
    return (
        f"after {settings.request_count} requests: p999 at most {settings.p999_ratio_max:g} times, "
        f"failures at most {settings.error_ratio_max:g} times the stable version's"
    )


def judge(
    settings: CanarySettings, canary: ServableStatistics, stable: ServableStatistics
) -> GateVerdict | None:
    """None while the canary has not answered enough requests, or a person decides. Pure.

    `canary` is what that version has answered since it was loaded, or became a canary again,
    `stable` what the version beside it has since then: yesterday's requests say nothing of how it
    fares with today's.
    """
    if settings.request_count == 0 or canary.request_count < settings.request_count:
        return None
    p999_ratio = canary.latency_ns_p999 / max(stable.latency_ns_p999, 1)
    error_ratio = _error_ratio(canary, stable)
    is_p999_known = min(canary.request_count, stable.request_count) >= P999_REQUEST_COUNT_MIN
    faults = _failure_faults(settings, canary, stable)
    if is_p999_known and p999_ratio > settings.p999_ratio_max:
        faults.append(f"p999 is {p999_ratio:.2f} times the stable version's")
    unknown = f"p999 is not judged below {P999_REQUEST_COUNT_MIN} requests of either version"
    return GateVerdict(
        gate=GATE,
        mode=GateMode.ENFORCE.value,
        is_passed=not faults,
        reason="; ".join(faults) if faults or is_p999_known else unknown,
        figures={
            "request_count": canary.request_count,
            "failed_count": canary.failed_count,
            "stable_request_count": stable.request_count,
            "stable_failed_count": stable.failed_count,
            "latency_seconds_p999": canary.latency_ns_p999 / NS_PER_SECOND,
            "stable_latency_seconds_p999": stable.latency_ns_p999 / NS_PER_SECOND,
            "p999_ratio": round(p999_ratio, 4),
            "error_ratio": round(error_ratio, 4),
        },
    )


def _error_ratio(canary: ServableStatistics, stable: ServableStatistics) -> float:
    """A ratio over 0 failures counts one: of as many requests one might have failed."""
    stable_share = max(stable.failed_count, 1) / max(stable.request_count, 1)
    return canary.failed_count / canary.request_count / stable_share


def _failure_faults(
    settings: CanarySettings, canary: ServableStatistics, stable: ServableStatistics
) -> list[str]:
    share = canary.failed_count / canary.request_count
    if share == 1:
        return ["all its requests failed"]
    if canary.failed_count <= 1:
        return []  # A single failure is an accident.
    faults = []
    stable_share = stable.failed_count / max(stable.request_count, 1)
    if share > FAILED_SHARE_MAX and stable_share <= share * STABLE_SHARE_FACTOR_MAX:
        faults.append(
            f"{share:.1%} of its requests failed, more than {FAILED_SHARE_MAX:.0%}, and "
            f"{stable_share:.1%} of the stable version's"
        )
    error_ratio = _error_ratio(canary, stable)
    if error_ratio > settings.error_ratio_max:
        faults.append(f"its share of failures is {error_ratio:.2f} times the stable version's")
    return faults

"""Judges a canary: may a version that answers a share of the requests answer all of them?"""

from serving.base.clock import NS_PER_SECOND
from serving.core.model_settings import CanarySettings, GateMode
from serving.core.servable import GateVerdict
from serving.data_plane.servables import ServableStatistics

PERIOD_SECONDS = 1.0
"""The period at which a canary with a rule is judged."""

FAILED_SHARE_MAX = 0.1
"""The largest share of a canary's requests that may fail, whatever `error_ratio_max` allows. It does
not apply if the stable version fails nearly as often. A ratio over few requests proves nothing."""

STABLE_SHARE_FACTOR_MAX = 0.5
"""The stable version fails nearly as often if its share of failures is more than this many times the
canary's. Then the requests are bad, and not the canary."""

P999_REQUEST_COUNT_MIN = 1_000
"""The least requests of either version for a judgement of p999. Below it p999 is the slowest request
of all, which depends on chance."""

GATE = "canary"

BY_A_PERSON = "a person decides"


def rule_text(settings: CanarySettings) -> str:
    """Returns the rule that decides on a canary, as a text for people. Pure."""
    if settings.request_count == 0:
        return BY_A_PERSON
    return (
        f"after {settings.request_count} requests: p999 at most {settings.p999_ratio_max:g} times, "
        f"failures at most {settings.error_ratio_max:g} times the stable version's"
    )


def judge(
    settings: CanarySettings, canary: ServableStatistics, stable: ServableStatistics
) -> GateVerdict | None:
    """Returns the verdict; None if the canary needs more requests, or a person decides. Pure.

    `canary` counts the requests of that version since it was loaded or became a canary again.
    `stable` counts the requests of the version beside it since then, because the two versions are
    comparable only on the same requests.
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
    """Returns the ratio of the shares of failures. A stable version without failures counts as one."""
    stable_share = max(stable.failed_count, 1) / max(stable.request_count, 1)
    return canary.failed_count / canary.request_count / stable_share


def failed_share_fault(canary: ServableStatistics, stable: ServableStatistics) -> str:
    """Returns the fault of a version that fails all its requests, or too many; "" if it has none. Pure.

    `canary` has requests. The version is not at fault if the stable one fails nearly as often.
    """
    share = canary.failed_count / canary.request_count
    if share == 1:
        return "all its requests failed"
    stable_share = stable.failed_count / max(stable.request_count, 1)
    if share <= FAILED_SHARE_MAX or stable_share > share * STABLE_SHARE_FACTOR_MAX:
        return ""
    fault = f"{share:.1%} of its requests failed, more than {FAILED_SHARE_MAX:.0%}"
    return (
        f"{fault}, and {stable_share:.1%} of the stable version's"
        if stable.request_count
        else fault
    )


def _failure_faults(
    settings: CanarySettings, canary: ServableStatistics, stable: ServableStatistics
) -> list[str]:
    fault = failed_share_fault(canary, stable)
    if canary.failed_count == canary.request_count:
        return [fault]
    if canary.failed_count <= 1:
        return []  # A single failure is an accident.
    faults = [fault] if fault else []
    error_ratio = _error_ratio(canary, stable)
    if error_ratio > settings.error_ratio_max:
        faults.append(f"its share of failures is {error_ratio:.2f} times the stable version's")
    return faults

"""Judging a canary: whether a version that answers a share of the requests may have them all."""

from serving.clock import NS_PER_SECOND
from serving.model_settings import CanarySettings, GateMode
from serving.servable import GateVerdict, ServableStatistics

PERIOD_SECONDS = 1.0
"""How often a canary that is judged by rule is looked at."""

GATE = "canary"


def judge(
    settings: CanarySettings, canary: ServableStatistics, stable: ServableStatistics
) -> GateVerdict | None:
    """None while the canary has not answered enough requests, or a person decides. Pure.

    Both statistics are since each version was loaded. A ratio over 0 failures counts one: of as
    many requests as the stable version has answered one might have failed.
    """
    if settings.request_count == 0 or canary.request_count < settings.request_count:
        return None
    p999_ratio = canary.latency_ns_p999 / max(stable.latency_ns_p999, 1)
    stable_share = max(stable.failed_count, 1) / max(stable.request_count, 1)
    error_ratio = canary.failed_count / canary.request_count / stable_share
    reasons = []
    # Without a request to compare with there is no tail that it could be worse than.
    if stable.request_count and p999_ratio > settings.p999_ratio_max:
        reasons.append(f"p999 is {p999_ratio:.2f} times the stable version's")
    if canary.failed_count > 1 and error_ratio > settings.error_ratio_max:
        reasons.append(f"its share of failures is {error_ratio:.2f} times the stable version's")
    return GateVerdict(
        gate=GATE,
        mode=GateMode.ENFORCE.value,
        is_passed=not reasons,
        reason="; ".join(reasons),
        figures={
            "request_count": canary.request_count,
            "failed_count": canary.failed_count,
            "latency_seconds_p999": canary.latency_ns_p999 / NS_PER_SECOND,
            "stable_latency_seconds_p999": stable.latency_ns_p999 / NS_PER_SECOND,
            "p999_ratio": round(p999_ratio, 4),
            "error_ratio": round(error_ratio, 4),
        },
    )

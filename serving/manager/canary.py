"""Judges a canary: may a version that answers a share of the requests answer all of them?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serving.base.clock import NS_PER_SECOND
from serving.core.model_settings import CanarySettings, GateMode
from serving.core.servable import GateVerdict
from serving.data_plane.servables import ServableStatistics

PERIOD_SECONDS = 1.0
"""The period at which a canary with a rule is judged."""

FAILED_SHARE_MAX = 0.1
"""The largest share of a canary's requests that may fail, whatever `error_ratio_max` allows.

It does not apply if the stable version fails nearly as often. A ratio over few requests says nothing.
"""

STABLE_SHARE_FACTOR_MAX = 0.5
"""The stable version fails nearly as often if its share of failures is more than this many times the
canary's.

In that case the requests are bad, and not the canary.
"""

BEYOND_PER_MILLE = {
    "p90": 100,
    "p95": 50,
    "p98": 20,
    "p99": 10,
    "p995": 5,
    "p998": 2,
    "p999": 1,
}
"""The quantiles that are compared, and the requests beyond each of them, in thousandths of all."""

BEYOND_COUNT_MIN = 10
"""The least requests of each version beyond a quantile that is compared. Fewer may be slow by chance."""

SLOW_SHARE_FACTOR = 2
"""The canary may have this many times the share of slow requests.

If a machine pauses, many requests in a row are slow, so the share differs even between two servers with the
same version.
"""

LATENCY_REQUEST_COUNT_MIN = BEYOND_COUNT_MIN * 1_000 // max(BEYOND_PER_MILLE.values())
"""The least requests of each version for a judgement of latency: then p90 is compared."""

P999_REQUEST_COUNT_MIN = BEYOND_COUNT_MIN * 1_000 // min(BEYOND_PER_MILLE.values())
"""The least requests of each version for a judgement of p999."""

GATE = "canary"

BY_A_PERSON = "a person decides"


def rule_text(settings: CanarySettings) -> str:
    """The rule that decides on a canary, as a text for people. Pure."""
    if settings.request_count == 0:
        return BY_A_PERSON
    return f"after {settings.request_count} requests: {_limits_text(settings)}"


def progress_text(settings: CanarySettings, answered_count: int, *, is_doubted: bool) -> str:
    """The progress of a canary towards its judgement, and the rule, as a text for people. Pure.

    `answered_count` is the number of requests that the judgement would rest on now.
    """
    if settings.request_count == 0:
        return BY_A_PERSON
    doubt = "it was slow, and is compared once more: " if is_doubted else ""
    return (
        f"{doubt}{answered_count:,} of {settings.request_count:,} requests, rule: "
        f"{_limits_text(settings)}"
    )


def _limits_text(settings: CanarySettings) -> str:
    return (
        f"p90 to p999 at most {settings.latency_ratio_max:g} times, failures at most "
        f"{settings.error_ratio_max:g} times the stable version's"
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on a canary.

    If the canary `is_only_slow`, the verdict needs a second judgement on other requests, because the
    machine may have paused.
    """

    verdict: GateVerdict
    is_only_slow: bool = False

    @property
    def is_of_latency(self) -> bool:
        """True if there were enough requests to judge latency.

        A doubt about a slow canary ends only then.
        """
        return "latency_ratio" in self.verdict.figures


def judge(
    settings: CanarySettings, canary: ServableStatistics, stable: ServableStatistics
) -> Judgement | None:
    """Judges the canary; None if it needs more requests, or if a person decides. Pure.

    `canary` counts the requests of that version since it was loaded or became a canary again.
    `stable` counts the requests of the version beside it since then, because the two versions are
    comparable only on the same requests.
    """
    if settings.request_count == 0 or canary.request_count < settings.request_count:
        return None
    error_ratio = _error_ratio(canary, stable)
    figures = {
        "request_count": canary.request_count,
        "failed_count": canary.failed_count,
        "stable_request_count": stable.request_count,
        "stable_failed_count": stable.failed_count,
        "latency_seconds_p999": canary.latency_ns_p999 / NS_PER_SECOND,
        "stable_latency_seconds_p999": stable.latency_ns_p999 / NS_PER_SECOND,
        "error_ratio": round(error_ratio, 4),
    }
    faults = _failure_faults(settings, canary, stable)
    compared = [*_compared(canary, stable)]
    is_only_slow = False
    if compared:
        # If several are equal, the first one counts, because it names the most requests.
        slowest = max(compared, key=lambda row: row.ratio)
        figures["latency_ratio"] = round(slowest.ratio, 4)
        if slowest.ratio > settings.latency_ratio_max:
            is_only_slow = not faults
            faults.append(str(slowest))
    verdict = GateVerdict(
        gate=GATE,
        mode=GateMode.ENFORCE.value,
        is_passed=not faults,
        reason="; ".join(faults) if faults else _not_judged(compared),
        figures=figures,
    )
    return Judgement(verdict, is_only_slow)


@dataclass(frozen=True, slots=True)
class _Compared:
    """The latency of a canary's slow requests, over a quantile of the stable version."""

    ratio: float
    # A key of BEYOND_PER_MILLE.
    quantile: str

    def __str__(self) -> str:
        share = SLOW_SHARE_FACTOR * BEYOND_PER_MILLE[self.quantile] / 1_000
        return (
            f"{share:.1%} of its requests take {self.ratio:.2f} times the stable version's "
            f"{self.quantile} or longer"
        )


def _compared(canary: ServableStatistics, stable: ServableStatistics) -> Iterator[_Compared]:
    """Yields a comparison with each quantile that leaves BEYOND_COUNT_MIN requests beyond it.

    For the canary, SLOW_SHARE_FACTOR times as many requests may lie beyond. So a canary is slow only if it
    has both: slower requests, and more of them.
    """
    request_count = min(canary.request_count, stable.request_count)
    for quantile, per_mille in BEYOND_PER_MILLE.items():
        if request_count * per_mille >= 1_000 * BEYOND_COUNT_MIN:
            share = per_mille / 1_000
            slow_ns = canary.latency_ns_at(1 - SLOW_SHARE_FACTOR * share)
            yield _Compared(slow_ns / max(stable.latency_ns_at(1 - share), 1), quantile)


def _not_judged(compared: Sequence[_Compared]) -> str:
    """A text on the latencies that were not judged; "" if all were."""
    if not compared:
        return f"latency is not judged below {LATENCY_REQUEST_COUNT_MIN} requests of each version"
    if len(compared) == len(BEYOND_PER_MILLE):
        return ""
    return (
        f"latency is judged up to {compared[-1].quantile} only: p999 needs {P999_REQUEST_COUNT_MIN} "
        "requests of each version"
    )


def _error_ratio(canary: ServableStatistics, stable: ServableStatistics) -> float:
    """The ratio of the two shares of failures.

    A stable version without failures counts as if it had one.
    """
    stable_share = max(stable.failed_count, 1) / max(stable.request_count, 1)
    return canary.failed_count / canary.request_count / stable_share


def failed_share_fault(canary: ServableStatistics, stable: ServableStatistics) -> str:
    """The fault of a version that fails all its requests, or too many; "" if it has none. Pure.

    `canary` must have requests. The version is not at fault if the stable one fails nearly as often.
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
        return []  # One failure may be an accident.
    faults = [fault] if fault else []
    error_ratio = _error_ratio(canary, stable)
    if error_ratio > settings.error_ratio_max:
        faults.append(f"its share of failures is {error_ratio:.2f} times the stable version's")
    return faults

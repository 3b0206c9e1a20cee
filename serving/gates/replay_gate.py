"""Decides whether a version answers enough of the replayed live requests. Pure.

A request counts as failed if the new version refuses it twice and the predecessor answers it in
between. So neither a request that is wrong for both versions nor a passing fault counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.base.errors import MillpondError, StatusCode
from serving.core.model_settings import GateSettings
from serving.core.servable import GateVerdict
from serving.gates.gates import Gate, first_few, skipped, verdict_of

# These codes end a request for reasons outside of the model.
_CODES_OF_OTHERS = frozenset(
    {StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE}
)


@dataclass(frozen=True, kw_only=True)
class ReplayCounts:
    """Replayed requests: the new version answered `answered_count` and failed `failed_count`.

    Of the failed requests, `asked_count` were sent to the predecessor. `errors` has one error of the new
    version for each request that only the predecessor answers.
    """

    answered_count: int
    failed_count: int
    asked_count: int
    errors: Sequence[str]

    @property
    def is_estimate(self) -> bool:
        """True if only a part of the failed requests was sent to the predecessor."""
        return self.asked_count < self.failed_count

    @property
    def confirmed_count(self) -> float:
        """The failed requests that only the predecessor answers.

        Extrapolated from the requests that were sent to the predecessor to all failed requests.
        """
        if self.asked_count == 0:
            return 0
        return len(self.errors) * self.failed_count / self.asked_count

    @property
    def request_count(self) -> float:
        """The number of requests that the share of failures refers to."""
        return self.answered_count + self.confirmed_count


def is_failure_of_model(error: MillpondError) -> bool:
    """True if `error` can be the model's fault."""
    return error.code not in _CODES_OF_OTHERS


def self_warm_up_verdict(counts: ReplayCounts, settings: GateSettings) -> GateVerdict:
    """The verdict on whether the version answers any replayed request at all."""
    mode, figures = settings.self_warm_up, _figures(counts)
    if counts.request_count == 0:
        return skipped(Gate.SELF_WARM_UP, mode, _NO_REQUESTS, figures)
    if counts.answered_count:
        return verdict_of(Gate.SELF_WARM_UP, mode, [], figures)
    fault = (
        f"it fails all {len(counts.errors)} replayed live requests that its predecessor answers: "
        f"{first_few(counts.errors)}"
    )
    return verdict_of(Gate.SELF_WARM_UP, mode, [fault], figures)


def failed_share_verdict(counts: ReplayCounts, settings: GateSettings) -> GateVerdict:
    """The verdict on the share of replayed requests that only the predecessor answers."""
    mode, figures = settings.failed_share, _figures(counts)
    count_min = settings.failed_share_request_count_min
    if counts.request_count < max(count_min, 1):
        why = (
            f"{round(counts.request_count)} live requests were replayed, and {count_min} are needed"
        )
        return skipped(Gate.FAILED_SHARE, mode, why, figures)
    share = counts.confirmed_count / counts.request_count
    if share <= settings.failed_share_max:
        return verdict_of(Gate.FAILED_SHARE, mode, [], figures)
    fault = (
        f"it fails {_shares_text(counts)}, and at most {settings.failed_share_max:.3g} of them may "
        f"fail: {first_few(counts.errors)}"
    )
    return verdict_of(Gate.FAILED_SHARE, mode, [fault], figures)


_NO_REQUESTS = "no live request was replayed that the predecessor answers"


def _shares_text(counts: ReplayCounts) -> str:
    text = (
        f"{round(counts.confirmed_count)} of {round(counts.request_count)} replayed live requests "
        "that its predecessor answers"
    )
    if not counts.is_estimate:
        return text
    return f"about {text} ({counts.asked_count} of {counts.failed_count} were sent to it in time)"


def _figures(counts: ReplayCounts) -> dict[str, float]:
    figures: dict[str, float] = {
        "request_count": round(counts.request_count),
        "failed_count": round(counts.confirmed_count),
    }
    # `asked_count` marks the figures as an estimate.
    return figures | ({"asked_count": counts.asked_count} if counts.is_estimate else {})

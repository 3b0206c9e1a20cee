"""Decides whether a version answers enough of the replayed live requests. Pure.

A request counts as failed if the new version refuses it twice and the predecessor answers it in
between. So neither a request that is wrong for both versions nor a passing fault counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.errors import MillpondError, StatusCode
from serving.gates import Gate, first_few, skipped, verdict_of
from serving.model_settings import GateSettings
from serving.servable import GateVerdict

# These codes end a request for reasons outside of the model.
_CODES_OF_OTHERS = frozenset(
    {StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE}
)


@dataclass(frozen=True, kw_only=True)
class ReplayCounts:
    """Replayed requests: `answered_count` by the new version, and one of `errors` for each request
    that only the predecessor answers.
    """

    answered_count: int
    errors: Sequence[str]

    @property
    def request_count(self) -> int:
        """The requests that the share of failures is taken of."""
        return self.answered_count + len(self.errors)


def is_failure_of_model(error: MillpondError) -> bool:
    """Returns whether `error` can be the model's fault."""
    return error.code not in _CODES_OF_OTHERS


def self_warm_up_verdict(counts: ReplayCounts, settings: GateSettings) -> GateVerdict:
    """Returns the verdict on a version of which every replayed request may have failed."""
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
    """Returns the verdict on the share of replayed requests that only the predecessor answers."""
    mode, figures = settings.failed_share, _figures(counts)
    count_min = settings.failed_share_request_count_min
    if counts.request_count < max(count_min, 1):
        why = f"{counts.request_count} live requests were replayed, and {count_min} are needed"
        return skipped(Gate.FAILED_SHARE, mode, why, figures)
    share = len(counts.errors) / counts.request_count
    if share <= settings.failed_share_max:
        return verdict_of(Gate.FAILED_SHARE, mode, [], figures)
    fault = (
        f"it fails {len(counts.errors)} of {counts.request_count} replayed live requests that its "
        f"predecessor answers, and at most {settings.failed_share_max:.3g} of them may fail: "
        f"{first_few(counts.errors)}"
    )
    return verdict_of(Gate.FAILED_SHARE, mode, [fault], figures)


_NO_REQUESTS = "no live request was replayed that the predecessor answers"


def _figures(counts: ReplayCounts) -> dict[str, float]:
    return {"request_count": counts.request_count, "failed_count": len(counts.errors)}

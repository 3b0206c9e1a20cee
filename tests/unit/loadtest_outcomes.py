"""Outcomes of the load tests' generator, made from plain numbers."""

from collections.abc import Sequence

import numpy as np

from loadtest.plan.plan import Outcome, Reply

MS = 1_000_000


def outcome_of(
    requests: Sequence[tuple[float, float, float]],
    codes: Sequence[int] = (),
    replies: Sequence[Reply] = (),
    reply_of: Sequence[int] = (),
) -> Outcome:
    """Returns an outcome with the scheduled, issued and completed ms of each request; the start is 0."""
    instants = np.array(requests, float).reshape(-1, 3) * MS
    scheduled_ns, issued_ns, completed_ns = instants.astype(np.int64).T
    return Outcome(
        scheduled_ns=scheduled_ns,
        issued_ns=issued_ns,
        completed_ns=completed_ns,
        codes=np.array(codes or [0] * len(requests), np.int32),
        reply_of=np.array(reply_of or [0] * len(requests), np.int32),
        replies=replies,
        started_ns=0,
        cpu_ns=0,
        is_realtime=True,
    )


def steady_outcome(request_count: int, latency_ms: float = 1) -> Outcome:
    """Returns an outcome with a request each ms, issued at once and answered after `latency_ms`."""
    return outcome_of([(ms, ms, ms + latency_ms) for ms in range(request_count)])

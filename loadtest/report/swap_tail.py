"""The latencies of each swap of a run, and over its time. Pure."""

from typing import Any

import numpy as np

from loadtest.measure.latency import NS_PER_MS, figures, ratio
from loadtest.measure.outcome_figures import latencies_ns
from loadtest.measure.scenario import SwapRun
from loadtest.measure.timeline import (
    held_up_by_generator,
    late_stretches,
    under_way_in,
    windows,
)
from loadtest.plan.plan import Outcome
from serving.base.clock import NS_PER_SECOND

_STEP_SECONDS = 0.1


def swaps_over_steady(run: SwapRun) -> list[dict[str, Any]]:
    """The figures of each swap's requests, and its p99 and p999 over those of the requests outside of all swaps.

    Requests that the generator held up are left out.
    """
    outcome = run.outcome
    is_clean = ~held_up_by_generator(outcome, late_stretches(outcome))
    latency_ns = latencies_ns(outcome)
    is_steady = windows(outcome, run.spans, run.steady_from_ns)["steady"]
    steady = figures(latency_ns[is_steady & is_clean])
    each = []
    for spans in run.spans:
        shown = figures(latency_ns[under_way_in(outcome, [spans.swap]) & is_clean])
        ratios = {f"ratio_{key}": ratio(shown, steady, f"{key}_ms") for key in ("p99", "p999")}
        at_ns = spans.load.begin_ns - outcome.started_ns
        at_seconds = round(at_ns / NS_PER_SECOND, 2)
        each.append({"version": spans.version, "at_seconds": at_seconds, **shown, **ratios})
    return each


def latencies_over_time(outcome: Outcome) -> dict[str, Any]:
    """The p50, the p99 and the longest latency of the requests that were due in each tenth of a second.

    The p99 is by nearest rank, of however many requests there are.
    """
    latency_ns = latencies_ns(outcome)
    step_ns = round(_STEP_SECONDS * NS_PER_SECOND)
    steps = (outcome.scheduled_ns - outcome.started_ns) // step_ns
    shown: dict[str, Any] = {"step_seconds": _STEP_SECONDS, "count": [], "p50_ms": []}
    shown |= {"p99_ms": [], "max_ms": []}
    for step in range(int(steps.max(initial=-1)) + 1):
        ordered = np.sort(latency_ns[steps == step])
        shown["count"].append(len(ordered))
        for key, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0)):
            rank = max(int(np.ceil(len(ordered) * share)), 1)
            value = round(int(ordered[rank - 1]) / NS_PER_MS, 3) if len(ordered) else None
            shown[key].append(value)
    return shown

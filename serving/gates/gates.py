"""Gates: the checks that a version must pass before it is AVAILABLE. Pure: from figures to verdicts.

`gate_runs.py` collects the figures. A fault is a short text that names one problem; a gate without
faults is passed. The predecessor is the version that serves while the new version waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from math import ceil
from statistics import median

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import FailedPrecondition, MillpondError
from serving.core.model_settings import GateMode, GateSettings
from serving.core.servable import GateVerdict, ServableId
from serving.gates.tensor_compare import Comparison, Tolerance

# A difference of this size between two versions' p99s, or two runs of a record, is noise: it may come
# from a scheduler tick or a cache miss.
LATENCY_NOISE_SECONDS = 0.0002

# Values this near to 0 count as 0, because relative differences mean nothing for them.
DRIFT_ABSOLUTE_TOLERANCE = 1e-6

# The fewest runs of one record before a version can be found not to have converged: the first run, and two
# groups of three runs to compare, because a run of each group may have been interrupted.
CONVERGENCE_RUN_COUNT_MIN = 7

# The most runs in each of the two groups that are compared: earlier runs no longer matter.
_WINDOW_RUN_COUNT_MAX = 5

# Records are run again while they get faster by more than a tenth. A smaller gain is not worth a longer
# swap.
CONVERGENCE_RATIO_ENOUGH = 0.9

# The most faults that a reason lists, because it is shown in a log line and in a status.
_FAULT_COUNT_MAX = 3


class Gate(Enum):
    """The gates, in the order in which a version meets them. `GateSettings` has a mode for each."""

    WARM_UP = "warm_up"
    CONVERGENCE = "convergence"
    SIGNATURE = "signature"
    SHAPES = "shapes"
    SELF_WARM_UP = "self_warm_up"
    FAILED_SHARE = "failed_share"
    OUTPUTS = "outputs"
    FINITE = "finite"
    CONSTANT = "constant"
    GOLDEN = "golden"
    LATENCY = "latency"
    DRIFT = "drift"
    SHADOW = "shadow"


_SHARED_SETTINGS = {
    # If the golden gate is on, requests with golden answers are not compared with the predecessor.
    Gate.DRIFT: ("golden",),
    Gate.SHADOW: ("golden", "drift_tolerance", "drift_share_max", "latency_ratio_max"),
}


def mode_of(gate: Gate, settings: GateSettings) -> GateMode:
    """The mode of `gate`, which decides the consequence if it is not passed."""
    mode: GateMode = getattr(settings, gate.value)
    return mode


def settings_of(gate: Gate, settings: GateSettings) -> dict[str, object]:
    """The settings, by name, that decide whether `gate` is passed.

    They are the settings whose names begin with the gate's name, and settings that it shares with other
    gates.
    """
    shared = _SHARED_SETTINGS.get(gate, ())
    return {
        item.name: getattr(settings, item.name)
        for item in fields(settings)
        if item.name in shared or item.name == gate.value or item.name.startswith(f"{gate.value}_")
    }


def verdict_of(
    gate: Gate,
    mode: GateMode,
    faults: Iterable[str],
    figures: Mapping[str, float] | None = None,
) -> GateVerdict:
    """Makes the verdict: passed without faults, which are its reason otherwise."""
    found = list(faults)
    return GateVerdict(
        gate=gate.value,
        mode=mode.value,
        is_passed=not found,
        reason="; ".join(found),
        figures=figures or {},
    )


def skipped(
    gate: Gate, mode: GateMode, why: str, figures: Mapping[str, float] | None = None
) -> GateVerdict:
    """A passed verdict for a gate that could not be judged."""
    return GateVerdict(
        gate=gate.value,
        mode=mode.value,
        is_passed=True,
        reason=f"skipped: {why}",
        figures=figures or {},
    )


def refusal(servable_id: ServableId, verdicts: Iterable[GateVerdict]) -> FailedPrecondition | None:
    """The error with the enforced gates that the version did not pass, or None."""
    failed = [
        f"gate {verdict.gate!r}: {verdict.reason}"
        for verdict in verdicts
        if verdict.mode == GateMode.ENFORCE.value and not verdict.is_passed
    ]
    if not failed:
        return None
    return FailedPrecondition(
        f"{servable_id} did not pass {'; '.join(failed)}; export it again, or set the gate to "
        f"{GateMode.WARN.value!r} in --model_settings_file"
    )


# --- Warm-up --------------------------------------------------------------------------------------


def warm_up_faults(faults: Sequence[str]) -> list[str]:
    """Joins the faults of the warm-up records, and of their file, into one."""
    return [first_few(faults)] if faults else []


def convergence_ratio(durations_ns: Iterable[Sequence[int]]) -> float | None:
    """The time of the last runs of the warm-up divided by that of earlier runs.

    A record's ratio is the median of its last runs divided by the median of as many runs before them. The
    result is the median over the records. Near 1, further runs would not make the version faster. Far
    below 1, it was still getting faster. None if no record has two runs besides its first one, which does
    not count.
    """
    ratios = [last / max(earlier, 1) for earlier, last in _windows(durations_ns)]
    return median(ratios) if ratios else None


def is_worth_another_pass(durations_ns: Sequence[Sequence[int]], ratio_min: float) -> bool:
    """True if the records still get faster, or were not run often enough to decide."""
    return not _is_steady(durations_ns, max(ratio_min, CONVERGENCE_RATIO_ENOUGH))


def _is_steady(durations_ns: Sequence[Sequence[int]], ratio_min: float) -> bool:
    ratio = convergence_ratio(durations_ns)
    if ratio is None:
        return False
    gained_ns = median(earlier - last for earlier, last in _windows(durations_ns))
    return ratio >= ratio_min or gained_ns <= LATENCY_NOISE_SECONDS * NS_PER_SECOND


def convergence_verdict(
    durations_ns: Sequence[Sequence[int]],
    settings: GateSettings,
    figures: Mapping[str, float],
) -> GateVerdict:
    """The verdict of the gate `convergence` on the runs of each record. Adds the ratio to `figures`.

    The version fails it if its latency still falls. The gate is skipped if there were too few runs.
    """
    mode, ratio_min = settings.convergence, settings.convergence_ratio_min
    ratio = convergence_ratio(durations_ns)
    figures = {**figures, **({} if ratio is None else {"convergence_ratio": ratio})}
    if _is_steady(durations_ns, ratio_min):
        return verdict_of(Gate.CONVERGENCE, mode, [], figures)
    run_count = max(map(len, durations_ns), default=0)
    if run_count < CONVERGENCE_RUN_COUNT_MIN or ratio is None:
        why = (
            f"{CONVERGENCE_RUN_COUNT_MIN} runs of a record are needed, but there was only time for "
            f"{run_count} (convergence_seconds)"
        )
        return skipped(Gate.CONVERGENCE, mode, why, figures)
    fault = (
        f"after {run_count} runs of its records the version still gets faster: the last took "
        f"{ratio:.3g} of the time of the earlier runs, and at least {ratio_min:g} is expected; raise "
        "convergence_seconds or --num_request_iterations_for_warmup"
    )
    return verdict_of(Gate.CONVERGENCE, mode, [fault], figures)


def _windows(durations_ns: Iterable[Sequence[int]]) -> list[tuple[float, float]]:
    """Two medians for each record: that of its earlier runs, and that of as many last runs."""
    windows = []
    for runs in durations_ns:
        count = min((len(runs) - 1) // 2, _WINDOW_RUN_COUNT_MAX)
        if count > 0:
            windows.append((median(runs[-2 * count : -count]), median(runs[-count:])))
    return windows


# --- Latency --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The latency of one request on both versions, each the fastest of its rounds.

    The fastest round counts, because in a slow round the background thread may have lost its core, whatever
    the version is.
    """

    predecessor_ns: int
    candidate_ns: int

    def or_faster(self, other: "Latency") -> "Latency":
        """The faster of two rounds for each version."""
        return Latency(
            predecessor_ns=min(self.predecessor_ns, other.predecessor_ns),
            candidate_ns=min(self.candidate_ns, other.candidate_ns),
        )


def latency_figures(latencies: Sequence[Latency]) -> dict[str, float]:
    """p99 over the requests. With fewer than 100 requests it is the slowest of them."""
    if not latencies:
        return {"request_count": 0}
    predecessor = _p99_seconds([latency.predecessor_ns for latency in latencies])
    candidate = _p99_seconds([latency.candidate_ns for latency in latencies])
    return {
        "request_count": len(latencies),
        "p99_seconds": candidate,
        "predecessor_p99_seconds": predecessor,
        # If the predecessor is faster than the clock's resolution, its time counts as 1 ns.
        "p99_ratio": candidate / max(predecessor, 1 / NS_PER_SECOND),
    }


def latency_faults(latencies: Sequence[Latency], ratio_max: float) -> list[str]:
    """A fault if p99 is more than `ratio_max` times the predecessor's, and not by noise alone."""
    if not latencies:
        return []
    figures = latency_figures(latencies)
    now, was = figures["p99_seconds"], figures["predecessor_p99_seconds"]
    if now <= was * ratio_max or now - was <= LATENCY_NOISE_SECONDS:
        return []
    return [
        f"p99 over {len(latencies)} requests is {now * 1e3:.3g} ms, {figures['p99_ratio']:.3g} times "
        f"the predecessor's {was * 1e3:.3g} ms, and at most {ratio_max:g} times is allowed"
    ]


def _p99_seconds(durations_ns: Sequence[int]) -> float:
    return sorted(durations_ns)[ceil(0.99 * len(durations_ns)) - 1] / NS_PER_SECOND


# --- Answers --------------------------------------------------------------------------------------


def golden_tolerance(settings: GateSettings) -> Tolerance:
    """The allowed difference from a golden answer."""
    return Tolerance(
        relative=settings.golden_relative_tolerance, absolute=settings.golden_absolute_tolerance
    )


def drift_tolerance(settings: GateSettings) -> Tolerance:
    """The difference from the predecessor's value up to which a value counts as the same."""
    return Tolerance(relative=settings.drift_tolerance, absolute=DRIFT_ABSOLUTE_TOLERANCE)


def golden_faults(comparisons: Sequence[Comparison]) -> list[str]:
    """The differences from the golden answers; each difference is a fault."""
    wrong = [_golden_fault(comparison) for comparison in comparisons]
    texts = [text for text in wrong if text]
    if not texts:
        return []
    return [f"{len(texts)} of {len(comparisons)} golden answers differ: {first_few(texts)}"]


def _golden_fault(comparison: Comparison) -> str:
    added = [f"output {name!r} is new" for name in comparison.added_outputs]
    changed = [comparison.first_change] if comparison.first_change else []
    return ", ".join([*comparison.faults, *added, *changed])


def golden_figures(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The number of compared answers, and of answers that differ."""
    failed_count = sum(bool(_golden_fault(comparison)) for comparison in comparisons)
    return {"golden_count": len(comparisons), "failed_count": failed_count}


def drift_faults(comparisons: Sequence[Comparison], share_max: float) -> list[str]:
    """The differences that retraining does not explain, and too large a share of changes.

    The share of changed values is a fault above `share_max`. An additional output is not a fault,
    because existing clients do not request it.
    """
    faulty = [", ".join(comparison.faults) for comparison in comparisons if comparison.faults]
    found = []
    if faulty:
        found.append(f"{len(faulty)} of {len(comparisons)} answers: {first_few(faulty)}")
    changed_ratio = drift_figures(comparisons)["changed_ratio"]
    if changed_ratio > share_max:
        first = next(c.first_change for c in comparisons if c.first_change)
        found.append(
            f"{changed_ratio:.1%} of the values changed, and at most {share_max:.1%} may: {first}"
        )
    return found


def drift_figures(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The numbers of answers and values that were compared, and the share of changed values."""
    value_count = sum(comparison.value_count for comparison in comparisons)
    changed_count = sum(comparison.changed_count for comparison in comparisons)
    return {
        "answer_count": len(comparisons),
        "value_count": value_count,
        "changed_ratio": changed_count / value_count if value_count else 0.0,
    }


def refused(error: MillpondError) -> Comparison:
    """The comparison for a request that got an error instead of an answer."""
    return Comparison(faults=(f"refused: {error}",))


def first_few(texts: Sequence[str]) -> str:
    """Joins the first few distinct `texts` and the number of the others."""
    different = list(dict.fromkeys(texts))
    shown = " / ".join(different[:_FAULT_COUNT_MAX])
    more_count = len(different) - _FAULT_COUNT_MAX
    return f"{shown} / and {more_count} more" if more_count > 0 else shown

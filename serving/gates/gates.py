"""Gates: what a version must pass before it is AVAILABLE. From what was seen to a verdict; pure.

`gate_runs.py` does the looking. A fault is one short text of what is wrong; a gate without any is
passed. The predecessor is the version that serves while the new one waits.
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

# Between two versions' p99s, or two runs of a record: a scheduler's tick or a cache miss more or less
# is no slow model.
LATENCY_NOISE_SECONDS = 0.0002

# Values this near to 0 are 0 to whoever compares relative differences.
DRIFT_ABSOLUTE_TOLERANCE = 1e-6

# Of one record, before a version is said not to have converged: the first, and three each to compare,
# of which one may have been interrupted.
CONVERGENCE_RUN_COUNT_MIN = 7

# To compare at most: what was slow longer ago is over.
_WINDOW_RUN_COUNT_MAX = 5

# Records are run again while that gains more than a tenth: less is not worth the time of a swap.
CONVERGENCE_RATIO_ENOUGH = 0.9

# A reason stands in a log line and in a status: the first few faults of a kind name the rest.
_FAULT_COUNT_MAX = 3


class Gate(Enum):
    """The gates, in the order in which a version meets them. `GateSettings` has a mode for each."""

    WARM_UP = "warm_up"
    CONVERGENCE = "convergence"
    SIGNATURE = "signature"
    SHAPES = "shapes"
    SELF_WARM_UP = "self_warm_up"
    FAILED_SHARE = "failed_share"
    GOLDEN = "golden"
    LATENCY = "latency"
    DRIFT = "drift"
    SHADOW = "shadow"


_SHARED_SETTINGS = {
    # A golden answer that is looked at is not compared with the predecessor's.
    Gate.DRIFT: ("golden",),
    Gate.SHADOW: ("golden", "drift_tolerance", "drift_share_max", "latency_ratio_max"),
}


def mode_of(gate: Gate, settings: GateSettings) -> GateMode:
    """What comes of `gate` not being passed."""
    mode: GateMode = getattr(settings, gate.value)
    return mode


def settings_of(gate: Gate, settings: GateSettings) -> dict[str, object]:
    """What decides whether `gate` is passed, by name: its own settings, which begin with its name,
    and those that it shares with another.
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
    """Passed where there are no faults; they are the reason where there are."""
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
    """Passed, because there is nothing to hold against the version."""
    return GateVerdict(
        gate=gate.value,
        mode=mode.value,
        is_passed=True,
        reason=f"skipped: {why}",
        figures=figures or {},
    )


def refusal(servable_id: ServableId, verdicts: Iterable[GateVerdict]) -> FailedPrecondition | None:
    """Why the version may not serve: the enforced gates that it did not pass. None where it may."""
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
    """One fault of all that the records, and their file, gave rise to."""
    return [first_few(faults)] if faults else []


def convergence_ratio(durations_ns: Iterable[Sequence[int]]) -> float | None:
    """How settled a warm-up left the version: the median of each record's last runs over that of as
    many before them, and of that the median over the records.

    Around 1: further runs would gain nothing. Far below: the last were still gaining. None where no
    record was run twice after its first run, which is the one that a warm-up is for.
    """
    ratios = [last / max(earlier, 1) for earlier, last in _windows(durations_ns)]
    return median(ratios) if ratios else None


def is_worth_another_pass(durations_ns: Sequence[Sequence[int]], ratio_min: float) -> bool:
    """Whether the records still get faster by being run, or were not run often enough to tell."""
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
    """Of the runs of each record, after as many as there was time for. `figures` tell how many.

    Not passed where latency still falls; skipped where too few runs could tell that.
    """
    mode, ratio_min = settings.convergence, settings.convergence_ratio_min
    ratio = convergence_ratio(durations_ns)
    figures = {**figures, **({} if ratio is None else {"convergence_ratio": ratio})}
    if _is_steady(durations_ns, ratio_min):
        return verdict_of(Gate.CONVERGENCE, mode, [], figures)
    run_count = max(map(len, durations_ns), default=0)
    if run_count < CONVERGENCE_RUN_COUNT_MIN or ratio is None:
        why = f"{CONVERGENCE_RUN_COUNT_MIN} runs of a record would tell, and there was time for"
        return skipped(Gate.CONVERGENCE, mode, f"{why} {run_count} (convergence_seconds)", figures)
    fault = (
        f"after {run_count} runs of its records the version still gets faster: the last took "
        f"{ratio:.3g} of the time of those before, and at least {ratio_min:g} is expected; run them "
        "more often by convergence_seconds or --num_request_iterations_for_warmup"
    )
    return verdict_of(Gate.CONVERGENCE, mode, [fault], figures)


def _windows(durations_ns: Iterable[Sequence[int]]) -> list[tuple[float, float]]:
    """Of each record: the medians of its last runs and of as many before them, (earlier, last)."""
    windows = []
    for runs in durations_ns:
        count = min((len(runs) - 1) // 2, _WINDOW_RUN_COUNT_MAX)
        if count > 0:
            windows.append((median(runs[-2 * count : -count]), median(runs[-count:])))
    return windows


# --- Latency --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long one request took on both versions: the fastest of its rounds.

    A background thread loses its core and rests in between, which is no property of a version.
    """

    predecessor_ns: int
    candidate_ns: int

    def or_faster(self, other: "Latency") -> "Latency":
        """Of two rounds the faster one, by version."""
        return Latency(
            predecessor_ns=min(self.predecessor_ns, other.predecessor_ns),
            candidate_ns=min(self.candidate_ns, other.candidate_ns),
        )


def latency_figures(latencies: Sequence[Latency]) -> dict[str, float]:
    """p99 over the requests, which is the slowest of them where they are fewer than 100."""
    if not latencies:
        return {"request_count": 0}
    predecessor = _p99_seconds([latency.predecessor_ns for latency in latencies])
    candidate = _p99_seconds([latency.candidate_ns for latency in latencies])
    return {
        "request_count": len(latencies),
        "p99_seconds": candidate,
        "predecessor_p99_seconds": predecessor,
        # A predecessor below the clock's resolution is as slow as its tick.
        "p99_ratio": candidate / max(predecessor, 1 / NS_PER_SECOND),
    }


def latency_faults(latencies: Sequence[Latency], ratio_max: float) -> list[str]:
    """p99 that is more than `ratio_max` times the predecessor's, beyond what is noise."""
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
    """How near a golden answer has to be met."""
    return Tolerance(
        relative=settings.golden_relative_tolerance, absolute=settings.golden_absolute_tolerance
    )


def drift_tolerance(settings: GateSettings) -> Tolerance:
    """How far a value may be from the predecessor's and still count as the same."""
    return Tolerance(relative=settings.drift_tolerance, absolute=DRIFT_ABSOLUTE_TOLERANCE)


def golden_faults(comparisons: Sequence[Comparison]) -> list[str]:
    """What differs from the golden answers: all of it is a fault."""
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
    """How many answers were looked at, and how many differ."""
    failed_count = sum(bool(_golden_fault(comparison)) for comparison in comparisons)
    return {"golden_count": len(comparisons), "failed_count": failed_count}


def drift_faults(comparisons: Sequence[Comparison], share_max: float) -> list[str]:
    """What no retraining explains, and values that changed in more than `share_max` of all.

    An output more is none: clients that know nothing of it ask for nothing new.
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
    """How much was compared and what share of it changed."""
    value_count = sum(comparison.value_count for comparison in comparisons)
    changed_count = sum(comparison.changed_count for comparison in comparisons)
    return {
        "answer_count": len(comparisons),
        "value_count": value_count,
        "changed_ratio": changed_count / value_count if value_count else 0.0,
    }


def refused(error: MillpondError) -> Comparison:
    """Of a request that should have an answer and has an error."""
    return Comparison(faults=(f"refused: {error}",))


def first_few(texts: Sequence[str]) -> str:
    """The different ones of `texts`, the rest of them as a number."""
    different = list(dict.fromkeys(texts))
    shown = " / ".join(different[:_FAULT_COUNT_MAX])
    more_count = len(different) - _FAULT_COUNT_MAX
    return f"{shown} / and {more_count} more" if more_count > 0 else shown

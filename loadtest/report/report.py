"""The figures of runs: the JSON that other tools read, and the tables that people read."""

import os
import platform
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.measure import process_memory
from loadtest.measure.latency import NS_PER_MS, figures, ratio
from loadtest.measure.process_memory import Resident
from loadtest.measure.processor_time import CoreShares
from loadtest.measure.scenario import Setup, SwapRun
from loadtest.measure.server_swaps import medians_by_both, swaps_by_both
from loadtest.measure.swaps import Swap
from loadtest.measure.timeline import LATE_NS, Span, held_up_by_generator, late_stretches, windows
from loadtest.plan.plan import Outcome
from serving.base.clock import NS_PER_SECOND

_BYTES_PER_MB = 1e6
_ERROR_MESSAGES_SHOWN = 5
_WINDOWS = ("steady", "load", "unload", "swap")


@dataclass(frozen=True)
class WindowLatencies:
    """Latencies by window: `all`, and `clean` without requests affected by the generator's
    stalls.
    """

    clean: Mapping[str, npt.NDArray[np.int64]]
    all: Mapping[str, npt.NDArray[np.int64]]


def latencies_ns(outcome: Outcome) -> npt.NDArray[np.int64]:
    """Returns latencies from the due times, so that a late generator does not hide a slow
    server.
    """
    return outcome.completed_ns - outcome.scheduled_ns


def latencies_within_ns(outcome: Outcome, spans: Iterable[Span]) -> npt.NDArray[np.int64]:
    """Returns the latencies of the requests that were due in one of `spans`."""
    due_ns = outcome.scheduled_ns
    is_within = np.zeros(len(due_ns), np.bool_)
    for span in spans:
        is_within |= (due_ns >= span.begin_ns) & (due_ns < span.end_ns)
    return latencies_ns(outcome)[is_within]


def window_latencies(runs: Sequence[SwapRun]) -> WindowLatencies:
    """Returns the latencies of all runs together."""
    clean: dict[str, list[npt.NDArray[np.int64]]] = {}
    everything: dict[str, list[npt.NDArray[np.int64]]] = {}
    for run in runs:
        latency_ns = latencies_ns(run.outcome)
        is_clean = ~held_up_by_generator(run.outcome, late_stretches(run.outcome))
        for name, mask in windows(run.outcome, run.spans, run.steady_from_ns).items():
            clean.setdefault(name, []).append(latency_ns[mask & is_clean])
            everything.setdefault(name, []).append(latency_ns[mask])
    return WindowLatencies(
        {name: np.concatenate(parts) for name, parts in clean.items()},
        {name: np.concatenate(parts) for name, parts in everything.items()},
    )


def swap_report(setup: Setup, runs: Sequence[SwapRun]) -> dict[str, Any]:
    """Returns the JSON of a preset's runs. Windows pool the requests of all runs; `runs` has each
    run.
    """
    each = [_window_figures([run]) for run in runs]
    by_both = [swap for run in runs for swap in swaps_by_both(run.outcome, run.server_swaps)]
    return {
        "preset": setup.preset,
        "rate_per_second": setup.rate_per_second,
        "rows": setup.rows,
        "warm_up": setup.warm_up,
        "output_filter": list(setup.output_filter),
        "seed": setup.seed,
        "repeats": len(runs),
        "errors": sum(int(run.is_failed.sum()) for run in runs),
        "wrong_answers": sum(int(run.is_wrong.sum()) for run in runs),
        "error_messages": error_messages([run.outcome for run in runs]),
        **_window_figures(runs),
        "swaps": [_swap_stages(swap) for run in runs for swap in run.stages],
        "server_swaps": by_both,
        "server_swaps_median": medians_by_both(by_both),
        "memory": _memory(runs),
        "machine": machine(),
        "generator": generator_figures([run.outcome for run in runs]),
        "medians_of_runs": medians(each),
        "cores_used": asdict(worst_cores([run.cores for run in runs])),
        "runs": [
            {**shown, "memory": _memory([run]), "cores_used": asdict(run.cores)}
            for shown, run in zip(each, runs, strict=True)
        ],
    }


def run_report(outcome: Outcome, wrong_count: int | None, rate_per_second: float) -> dict[str, Any]:
    """Returns the JSON of a run without swaps. `wrong_count` is None if answers were not
    checked.
    """
    latency_ns = latencies_ns(outcome)
    is_clean = ~held_up_by_generator(outcome, late_stretches(outcome))
    return {
        "rate_per_second": rate_per_second,
        "errors": int((outcome.codes != 0).sum()),
        "wrong_answers": wrong_count,
        "error_messages": error_messages([outcome]),
        "latency": figures(latency_ns[is_clean]),
        "latency_all": figures(latency_ns),
        "machine": machine(),
        "generator": generator_figures([outcome]),
    }


def _window_figures(runs: Sequence[SwapRun]) -> dict[str, Any]:
    latencies = window_latencies(runs)
    clean = {name: figures(values) for name, values in latencies.clean.items()}
    everything = {name: figures(values) for name, values in latencies.all.items()}
    ratios = {
        f"ratio_{percentile}_swap_over_steady{suffix}": ratio(
            shown["swap"], shown["steady"], f"{percentile}_ms"
        )
        for suffix, shown in (("", clean), ("_all", everything))
        for percentile in ("p999", "p99")
    }
    return {
        "windows": {name: clean[name] for name in _WINDOWS},
        "windows_all": {name: everything[name] for name in _WINDOWS},
        "first_swap": clean["first_swap"],
        "first_swap_all": everything["first_swap"],
        **ratios,
    }


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Returns the median of each ratio over the runs; None if a run has too few requests for it."""
    ratios = [{key: run[key] for key in run if key.startswith("ratio_")} for run in runs]
    values = {key: [run[key] for run in ratios] for key in ratios[0]}
    return {
        key: None if None in of_key else round(statistics.median(of_key), 3)
        for key, of_key in values.items()
    }


def generator_figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns how well the generator kept to its plan, and its share of a core."""
    delay_ns = np.concatenate([outcome.issued_ns - outcome.scheduled_ns for outcome in outcomes])
    delay = figures(delay_ns)
    stretches = [late_stretches(outcome) for outcome in outcomes]
    left_out = [held_up_by_generator(o, s) for o, s in zip(outcomes, stretches, strict=True)]
    run_ns = sum(int(np.ptp(outcome.scheduled_ns)) for outcome in outcomes if len(outcome.codes))
    return {
        **{f"issue_delay_{key}": value for key, value in delay.items() if key != "count"},
        "is_realtime": all(outcome.is_realtime for outcome in outcomes),
        "late_over_ms": LATE_NS / NS_PER_MS,
        "late_stretch_count": sum(len(spans) for spans in stretches),
        "late_seconds": round(sum(_seconds(span) for spans in stretches for span in spans), 4),
        "left_out_count": sum(int(mask.sum()) for mask in left_out),
        "core_share": round(sum(outcome.cpu_ns for outcome in outcomes) / max(run_ns, 1), 4),
    }


def error_messages(outcomes: Iterable[Outcome]) -> list[str]:
    """Returns the most frequent messages of failed requests, each with its count."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        texts = [
            f"{reply.code}: {reply.data.decode(errors='replace')}" for reply in outcome.replies
        ]
        for request in np.flatnonzero(outcome.codes):
            number = outcome.reply_of[request]
            counts[texts[number] if number >= 0 else f"{outcome.codes[request]}"] += 1
    return [f"{count} x {text}" for text, count in counts.most_common(_ERROR_MESSAGES_SHOWN)]


def machine() -> dict[str, Any]:
    """Returns the machine and the commit of a measurement."""
    return {
        "node": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_mb": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _BYTES_PER_MB
        ),
        "commit": _commit(),
    }


def _seconds(span: Span) -> float:
    return (span.end_ns - span.begin_ns) / NS_PER_SECOND


def _swap_stages(swap: Swap) -> dict[str, Any]:
    return {
        "title": swap.title,
        "version": swap.version,
        "stage_seconds": dict(swap.stage_seconds),
    }


def worst_cores(runs: Iterable[CoreShares]) -> CoreShares:
    """Returns the shares of the run that was disturbed most."""
    return max(runs, key=lambda cores: cores.other + cores.stolen)


def _memory(runs: Sequence[SwapRun]) -> dict[str, Any]:
    """Returns the memory of the last run, and the largest arena remainder of all runs."""
    memory = runs[-1].memory
    live = [run.arena_live_bytes for run in runs if run.arena_live_bytes is not None]
    return {
        "resident_mb": {when: _mb(sample, "total_bytes") for when, sample in memory.items()},
        "anonymous_mb": {when: _mb(sample, "anonymous_bytes") for when, sample in memory.items()},
        "source": process_memory.SOURCE,
        "arena_live_bytes_after_unload": max(live, default=None),
    }


def _mb(sample: Resident | None, field: str) -> float | None:
    return None if sample is None else round(getattr(sample, field) / _BYTES_PER_MB, 1)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    """Returns None if this is not a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None

"""The figures of runs: the JSON that other tools read, and the tables that people read."""

import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.measure import process_memory
from loadtest.measure.latency import figures, ratio
from loadtest.measure.outcome_figures import answer_figures, generator_figures, latencies_ns
from loadtest.measure.process_memory import Resident
from loadtest.measure.processor_time import worst_cores
from loadtest.measure.scenario import SwapRun
from loadtest.measure.server_swaps import medians_by_both, swaps_by_both
from loadtest.measure.setup import Setup
from loadtest.measure.swaps import Swap
from loadtest.measure.timeline import held_up_by_generator, late_stretches, windows
from loadtest.plan.plan import Outcome
from loadtest.plan.wrong_replies import WrongReply

_BYTES_PER_MB = 1e6
_WINDOWS = ("steady", "load", "unload", "swap")


@dataclass(frozen=True)
class WindowLatencies:
    """Latencies by window: `all`, and `clean` without requests affected by the generator's
    stalls.
    """

    clean: Mapping[str, npt.NDArray[np.int64]]
    all: Mapping[str, npt.NDArray[np.int64]]


def window_latencies(runs: Sequence[SwapRun]) -> WindowLatencies:
    """Joins the latencies of all runs."""
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
    """Makes the JSON of a preset's runs. Windows pool the requests of all runs; `runs` has each run."""
    each = [_window_figures([run]) for run in runs]
    wrong_count = sum(int(run.is_wrong.sum()) for run in runs)
    wrong_replies = (reply for run in runs for reply in run.wrong_replies)
    by_both = [swap for run in runs for swap in swaps_by_both(run.outcome, run.server_swaps)]
    return {
        "preset": setup.preset,
        "command": setup.command,
        "is_neighbour_swapped": setup.loaded != setup.reloaded,
        "swapped_at_the_same_moments": list(setup.reloaded_too),
        "unknown": list(runs[0].unknown),
        "rate_per_second": setup.rate_per_second,
        "rows": setup.rows,
        "warm_up": setup.warm_up,
        "output_filter": list(setup.output_filter),
        "seed": setup.seed,
        "repeats": len(runs),
        **answer_figures([run.outcome for run in runs], wrong_count, wrong_replies),
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


def run_report(
    outcome: Outcome,
    wrong_count: int | None,
    rate_per_second: float,
    wrong_replies: Sequence[WrongReply] = (),
) -> dict[str, Any]:
    """Makes the JSON of a run without swaps. `wrong_count` is None if answers were not checked."""
    latency_ns = latencies_ns(outcome)
    is_clean = ~held_up_by_generator(outcome, late_stretches(outcome))
    return {
        "rate_per_second": rate_per_second,
        **answer_figures([outcome], wrong_count, wrong_replies),
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
    """The median of each ratio over the runs; None if a run has too few requests for it."""
    ratios = [{key: run[key] for key in run if key.startswith("ratio_")} for run in runs]
    values = {key: [run[key] for run in ratios] for key in ratios[0]}
    return {
        key: None if None in of_key else round(statistics.median(of_key), 3)
        for key, of_key in values.items()
    }


def machine() -> dict[str, Any]:
    """The machine and the commit of a measurement."""
    return {
        "node": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_mb": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _BYTES_PER_MB
        ),
        "commit": _commit(),
    }


def _swap_stages(swap: Swap) -> dict[str, Any]:
    return {
        "title": swap.title,
        "version": swap.version,
        "stage_seconds": dict(swap.stage_seconds),
    }


def _memory(runs: Sequence[SwapRun]) -> dict[str, Any]:
    """The memory of the last run, and the largest arena remainder of all runs."""
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
    """The commit; None if this is not a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None

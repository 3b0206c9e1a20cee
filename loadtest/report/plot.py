"""Draws latency over time, one row a server, swaps shaded, and the age of what is answered.

Only this module imports matplotlib.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from loadtest.measure.latency import NS_PER_MS
from loadtest.measure.timeline import SwapSpans, late_stretches
from loadtest.plan.plan import Outcome
from serving.base.clock import NS_PER_SECOND
from serving.base.errors import FailedPrecondition

# At 300 requests/s a bin of this size has 150 requests, of which p99 is the second slowest.
_BIN_SECONDS = 0.5
_ROW_INCHES = 2.2
# From light to dark, so that the tail stands out, also in greyscale.
_LINES = (("p50", 50, "#9ecae1"), ("p90", 90, "#6baed6"), ("p99", 99, "#2171b5"))
_SLOWEST_COLOUR = "#cb181d"
_SWAP_COLOUR = "#f0e6c8"
_AGE_COLOURS = ("#2171b5", "#cb181d")


class DrawnRun(Protocol):
    """A run under load whose versions were swapped."""

    @property
    def outcome(self) -> Outcome: ...

    @property
    def spans(self) -> Sequence[SwapSpans]: ...


Line = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""The coordinates of a line's points."""


def check_can_plot(path: Path | None) -> None:
    """Raises FailedPrecondition if a requested plot cannot be made, before a run takes minutes."""
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise FailedPrecondition("--plot needs matplotlib: pip install --group loadtest")
    if not path.absolute().parent.is_dir():
        raise FailedPrecondition(f"--plot={path}: its directory does not exist")


def plot_runs(
    path: Path | None, runs: Mapping[str, DrawnRun], ages: Mapping[str, Line] | None = None
) -> None:
    """Writes the picture of one run of each server, by its title; does nothing if `path` is None.

    `ages` adds a row with the age of what is answered, in seconds over the seconds of each run, by its name.
    Raises OSError.
    """
    if path is None:
        return
    # These draw into memory, without a window or a thread.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    row_count = len(runs) + bool(ages)
    figure = Figure(figsize=(11, 1 + _ROW_INCHES * row_count), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(row_count, 1, squeeze=False, sharex=True)[:, 0]
    for axes, (name, run) in zip(rows, runs.items(), strict=False):
        axes.sharey(rows[0])
        _draw(axes, name, run)
    if ages:
        _draw_ages(rows[-1], ages)
    rows[-1].set_xlabel("seconds under load; triangles: the generator itself was late")
    handles, labels = rows[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=110)


def binned(
    due_seconds: npt.NDArray[Any], latency_ms: npt.NDArray[Any], bin_seconds: float
) -> tuple[npt.NDArray[Any], Sequence[npt.NDArray[Any]]]:
    """Puts the latencies into bins.

    Returns the middles of the bins that have requests, and the latencies of each.
    """
    numbers = (due_seconds // bin_seconds).astype(int)
    filled = np.unique(numbers)
    return (filled + 0.5) * bin_seconds, [latency_ms[numbers == number] for number in filled]


def _draw(axes: Any, name: str, run: DrawnRun) -> None:
    outcome = run.outcome
    due_seconds = (outcome.scheduled_ns - outcome.started_ns) / NS_PER_SECOND
    latency_ms = (outcome.completed_ns - outcome.scheduled_ns) / NS_PER_MS
    middles, parts = binned(due_seconds, latency_ms, _BIN_SECONDS)
    for number, span in enumerate(run.spans):
        begin, end = (
            (instant_ns - outcome.started_ns) / NS_PER_SECOND
            for instant_ns in (span.swap.begin_ns, span.swap.end_ns)
        )
        axes.axvspan(begin, end, color=_SWAP_COLOUR, lw=0, label="swap" if number == 0 else None)
    for label, percent, colour in _LINES:
        values = [np.percentile(part, percent, method="inverted_cdf") for part in parts]
        axes.plot(middles, values, color=colour, lw=1.4, label=label)
    slowest = [part.max() for part in parts]
    axes.plot(
        middles, slowest, ".", color=_SLOWEST_COLOUR, ms=3.5, label=f"slowest of {_BIN_SECONDS} s"
    )
    for stretch in late_stretches(outcome):
        late_seconds = (stretch.begin_ns - outcome.started_ns) / NS_PER_SECOND
        # At the lower edge, whatever the latencies are.
        axes.plot(
            late_seconds, 0.02, "^", color="black", ms=4, transform=axes.get_xaxis_transform()
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("latency, ms")
    _set_style(axes, name)


def _draw_ages(axes: Any, ages: Mapping[str, Line]) -> None:
    for (name, line), colour in zip(ages.items(), _AGE_COLOURS, strict=False):
        axes.plot(*line, color=colour, lw=1.4, label=name)
    # Above the lines, the legend has room.
    axes.set_ylim(0, 1.3 * max(float(age.max()) for _, age in ages.values()))
    axes.set_ylabel("age, s")
    _set_style(axes, "age of the rows that are answered, from the start of their export")
    if len(ages) > 1:
        axes.legend(loc="upper left", frameon=False, ncols=len(ages))


def _set_style(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)

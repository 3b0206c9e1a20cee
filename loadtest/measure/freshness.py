"""The freshness of answers: the time from a version's write to the first answer that has its rows. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.drive.trainer import Export
from loadtest.measure.timeline import Mask, Span, SwapSpans, under_way_in
from loadtest.plan.plan import Outcome
from serving.base.clock import NS_PER_SECOND
from serving.base.errors import Unavailable

# With fewer versions p99 would be the slowest one.
_P99_COUNT_MIN = 100


@dataclass(frozen=True)
class FirstAnswer:
    """The seconds from a version's write to the first answer that has its rows.

    `from_export_seconds` begin with the export, and `from_rename_seconds` with the rename that ends it.
    """

    version: int
    from_export_seconds: float
    from_rename_seconds: float


def first_answers(
    exports: Sequence[Export], outcome: Outcome, versions: npt.NDArray[np.int64]
) -> Sequence[FirstAnswer]:
    """The first answer to each export, of requests whose answers are of `versions`.

    Raises Unavailable if no answer has the rows of an export.
    """
    found = []
    for export in exports:
        completed_ns = outcome.completed_ns[versions >= export.version]
        if not len(completed_ns):
            raise Unavailable(f"no answer has the rows of version {export.version}")
        first_ns = int(completed_ns.min())
        found.append(
            FirstAnswer(
                export.version,
                (first_ns - export.started_ns) / NS_PER_SECOND,
                (first_ns - export.renamed_ns) / NS_PER_SECOND,
            )
        )
    return found


def seconds_figures(seconds: Sequence[float]) -> dict[str, Any]:
    """The median, p99 (None below 100 versions) and the slowest of some seconds, by nearest rank."""
    ordered = sorted(seconds)
    has_p99 = len(ordered) >= _P99_COUNT_MIN
    return {
        "count": len(ordered),
        "p50_seconds": round(_at_rank(ordered, 0.5), 3),
        "p99_seconds": round(_at_rank(ordered, 0.99), 3) if has_p99 else None,
        "max_seconds": round(ordered[-1], 3),
    }


def rows_per_minute(runs: Iterable[Sequence[Export]]) -> int | None:
    """The rows that changed in a minute, from the first export of each run to its last; None without a second one.

    The rows of the first export had changed before it.
    """
    took_ns = changed_count = 0
    for exports in runs:
        took_ns += exports[-1].started_ns - exports[0].started_ns
        changed_count += sum(export.changed_row_count for export in exports[1:])
    return round(changed_count * 60 * NS_PER_SECOND / took_ns) if took_ns else None


def windows(
    outcome: Outcome, exports: Sequence[Export], swaps: Sequence[SwapSpans], steady_from_ns: int
) -> Mapping[str, Mask]:
    """The requests of each window: `steady` outside of swaps and exports, and `all` with both."""
    in_export = under_way_in(
        outcome, [Span(export.started_ns, export.renamed_ns) for export in exports]
    )
    in_swap = under_way_in(outcome, [swap.swap for swap in swaps])
    after_start = outcome.scheduled_ns >= steady_from_ns
    return {
        "steady": after_start & ~in_swap & ~in_export,
        "export": after_start & in_export & ~in_swap,
        "swap": in_swap,
        "all": after_start,
    }


def ages(
    exports: Sequence[Export], outcome: Outcome, answers: Sequence[FirstAnswer]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The age of what is answered, as a line: seconds of the run, and seconds since the export of what is served.

    It rises, and falls with each first answer.
    """
    at, age = [], []
    served = exports[0].started_ns
    for export, answer in zip(exports, answers, strict=True):
        first_ns = export.started_ns + answer.from_export_seconds * NS_PER_SECOND
        for started_ns in (served, export.started_ns):
            at.append((first_ns - outcome.started_ns) / NS_PER_SECOND)
            age.append((first_ns - started_ns) / NS_PER_SECOND)
        served = export.started_ns
    end_ns = int(outcome.scheduled_ns[-1])
    at.append((end_ns - outcome.started_ns) / NS_PER_SECOND)
    age.append((end_ns - served) / NS_PER_SECOND)
    # Nothing is known of the age before the first export is answered.
    return np.array(at[1:]), np.array(age[1:])


def _at_rank(ordered: Sequence[float], share: float) -> float:
    return ordered[math.ceil(len(ordered) * share) - 1]

"""Decides, by measured times, which runs of a signature take the CPU and which the accelerator. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from serving.data_plane.servables import SizeTimes

SWITCH_RATIO = 0.8
"""Runs change sides only if the other side takes less than this share of the time, so that noise moves nothing."""

PROBE_ONE_OF = 2048
"""One run of so many goes to the other side, if both are equally fast. So probes stay above p999."""

_PROBE_ONE_OF_MAX = 2**40


@dataclass(frozen=True)
class SideChoice:
    """The side of the runs of one size, the largest number of rows that its program takes."""

    rows: int
    is_on_accelerator: bool
    probe_one_of: int
    """One run of so many goes to the other side, and is timed."""


def choose_sides(sizes: Sequence[SizeTimes], *, is_first: bool = False) -> Sequence[SideChoice]:
    """Chooses the side of each size, from the times that are known.

    Promises:
    - A size of which a side is not known keeps its side.
    - The first choice, before requests come, takes the faster side.
    - A later choice changes sides only for a time below SWITCH_RATIO of the chosen side's. So the same times
      never change it twice.
    - Probes take at most 1 / PROBE_ONE_OF of the time of runs: they are the rarer, the slower the other side is.
    """
    choices: list[SideChoice] = []
    slowness = 1.0
    for size in sorted(sizes, key=lambda size: size.rows):
        is_on_accelerator = _is_for_accelerator(size, 1.0 if is_first else SWITCH_RATIO)
        if _is_known(size):
            slowness = _slowness(size, is_on_accelerator=is_on_accelerator)
        # A side that is not known here is as slow as with fewer rows.
        probe_one_of = min(ceil(PROBE_ONE_OF * slowness), _PROBE_ONE_OF_MAX)
        choices.append(SideChoice(size.rows, is_on_accelerator, probe_one_of))
    return choices


def _is_known(size: SizeTimes) -> bool:
    return size.cpu_ns > 0 and size.accelerator_ns > 0


def _is_for_accelerator(size: SizeTimes, ratio: float) -> bool:
    if not _is_known(size):
        return size.is_on_accelerator
    if size.is_on_accelerator:
        return size.cpu_ns >= ratio * size.accelerator_ns
    return size.accelerator_ns < ratio * size.cpu_ns


def _slowness(size: SizeTimes, *, is_on_accelerator: bool) -> float:
    """The time on the other side over the time on the chosen side, at least 1."""
    chosen_ns, other_ns = size.cpu_ns, size.accelerator_ns
    if is_on_accelerator:
        chosen_ns, other_ns = other_ns, chosen_ns
    return max(1.0, other_ns / chosen_ns)

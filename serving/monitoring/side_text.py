"""Says in words on which side the runs of a signature are, and how fast each side is."""

from collections.abc import Mapping, Sequence
from typing import Any

_NS_PER_MILLISECOND = 1_000_000


def sides_text(sizes: Sequence[Mapping[str, Any]]) -> str:
    """A text like "up to 8 rows on the CPU (0.55 ms; accelerator 0.80 ms)", for each of `SizeTimes` as a mapping."""
    return ", ".join(_size_text(size) for size in sizes)


def untuned_text(rows: Sequence[int], state: str = "", reason: str = "") -> str:
    """A text like "rows not autotuned: 1, 8 (running)"; "" if all programs are.

    `state` and `reason` are those of the autotuning of the version; "" without one.
    """
    if not rows:
        return ""
    progress = f" ({state}: {reason})" if reason else f" ({state})" if state else ""
    return f"rows not autotuned: {', '.join(f'{count:,}' for count in rows)}{progress}"


def _size_text(size: Mapping[str, Any]) -> str:
    cpu, accelerator = _time_text(size["cpu_ns"]), _time_text(size["accelerator_ns"])
    rows = "1 row" if size["rows"] == 1 else f"up to {size['rows']:,} rows"
    if size["is_on_accelerator"]:
        return f"{rows} on the accelerator ({accelerator}; CPU {cpu})"
    return f"{rows} on the CPU ({cpu}; accelerator {accelerator})"


def _time_text(ns: int) -> str:
    return f"{ns / _NS_PER_MILLISECOND:,.2f} ms" if ns else "not measured"

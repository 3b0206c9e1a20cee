"""Records of the batches of all versions, also of versions that are gone."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.core.servable import END, ServableId, ServableStatus
from serving.data_plane.servables import BatchFigures, Servable, SignatureBatching

ENDED_COUNT_MAX = 32
"""The number of versions that are gone whose batches are kept, like their other records of requests."""


@dataclass(frozen=True)
class PaddingTotals:
    """The padding of batches of one allowed size: its rows, and the batches by these rows."""

    row_count: int = 0
    by_rows: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BatchTotals:
    """The sums of `BatchFigures`, with the same names."""

    run_count: int = 0
    request_count: int = 0
    row_count: int = 0
    padding_row_count: int = 0
    wait_ns: int = 0
    by_padded_rows: tuple[int, ...] = ()
    by_request_rows: tuple[int, ...] = ()
    by_wait: tuple[int, ...] = ()
    paddings: Mapping[int, PaddingTotals] = field(default_factory=dict)

    def plus(self, figures: BatchFigures) -> "BatchTotals":
        """Returns the sums with those of one more signature of a version."""
        paddings = dict(self.paddings)
        for size, counts in figures.paddings.items():
            before = paddings.get(size, PaddingTotals())
            paddings[size] = PaddingTotals(
                before.row_count + counts.row_count, _sums(before.by_rows, counts.by_rows)
            )
        return BatchTotals(
            run_count=self.run_count + figures.run_count,
            request_count=self.request_count + figures.request_count,
            row_count=self.row_count + figures.row_count,
            padding_row_count=self.padding_row_count + figures.padding_row_count,
            wait_ns=self.wait_ns + figures.wait_ns,
            by_padded_rows=_sums(self.by_padded_rows, figures.by_padded_rows),
            by_request_rows=_sums(self.by_request_rows, figures.by_request_rows),
            by_wait=_sums(self.by_wait, figures.by_wait),
            paddings=paddings,
        )


class BatchRecords:
    """The batches of each version, and of all versions together. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All guarded by `_lock`. The oldest of the ended versions comes first.
        self._loaded: dict[ServableId, Servable] = {}
        self._ended: dict[ServableId, Sequence[SignatureBatching]] = {}
        self._ended_totals = BatchTotals()

    def add(self, servable_id: ServableId, servable: Servable) -> None:
        """Records a version from now on, until `on_status` reports its end."""
        with self._lock:
            self._end(servable_id)
            self._ended.pop(servable_id, None)
            self._loaded[servable_id] = servable

    def on_status(self, status: ServableStatus) -> None:
        """Keeps the last figures of a version that has ended. A listener of StateMonitor."""
        if status.state is END:
            with self._lock:
                self._end(status.id)

    def of(self, servable_id: ServableId) -> Sequence[SignatureBatching]:
        """Returns how the signatures of a version are batched; empty if they are not to be batched."""
        with self._lock:
            servable = self._loaded.get(servable_id)
            ended = self._ended.get(servable_id, ())
        return ended if servable is None else servable.batching()

    def totals(self) -> BatchTotals:
        """Returns the sums over all versions since the start. They never decrease."""
        with self._lock:
            loaded = [servable.batching() for servable in self._loaded.values()]
            return _added(self._ended_totals, loaded)

    def _end(self, servable_id: ServableId) -> None:
        servable = self._loaded.pop(servable_id, None)
        if servable is None:
            return
        last = servable.batching()
        self._ended_totals = _added(self._ended_totals, [last])
        self._ended[servable_id] = last
        while len(self._ended) > ENDED_COUNT_MAX:
            self._ended.pop(next(iter(self._ended)))


def _added(totals: BatchTotals, versions: Iterable[Sequence[SignatureBatching]]) -> BatchTotals:
    for version in versions:
        for state in version:
            totals = totals.plus(state.figures)
    return totals


def _sums(before: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Returns the sums of two histograms. The first may be empty."""
    if not before:
        return tuple(counts)
    return tuple(one + other for one, other in zip(before, counts, strict=True))

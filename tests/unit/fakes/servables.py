"""Loaded versions, and the map that publishes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serving.base.errors import StatusCode
from serving.core.servable import Routing, ServableId
from serving.data_plane.servables import (
    AcceleratedSignature,
    AcceleratorRuns,
    AcceleratorUploads,
    ArenaRemains,
    ArenaStatistics,
    BatchFigures,
    SignatureBatching,
    SizeTimes,
)
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.requests import FakeStatistics


@dataclass(frozen=True)
class FakeSignatureBatching(SignatureBatching):
    """A signature whose rows have not been compared."""

    signature: str = "serving_default"
    is_on: bool = False
    refusal: str = "its rows have not been compared yet"
    rows: str = "unknown"
    rows_reason: str = "output 'y': node 'sort' (Sort) is not an op that the analysis knows"
    joined_rows_max: int = 2
    joined_requests_max: int = 64
    figures: BatchFigures = BatchFigures()


def classes(*counts: int, size: int = 16) -> tuple[int, ...]:
    """Returns the counts of classes whose rest is 0."""
    return (*counts, *(0,) * (size - len(counts)))


def busy_batching() -> list[FakeSignatureBatching]:
    """Returns a signature with batches of 1 to 4 requests, and one that is refused.

    Three runs: a request of 1 row, 2 requests of 1 and 3 rows, and 4 requests of 1 row, padded to 8.
    """
    figures = BatchFigures(
        run_count=3,
        request_count=7,
        row_count=9,
        padding_row_count=4,
        failed_batch_count=1,
        split_request_count=2,
        wait_ns=7_000_000,
        run_ns=3_000_000,
        by_rows=classes(1, 0, 2),
        by_requests=classes(1, 1, 1),
        by_wait=classes(*(0,) * 10, 7, size=22),
        by_run=classes(*(0,) * 10, 3, size=22),
    )
    return [
        FakeSignatureBatching(
            is_on=True,
            refusal="",
            rows="independent",
            rows_reason="",
            joined_rows_max=64,
            figures=figures,
        ),
        FakeSignatureBatching(
            "whole",
            refusal="its graph mixes rows: output 'y': node 'sum' (Sum) reduces over the rows",
            rows="mixes",
            rows_reason="output 'y': node 'sum' (Sum) reduces over the rows",
        ),
    ]


BUSY_RUNS = AcceleratorRuns(
    signature="serving_default",
    device="0",
    sizes=(1, 8),
    run_counts=(3, 5),
    row_counts=(3, 33),
    timed_run_count=4,
    stage_ns=(0, 400_000, 2_000_000, 1_600_000),
    cpu_run_counts=(2, 1, 0, 0, 0, 0, 0, 0, 0),
)
"""3 runs of one row, and 5 runs of up to 8 rows with 7 rows of padding. Three more ran on the CPU."""


CHOSEN_SIDES = AcceleratedSignature(
    name="serving_default",
    rows=(1, 8),
    reason="",
    host_ops=(),
    host_tables=(),
    sizes=(SizeTimes(1, 554_000, 801_000, False), SizeTimes(8, 0, 0, True)),
)
"""One row is faster on the CPU, and 8 rows are not measured yet."""


class FakeServable:
    """A loaded version. Tests set `handle_count`; it quiesces when that is 0."""

    tuned_shortage = ""
    tuned_damage = ""
    """The reason why some of `tuned_rows` cannot be offered now."""

    def __init__(self, servable_id: ServableId) -> None:
        self.id = servable_id
        self.handle_count = 0
        self.is_published = False
        self.is_destroyed = False
        self.predict_error: Exception | None = None
        # Set by tests: its answers, and a serialized SignatureDefMap.
        self.respond: Callable[[bytes], bytes] = lambda request: b"answer"
        self.signatures = b""
        self.metadata_json = ""
        self.predicted: list[bytes] = []
        self.callables_made: list[bytes] = []
        self.answered_jointly: list[bytes] = []
        self.remains = ArenaRemains()
        self.arena_overflow_block_count = 0
        self.accelerator_bytes = 0
        self.accelerated: list[AcceleratedSignature] = []
        # Set by `measure_sides` and `choose_side`.
        self.measured_seconds_max = 0.0
        self.probes: dict[tuple[str, int], int] = {}
        # Set by tests: what a cache lacks, the rows of programs that a cache has, and their answers.
        self.untuned: list[bytes] = []
        self.tuned_rows: list[int] = []
        self.respond_tuned: Callable[[int, bytes], bytes] | None = None
        # Set by `offer_tuned_programs`, `try_tuned_programs` and `use_tuned_programs`.
        self.offered_rows: list[int] = []
        self.tried_rows: set[int] = set()
        self.used_rows: list[int] = []
        self.runs: Sequence[AcceleratorRuns] = ()
        self.uploads = AcceleratorUploads()
        # Set by tests.
        self.arena: ArenaStatistics | None = None
        self.may_write_variables = False
        # Set by tests: the requests that would change a variable, and those that would change what
        # cannot be put back.
        self.writing_requests: set[bytes] = set()
        self.unkeepable_requests: set[bytes] = set()
        # The requests that changed something since the load, and since `keep_state`; None: nothing is kept.
        self.written: list[bytes] = []
        self.kept: list[bytes] | None = None
        self.keepable_bytes = 0
        # Set by tests.
        self.kept_state_bytes = 0
        self.is_sealed = False
        self.figures = FakeStatistics()
        # Set by a load with batching, and by tests: the signatures that batching refuses.
        self.batched: list[FakeSignatureBatching] = []
        self.refused_signatures: dict[str, str] = {}
        # Set by tests: called by `verify_batching`, which warms up `hot_batch_count` of a predecessor.
        self.on_verification: Callable[[], None] = lambda: None
        self.are_runs_cancelled = False
        self.hot_batch_count = 0

    def _check_is_alive(self) -> None:
        if self.is_destroyed:
            raise StatusError(9, f"{self.id} is destroyed")

    def make_callable(self, request: bytes) -> None:
        assert not self.is_destroyed
        self.callables_made.append(request)

    def verify_batching(self, predecessor: "FakeServable | None" = None) -> int:
        assert not self.is_published, f"{self.id} is published before its batches are verified"
        self.on_verification()
        if self.are_runs_cancelled:
            raise StatusError(StatusCode.CANCELLED, "the verification of batches stopped")
        refusals = [self.refused_signatures.get(state.signature, "") for state in self.batched]
        self.batched = [
            replace(state, is_on=not refusal, refusal=refusal)
            for state, refusal in zip(self.batched, refusals, strict=True)
        ]
        return 0 if predecessor is None else predecessor.hot_batch_count

    def cancel_runs(self) -> None:
        self.are_runs_cancelled = True

    def change_batching(self, index: int, **changes: Any) -> None:
        self.batched[index] = replace(self.batched[index], **changes)

    def batching(self) -> list[FakeSignatureBatching]:
        return self.batched

    def accelerator_uploads(self) -> Sequence[AcceleratorUploads]:
        assert not self.is_destroyed
        return [self.uploads]

    def accelerator_runs(self) -> Sequence[AcceleratorRuns]:
        self._check_is_alive()
        return self.runs

    def accelerator_signatures(self) -> Sequence[AcceleratedSignature]:
        return self.accelerated

    def measure_sides(self, seconds_max: float) -> None:
        assert not self.is_published, f"{self.id} is published before its sides are measured"
        self.measured_seconds_max = seconds_max

    def choose_side(
        self, signature: str, rows: int, is_on_accelerator: bool, probe_one_of: int
    ) -> None:
        self._check_is_alive()
        self.probes[signature, rows] = probe_one_of
        self.accelerated = [
            replace(
                item,
                sizes=[
                    replace(size, is_on_accelerator=is_on_accelerator)
                    if (item.name, size.rows) == (signature, rows)
                    else size
                    for size in item.sizes
                ],
            )
            for item in self.accelerated
        ]

    def untuned_programs(self, cache_directory: str) -> list[bytes]:
        self._check_is_alive()
        return self.untuned

    def offer_tuned_programs(self, cache_directory: str) -> tuple[list[int], str, str]:
        self._check_is_alive()
        untuned = {rows for item in self.accelerated for rows in item.untuned_rows}
        self.offered_rows = [rows for rows in self.tuned_rows if rows in untuned]
        return self.offered_rows, self.tuned_shortage, self.tuned_damage

    def try_tuned_programs(self, rows: int, method: str, request: bytes) -> bytes:
        self._check_is_alive()
        if rows not in self.offered_rows:
            raise StatusError(StatusCode.NOT_FOUND, "no program is offered")
        response = (self.respond_tuned or (lambda rows, request: self.respond(request)))(
            rows, request
        )
        self.tried_rows.add(rows)
        return response

    def use_tuned_programs(self, rows: int) -> int:
        self._check_is_alive()
        if rows not in self.tried_rows:
            return 0
        self.used_rows.append(rows)
        self.accelerated = [
            replace(item, untuned_rows=[left for left in item.untuned_rows if left != rows])
            for item in self.accelerated
        ]
        return len(self.accelerated)

    def withdraw_tuned_programs(self) -> None:
        self._check_is_alive()
        self.offered_rows = []

    def seal_arena(self) -> bool:
        assert not self.is_destroyed
        self.is_sealed = not self.may_write_variables
        return self.is_sealed

    def answer(self, method: str, request: bytes) -> bytes:
        if method == "MultiInference":
            self.answered_jointly.append(request)
            return self.respond(request)
        assert method in ("Predict", "Classify", "Regress")
        return self.predict(request)

    def replay(self, method: str, request: bytes) -> bytes:
        self._check_is_alive()
        may_write = self.kept is not None and request not in self.unkeepable_requests
        if request in self.writing_requests | self.unkeepable_requests and not may_write:
            raise StatusError(StatusCode.PERMISSION_DENIED, "a request may change a variable")
        return self.answer(method, request)

    def keep_state(self, bytes_max: int) -> None:
        assert not self.is_published, f"{self.id} is published before its state is kept"
        self.kept = []
        self.keepable_bytes = bytes_max

    def put_back_state(self) -> int:
        assert not self.is_published, f"{self.id} is published before its state is put back"
        count = len(self.kept or ())
        self.written = [] if count else self.written
        self.kept = None
        return count

    def predict(self, request: bytes) -> bytes:
        assert not self.is_destroyed
        self.predicted.append(request)
        if request in self.writing_requests | self.unkeepable_requests:
            self.written.append(request)
            if self.kept is not None and request in self.writing_requests:
                self.kept.append(request)
        if self.predict_error is not None:
            raise self.predict_error
        return self.respond(request)

    def signature_def_map(self) -> bytes:
        self._check_is_alive()
        return self.signatures

    def set_metadata_json(self, json: str) -> None:
        self.metadata_json = json

    def statistics(self) -> FakeStatistics:
        assert not self.is_destroyed
        return self.figures

    def arena_statistics(self) -> ArenaStatistics | None:
        self._check_is_alive()
        return self.arena

    def quiesce(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        assert not self.is_published, f"{self.id} is quiesced while it is published"
        return self.handle_count == 0

    def destroy(self) -> ArenaRemains:
        assert not self.is_published, f"{self.id} is destroyed while it is published"
        assert self.handle_count == 0, f"{self.id} is destroyed while requests hold it"
        assert not self.is_destroyed, f"{self.id} is destroyed twice"
        self.is_destroyed = True
        return self.remains


class FakeServingMap:
    """Published servables by id, and every publish and retire in order."""

    def __init__(self) -> None:
        self.published: dict[ServableId, FakeServable] = {}
        self.routings: dict[str, Routing] = {}
        self.notes: dict[str, dict[str, object]] = {}
        self.log: list[str] = []

    def publish(self, servable: FakeServable, routing: Routing) -> None:
        assert servable.id not in self.published
        assert not servable.is_destroyed
        servable.is_published = True
        self.published[servable.id] = servable
        self._route(servable.id.name, routing)
        self.log.append(f"publish {servable.id}")

    def retire(self, name: str, version: int, routing: Routing) -> None:
        self.published.pop(ServableId(name, version)).is_published = False
        self._route(name, routing)
        self.log.append(f"retire {name}/{version}")

    def set_routing(self, name: str, routing: Routing) -> None:
        self._route(name, routing)
        self.log.append(f"route {name}")

    def _route(self, name: str, routing: Routing) -> None:
        self.routings[name] = replace(routing, labels=dict(routing.labels))
        versions = self.versions(name)
        named = {routing.default_version, routing.canary_version, *routing.labels.values()}
        assert named - {None} <= set(versions), f"{routing} with {versions}"

    def set_notes(self, name: str, **notes: object) -> None:
        self.notes[name] = notes

    def versions(self, name: str) -> list[int]:
        return sorted(key.version for key in self.published if key.name == name)

    def answering(self, name: str, label: str | None = None) -> int | None:
        routing = self.routings.get(name, Routing())
        return routing.default_version if label is None else routing.labels.get(label)

"""The serving map and the servables that it publishes, as the control plane sees them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from serving.core.servable import Routing


class ServableStatistics(Protocol):
    """The requests that one version has served since it was loaded (`_native.ServableStatistics`)."""

    @property
    def request_count(self) -> int: ...
    @property
    def failed_count(self) -> int: ...
    @property
    def latency_ns_p50(self) -> int: ...
    @property
    def latency_ns_p99(self) -> int: ...
    @property
    def latency_ns_p999(self) -> int: ...

    def latency_ns_at(self, quantile: float) -> int:
        """Returns the latency that this share of the requests stay within, by the nearest rank.

        It is 0 without requests. `quantile` is from 0 to 1.
        """
        ...

    # Any, because each data plane subtracts only statistics of its own class.
    def since(self, earlier: Any) -> "ServableStatistics":
        """Returns the statistics of the requests since `earlier`, of the same version."""
        ...


class ArenaStatistics(Protocol):
    """The bytes of a version's slab by use (`_native.ArenaStatistics`).

    The first four properties add up to the slab.
    """

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def active_unused_bytes(self) -> int: ...
    @property
    def retained_bytes(self) -> int: ...
    @property
    def unused_bytes(self) -> int: ...
    @property
    def slab_resident_bytes(self) -> int:
        """The resident bytes of the whole slab."""
        ...


class ArenaRemains(Protocol):
    """The blocks still allocated in a version's arena after the version was freed.

    See `_native.ArenaRemains`.
    """

    @property
    def live_bytes(self) -> int:
        """The bytes that leaked, normally 0."""
        ...

    @property
    def live_blocks(self) -> Sequence[tuple[int, int]]:
        """The leaked blocks by size: (bytes of a block, number of blocks)."""
        ...

    @property
    def overflow_block_count(self) -> int:
        """The number of leaked blocks that had not fitted into the arena."""
        ...


class BatchFigures(Protocol):
    """The runs of one signature since the version was loaded (`_native.BatchFigures`)."""

    @property
    def run_count(self) -> int: ...
    @property
    def request_count(self) -> int: ...
    @property
    def row_count(self) -> int: ...
    @property
    def padding_row_count(self) -> int: ...
    @property
    def failed_batch_count(self) -> int: ...
    @property
    def split_request_count(self) -> int: ...
    @property
    def wait_ns(self) -> int: ...
    @property
    def run_ns(self) -> int: ...
    @property
    def by_rows(self) -> Sequence[int]:
        """The runs by rows: class i has more than 2^(i-1) and at most 2^i."""
        ...

    @property
    def by_requests(self) -> Sequence[int]:
        """The runs by requests, in the same classes."""
        ...

    @property
    def by_wait(self) -> Sequence[int]:
        """The requests by their wait in µs, in such classes."""
        ...

    @property
    def by_run(self) -> Sequence[int]:
        """The runs by their time in µs, in such classes."""
        ...


class SignatureBatching(Protocol):
    """If the requests of a signature share runs (`_native.SignatureBatching`)."""

    @property
    def signature(self) -> str:
        """The signature's name; "" for runs of several signatures at once."""
        ...

    @property
    def is_on(self) -> bool: ...
    @property
    def refusal(self) -> str:
        """The reason why it is not batched; "" if it is."""
        ...

    @property
    def rows(self) -> str:
        """The verdict of its graph on its rows: "independent", "unknown" or "mixes"."""
        ...

    @property
    def rows_reason(self) -> str:
        """The output and the node that show it; "" if they are independent."""
        ...

    @property
    def joined_rows_max(self) -> int:
        """The rows up to which a batch is extended now."""
        ...

    @property
    def joined_requests_max(self) -> int:
        """The most requests that a batch's first one takes along."""
        ...

    @property
    def figures(self) -> BatchFigures: ...


class Servable(Protocol):
    """One loaded version; `_native.Servable` is the implementation for SavedModels."""

    @property
    def handle_count(self) -> int:
        """The number of requests that hold the version now."""
        ...

    def answer(self, method: str, request: bytes) -> bytes:
        """Answers a serialized request with a serialized response; the version need not be published.

        `method` is "Predict", "Classify", "Regress" or "MultiInference".
        """
        ...

    def replay(self, method: str, request: bytes) -> bytes:
        """Does the same, and changes no variable; raises PERMISSION_DENIED if it would."""
        ...

    def predict(self, request: bytes) -> bytes:
        """Answers a serialized PredictRequest; the version need not be published."""
        ...

    @property
    def may_write_variables(self) -> bool:
        """True if a request may change a later answer; also True if unknown. May become True."""
        ...

    def signature_def_map(self) -> bytes:
        """Returns a serialized tensorflow.serving.SignatureDefMap: the inputs and outputs for clients."""
        ...

    def prepare(self, request: bytes) -> None:
        """Makes the callable that this request needs, if the version does not have it yet."""
        ...

    # Any, because a version takes only a predecessor of its own data plane.
    def prove_batching(self, predecessor: Any = None) -> int:
        """Batches the signatures whose rows give in a batch what they give alone.

        Then runs the batches that `predecessor` runs most often, and returns their number. Call it
        once, after the warm-up, whose requests it repeats. Does nothing without batching. Raises the
        status CANCELLED after `cancel_runs`.
        """
        ...

    def cancel_runs(self) -> None:
        """Makes `answer`, `predict` and `prove_batching` end at their next kernel. Any thread."""
        ...

    def batching(self) -> Sequence[SignatureBatching]:
        """Returns how each signature is batched, also once destroyed; empty without batching."""
        ...

    def seal_arena(self) -> bool:
        """Makes its memory read-only; returns False, with nothing changed, if it cannot be sealed."""
        ...

    def statistics(self) -> ServableStatistics: ...

    def arena_statistics(self) -> ArenaStatistics | None:
        """Returns the statistics of its arena, or None if it has no arena."""
        ...

    def quiesce(self, timeout_seconds: float) -> bool:
        """Waits until no request holds it; returns False at the timeout. Retire it first."""
        ...

    def destroy(self) -> ArenaRemains:
        """Frees everything on the calling thread. Quiesce it first."""
        ...


class RequestReservoirStatistics(Protocol):
    """The size of a reservoir's contents (`_native.RequestReservoirStatistics`)."""

    @property
    def request_count(self) -> int: ...
    @property
    def request_bytes(self) -> int: ...


class RequestReservoir(Protocol):
    """Recent live requests of one model (`_native.RequestReservoir`)."""

    def requests(self) -> Sequence[bytes]: ...
    def joint_requests(self) -> Sequence[bytes]: ...
    def statistics(self) -> RequestReservoirStatistics: ...


class NotedMap(Protocol):
    """The part of the serving map that holds notes (`_native.ServingMap`)."""

    def set_notes(
        self,
        name: str,
        *,
        reason: str,
        is_awaited: bool,
        is_refused: bool,
        version_reasons: Mapping[int, str],
        awaited_versions: Sequence[int],
    ) -> None:
        """Replaces the error reasons of requests to `name` that find no version.

        See `serving.manager.model_notes.ModelNotes`.
        """
        ...


class ServingMap(NotedMap, Protocol):
    """The published versions and routings, as requests see them (`_native.ServingMap`)."""

    def set_routing(self, name: str, routing: Routing) -> None:
        """Replaces the routing of a name atomically: a request sees the old routing or the new one.

        The routing is kept while no version is published, until the default routing replaces it.
        """
        ...

    # Any, because a map takes only servables of its own data plane.
    def publish(self, servable: Any, routing: Routing) -> None:
        """Publishes the version together with the new routing of its name.

        If it raises, nothing has changed.
        """
        ...

    def retire(self, name: str, version: int, routing: Routing) -> None:
        """Retires the version together with the new routing of its name.

        Once this returns, no new request sees the version; running requests still hold it. If it
        raises, nothing has changed.
        """
        ...

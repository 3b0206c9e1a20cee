"""The serving map and the servables that it publishes, as the control plane sees them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from serving.core.servable import Routing


class ServableStatistics(Protocol):
    """What one version has served since it was loaded (`_native.ServableStatistics`)."""

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

    # Any: the difference of two of its own data plane's.
    def since(self, earlier: Any) -> "ServableStatistics":
        """What came between `earlier` and this, of the same version."""
        ...


class ArenaStatistics(Protocol):
    """Where the bytes of a version's slab are (`_native.ArenaStatistics`); the first four add up to it."""

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
        """Of all four: what has memory behind it."""
        ...


class ArenaRemains(Protocol):
    """What lived in a version's arena once everything of it was freed (`_native.ArenaRemains`)."""

    @property
    def live_bytes(self) -> int:
        """0 unless something leaked."""
        ...

    @property
    def live_blocks(self) -> Sequence[tuple[int, int]]:
        """What leaked, by size: (bytes of a block, number of blocks)."""
        ...

    @property
    def overflow_block_count(self) -> int:
        """Blocks that had not fitted the arena and leaked too."""
        ...


class Servable(Protocol):
    """One loaded version, whatever runs it (`_native.Servable` is the one for SavedModels)."""

    @property
    def handle_count(self) -> int:
        """Requests that hold it at the moment."""
        ...

    def answer(self, method: str, request: bytes) -> bytes:
        """Answers a serialized request of "Predict", "Classify", "Regress" or "MultiInference" with a
        serialized response; needs no publishing.
        """
        ...

    def predict(self, request: bytes) -> bytes:
        """Answers a serialized PredictRequest; needs no publishing."""
        ...

    @property
    def may_write_variables(self) -> bool:
        """Whether a request could change what later ones are answered from; True on doubt."""
        ...

    def signature_def_map(self) -> bytes:
        """A serialized tensorflow.serving.SignatureDefMap: what clients may send and ask for."""
        ...

    def prepare(self, request: bytes) -> None:
        """Makes what answering such a request needs and this version does not have yet."""
        ...

    def seal_arena(self) -> bool:
        """Makes its memory read-only; False, and nothing changed, where that cannot be."""
        ...

    def statistics(self) -> ServableStatistics: ...

    def arena_statistics(self) -> ArenaStatistics | None:
        """None where it has no arena."""
        ...

    def quiesce(self, timeout_seconds: float) -> bool:
        """Waits until no request holds it; False where the timeout came first. Retire it before."""
        ...

    def destroy(self) -> ArenaRemains:
        """Frees everything on the calling thread. Quiesce it before."""
        ...


class RequestReservoirStatistics(Protocol):
    """What a reservoir holds (`_native.RequestReservoirStatistics`)."""

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
    """The part of the serving map that takes notes (`_native.ServingMap`)."""

    def set_notes(
        self,
        name: str,
        *,
        reason: str,
        is_awaited: bool,
        version_reasons: Mapping[int, str],
        awaited_versions: Sequence[int],
    ) -> None:
        """Replaces what requests learn that find no version (`serving.manager.model_notes.ModelNotes`)."""
        ...


class ServingMap(NotedMap, Protocol):
    """What requests see now (`_native.ServingMap`)."""

    def set_routing(self, name: str, routing: Routing) -> None:
        """Replaces the routing of a name, all of it at once: a request sees the one before or this
        one. Kept while no version is published; the default routing ends that.
        """
        ...

    # Any: a map takes the servables of its own data plane, not every class that looks like one.
    def publish(self, servable: Any, routing: Routing) -> None:
        """Publishes the version together with the routing that its name has from now on. Raises with
        nothing changed.
        """
        ...

    def retire(self, name: str, version: int, routing: Routing) -> None:
        """Retires the version together with the routing that its name has from now on. No request sees
        it any more once this returns; running ones still hold it. Raises with nothing changed.
        """
        ...

"""The words of the control plane: servable ids, states, and the values that describe them.

Values only: nothing here has a thread, a lock or a clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, Protocol

from serving.base.errors import MillpondError, StatusCode


@dataclass(frozen=True, order=True)
class ServableId:
    """One version of one servable stream."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


class ServableState(IntEnum):
    """The states of a version, with the numbers of `ModelVersionStatus.State` on the wire."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


START = ServableState.START
LOADING = ServableState.LOADING
AVAILABLE = ServableState.AVAILABLE
UNLOADING = ServableState.UNLOADING
END = ServableState.END

# Every legal move. The harness, the diagram and the tests all come from this table.
TRANSITIONS: Mapping[ServableState, frozenset[ServableState]] = MappingProxyType(
    {
        START: frozenset({LOADING, END}),
        LOADING: frozenset({AVAILABLE, END}),
        AVAILABLE: frozenset({UNLOADING}),
        UNLOADING: frozenset({END}),
        END: frozenset(),
    }
)


def state_diagram() -> str:
    """TRANSITIONS as a Mermaid state diagram, for ARCHITECTURE.md."""
    moves = [
        f"    {old.name} --> {new.name}" for old in TRANSITIONS for new in sorted(TRANSITIONS[old])
    ]
    return "\n".join(["stateDiagram-v2", "    [*] --> START", *moves, "    END --> [*]"])


class LoadStage(Enum):
    """What a load does while its version is LOADING, in order."""

    CHECK = "check"
    READ_GRAPH = "read_graph"
    TAKE_ARENA = "take_arena"
    CREATE_SESSION = "create_session"
    RESTORE = "restore"
    INIT = "init"
    MAKE_CALLABLES = "make_callables"
    WARM_UP = "warm_up"
    SELF_WARM_UP = "self_warm_up"
    GATES = "gates"
    PUBLISH = "publish"


class UnloadStage(Enum):
    """What an unload does while its version is UNLOADING, in order."""

    QUIESCE = "quiesce"
    DESTROY = "destroy"


Stage = LoadStage | UnloadStage


@dataclass(frozen=True)
class Health:
    """Why a version is as it is: OK, or the error that its last load or unload met."""

    code: StatusCode = StatusCode.OK
    message: str = ""

    @classmethod
    def of(cls, error: MillpondError) -> "Health":
        """The health of a version that met `error`."""
        return cls(error.code, error.message)


HEALTHY = Health()


@dataclass(frozen=True, kw_only=True)
class AspiredVersion:
    """One version that should be loaded and ready, and where its files are.

    `found_at_ns` (monotonic) tells two drops of one version number apart: a version whose load
    failed is tried again once it is found anew, dropped again or mended in place. `detected_at_ns`
    is when its directory was first seen; until it was found its files settled.
    """

    version: int
    directory: str
    found_at_ns: int = 0
    detected_at_ns: int = field(default=0, compare=False)


@dataclass(frozen=True)
class ServableSnapshot:
    """What an aspired-version policy knows of one version.

    `is_kept`: not aspired, and yet wanted in memory: by a label, by a canary beside it, or ready
    for a rollback. `is_barred`: rolled back, so no cover for another. `is_given_up`: no longer kept
    for a rollback, because a load needs its memory.
    """

    id: ServableId
    state: ServableState
    is_aspired: bool
    is_kept: bool = False
    is_barred: bool = False
    is_given_up: bool = False


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """What one gate found of one version. `figures` are its measurements, by name with unit."""

    gate: str
    # `GateMode.value`: an enforced gate that is not passed ends the version.
    mode: str
    is_passed: bool
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServableStatus:
    """One version as status, health checks and logs see it. A value: it never changes."""

    id: ServableId
    state: ServableState
    health: Health = HEALTHY
    stage: Stage | None = None
    stage_seconds: Mapping[Stage, float] = field(default_factory=dict)
    failed_load_count: int = 0
    verdicts: tuple[GateVerdict, ...] = ()
    # Unix time of the last change of `state`.
    state_changed_wall_ns: int = 0
    # Monotonic: when each stage of `stage_seconds` ended, and when its files were seen and found.
    stage_ended_at_ns: Mapping[Stage, int] = field(default_factory=dict)
    detected_at_ns: int = 0
    found_at_ns: int = 0
    # Monotonic: when a loader thread began its first stage; 0 before.
    work_began_at_ns: int = 0
    # What load and unload measured of themselves, by name with unit (`serving/manager/task_figures.py`).
    figures: Mapping[str, float] = field(default_factory=dict)


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


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How requests for one model that name no version number find one.

    `default_version` None, or not published: requests without version and label are refused. So no
    version answers them by being there: `serving/manager/router.py` has to decide it. A label whose version
    is not published finds nothing. `canary_weight` is the share of the requests without version and
    label that the canary gets, by the value of the metadata key `canary_header` where a request
    has it, else at random; a canary that is not published gets none.
    """

    default_version: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    canary_version: int | None = None
    canary_weight: float = 0.0
    canary_header: str = ""


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

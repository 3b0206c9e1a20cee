"""The words of the control plane: servable ids, states, and the values that describe them.

Values only, without a thread, a lock or a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType

from serving.base.errors import FilesGone, MillpondError, StatusCode
from serving.base.fingerprint import Fingerprint


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

# Every legal move. The harness and the tests use this table; docs
TRANSITIONS: Mapping[ServableState, frozenset[ServableState]] = MappingProxyType(
    {
        START: frozenset({LOADING, END}),
        LOADING: frozenset({AVAILABLE, END}),
        AVAILABLE: frozenset({UNLOADING}),
        UNLOADING: frozenset({END}),
        END: frozenset(),
    }
)


class LoadStage(Enum):
    """The stages of a load while its version is LOADING, in order."""

    CHECK = "check"
    READ_GRAPH = "read_graph"
    TAKE_ARENA = "take_arena"
    CREATE_SESSION = "create_session"
    RESTORE = "restore"
    INIT = "init"
    COMPILE = "compile"
    MAKE_CALLABLES = "make_callables"
    WARM_UP = "warm_up"
    SELF_WARM_UP = "self_warm_up"
    VERIFY_BATCHING = "verify_batching"
    MEASURE = "measure"
    GATES = "gates"
    PUBLISH = "publish"


class UnloadStage(Enum):
    """The stages of an unload while its version is UNLOADING, in order."""

    QUIESCE = "quiesce"
    DESTROY = "destroy"


Stage = LoadStage | UnloadStage


@dataclass(frozen=True)
class Health:
    """OK, or the error of the last load or unload of a version."""

    code: StatusCode = StatusCode.OK
    message: str = ""
    # True if the load failed because the version's directory was gone.
    are_files_gone: bool = False

    @classmethod
    def of(cls, error: MillpondError) -> "Health":
        """The health of a version whose load or unload raised `error`."""
        return cls(error.code, error.message, isinstance(error, FilesGone))


HEALTHY = Health()


@dataclass(frozen=True, kw_only=True)
class AspiredVersion:
    """One version that should be loaded and ready, and the directory of its files.

    `found_at_ns` (monotonic) distinguishes two drops of one version number. If a version's load
    failed and its files are then dropped again or repaired in place, the version is found again and
    loaded again. `detected_at_ns` is when its directory was first seen. Its files settled between
    `detected_at_ns` and `found_at_ns`.
    """

    version: int
    directory: str
    found_at_ns: int = 0
    detected_at_ns: int = field(default=0, compare=False)
    # The files as they were found; None if a source does not say.
    fingerprint: Fingerprint | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ServableSnapshot:
    """One version as an aspired-version policy sees it.

    - `is_kept`: it is not aspired, but kept in memory by a label, by a canary beside it, or for a
      rollback.
    - `is_blocked`: it is blocked (for example rolled back) or requests go to a lower version (for example
      because it did not pass its canary), so it is unloaded before other versions that are not aspired.
    - `is_given_up`: it is no longer kept for a rollback, because a load needs its memory.
    - `is_pressing`: it did not fit into memory beside an old version, and its load waits until the
      old version is unloaded.
    """

    id: ServableId
    state: ServableState
    is_aspired: bool
    is_kept: bool = False
    is_blocked: bool = False
    is_given_up: bool = False
    is_pressing: bool = False


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """The verdict of one gate on one version. `figures` are its measurements, by name with unit.

    If it was given without a predecessor, there was nothing to compare the version with, so the version may
    be sound despite a warning.
    """

    gate: str
    # A `GateMode.value`. An enforced gate that is not passed ends the version.
    mode: str
    is_passed: bool
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    has_predecessor: bool = True


@dataclass(frozen=True, kw_only=True)
class ServableStatus:
    """One version as status, health checks and logs see it. Immutable."""

    id: ServableId
    state: ServableState
    health: Health = HEALTHY
    stage: Stage | None = None
    stage_seconds: Mapping[Stage, float] = field(default_factory=dict)
    failed_load_count: int = 0
    # True from a load that found no room, but for which another version is unloaded, to the end of the next
    # load: nothing has failed so far, so requests wait for the version.
    is_given_room: bool = False
    verdicts: tuple[GateVerdict, ...] = ()
    # The last change of `state`: monotonic to measure with, and as a Unix time to show.
    state_changed_ns: int = 0
    state_changed_wall_ns: int = 0
    # Monotonic: when each stage of `stage_seconds` ended, and when the files were seen and found.
    stage_ended_at_ns: Mapping[Stage, int] = field(default_factory=dict)
    detected_at_ns: int = 0
    found_at_ns: int = 0
    # Monotonic: when a loader thread began its first stage; 0 before.
    work_began_at_ns: int = 0
    # The figures that the load and the unload measured, by name with unit.
    figures: Mapping[str, float] = field(default_factory=dict)
    # Texts of the load for its swap, by name, like "unrepeatable_reason".
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The versions of one model that answer requests without a version number.

    `default_version` answers requests without version and label. If it is None or not published,
    these requests are refused: a loaded version does not become the default by itself. A request with
    a label is refused if the label's version is not published. `awaited_labels` lead nowhere yet, and
    have the versions that they are to lead to: their requests are refused with that number.

    `canary_weight` is the share of the requests without version and label that the canary gets. If a
    request has the metadata key `canary_header`, the key's value decides whether the canary gets the
    request; otherwise chance decides. A canary that is not published gets no requests.
    """

    default_version: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    canary_version: int | None = None
    canary_weight: float = 0.0
    canary_header: str = ""
    awaited_labels: Mapping[str, int] = field(default_factory=dict)

"""The last report of each server, as values. The decisions of a fleet are made from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.rollout.figures import NO_REQUESTS, VersionFigures
from serving.base.errors import TRANSIENT_CODES, StatusCode
from serving.core.servable import AVAILABLE, END, HEALTHY, LOADING, Health, ServableState

# CANCELLED is no failure, because the coordinator itself has withdrawn the grant of that load.
_NO_FAILURE = frozenset({StatusCode.OK, StatusCode.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReport:
    """One version on one server.

    `warned` has the gates that the version did not pass but that only warn, and their reasons. `warned_alone`
    has those gates of `warned` that had no predecessor to compare the version with. The gates in `excused`
    passed the version although its answers are suspicious, because its predecessor's answers are as suspicious.
    """

    state: ServableState
    health: Health = HEALTHY
    figures: VersionFigures = NO_REQUESTS
    warned: Mapping[str, str] = field(default_factory=dict)
    warned_alone: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()

    @property
    def is_refused(self) -> bool:
        """True if the same files would fail again, because a gate or the version's own error ended its load."""
        return self.has_failed and self.health.code not in TRANSIENT_CODES

    @property
    def has_failed(self) -> bool:
        """True if its load has ended with an error, and the server does not repeat the load."""
        return self.state is END and self.health.code not in _NO_FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One model on one server.

    `granted` is the version that the server may select, and `order` is the order of the grant that said so.
    If `granted` is None, the server may select no version, because it has got no grant yet, or the last one
    was withdrawn. `default_version` answers requests that name no version. `found` are the versions on the
    server's disk. `blocked` are versions that the server itself has rolled back, with the reasons.
    """

    granted: int | None = None
    order: int = 0
    default_version: int | None = None
    found: frozenset[int] = frozenset()
    versions: Mapping[int, VersionReport] = field(default_factory=dict)
    blocked: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_swapping(self) -> bool:
        """True if a version is loading while another one serves."""
        return self.default_version is not None and any(
            row.state is LOADING for row in self.versions.values()
        )

    def serves(self, version: int) -> bool:
        row = self.versions.get(version)
        return row is not None and row.state is AVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """One server. Each start of its process has another `incarnation`.

    A server that drains answers the requests that it has, and gets no new version. `free_bytes` is the
    memory that the server may still take.
    """

    incarnation: int = 0
    models: Mapping[str, ModelReport] = field(default_factory=dict)
    is_draining: bool = False
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sighting:
    """The last report of a server, and the time at which it came (monotonic).

    If `report` is None, the server has not reported to this coordinator, which has waited for its report
    since `seen_at_ns`. A server that `is_leaving` is about to be ended by its engine, such as Kubernetes,
    whether it drains already or not. `models` are the models that the server may have; None if its engine
    does not know them.
    """

    report: ServerReport | None
    seen_at_ns: int
    is_leaving: bool = False
    models: frozenset[str] | None = None

    @property
    def is_draining(self) -> bool:
        return self.is_leaving or (self.report is not None and self.report.is_draining)


@dataclass(frozen=True, slots=True)
class Grant:
    """Allows a server to select this version of the model, and no other version.

    If `version` is None, it withdraws the last grant, and the server may select no version. A server ignores a
    grant whose `order` is below the order of the last grant that it took. So a grant does no harm if it is sent
    twice or late, or by a coordinator that was replaced.
    """

    server: str
    model: str
    version: int | None
    order: int

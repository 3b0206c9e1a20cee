"""The last report of each server: values that the fleet's decisions are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.rollout.figures import NO_REQUESTS, VersionFigures
from serving.base.errors import TRANSIENT_CODES, StatusCode
from serving.core.servable import AVAILABLE, END, HEALTHY, LOADING, Health, ServableState

# CANCELLED is the end of a load that the coordinator itself has withdrawn.
_NO_FAILURE = frozenset({StatusCode.OK, StatusCode.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReport:
    """One version on one server.

    `warned` has the gates that only warn and that it did not pass, with the reasons. The gates in
    `warned_alone` are among them, and had no predecessor to compare it with. The gates in `excused` found
    its answers suspicious, but passed it because its predecessor's answers are as suspicious.
    """

    state: ServableState
    health: Health = HEALTHY
    figures: VersionFigures = NO_REQUESTS
    warned: Mapping[str, str] = field(default_factory=dict)
    warned_alone: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()

    @property
    def is_refused(self) -> bool:
        """True if the same files would fail again: a gate or an error of the version has ended it."""
        return self.has_failed and self.health.code not in TRANSIENT_CODES

    @property
    def has_failed(self) -> bool:
        """True if its load has ended with an error, and the server does not retry it."""
        return self.state is END and self.health.code not in _NO_FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One model on one server.

    `granted` is the version that the server may select, by the grant with the number `order`. With None it
    may select no version, because nothing was granted yet or the last grant was withdrawn. `found` are the
    versions on its disk. `blocked` are versions that the server itself has rolled back, with the reason.
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
    """One server. `incarnation` differs after each start of its process.

    A server that drains answers the requests that it has, and gets no new version. `free_bytes` is the
    memory that it may still take.
    """

    incarnation: int = 0
    models: Mapping[str, ModelReport] = field(default_factory=dict)
    is_draining: bool = False
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sighting:
    """The last report of a server, and when it came (monotonic).

    If it is None, the server has not reported to this coordinator, which waits for it since `seen_at_ns`. A
    server that `is_leaving` is being ended by the place where it runs, whether it drains already or not.
    `models` are those that it may have, if that place knows them.
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
    """The action on a server: from now on it may select this version of the model, and no other.

    None withdraws the version that it was granted, so that it may select no version. A server ignores a
    grant whose `order` is below the order of the last grant that it took. So a grant may be sent twice,
    late, or by a coordinator that has been replaced.
    """

    server: str
    model: str
    version: int | None
    order: int

"""The versions that the coordinator of a fleet grants to a server (--fleet_member). Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.base.errors import DataLoss


@dataclass(frozen=True, slots=True)
class GrantedVersion:
    """The one version of a model that the server may select; None if the last grant was withdrawn.

    `order` numbers the coordinator's decisions: a grant with a lower order than the last one is stale.
    `since_ns` (monotonic) is when this process was granted the version; 0: before its start.
    """

    version: int | None
    order: int
    since_ns: int = field(default=0, compare=False)


def as_document(granted: Mapping[str, GrantedVersion]) -> dict[str, Any]:
    """The grants by model, in the types of JSON."""
    return {
        name: {"version": granted[name].version, "order": granted[name].order}
        for name in sorted(granted)
    }


def from_document(document: object) -> dict[str, GrantedVersion]:
    """Reads the value that `as_document` returned. Raises DataLoss for anything else."""
    if not isinstance(document, dict):
        raise DataLoss(f"granted versions are an object, not {document!r}")
    return {name: _granted(name, row) for name, row in document.items()}


def _granted(name: str, row: object) -> GrantedVersion:
    if isinstance(row, dict) and "version" in row and type(row.get("order")) is int:
        version = row["version"]
        if version is None or type(version) is int:
            return GrantedVersion(version, row["order"])
    raise DataLoss(f"not a granted version of model {name!r}: {row!r}")

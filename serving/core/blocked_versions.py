"""Versions that are neither served nor loaded, with who blocked them, when and why. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DataLoss
from serving.base.fingerprint import Fingerprint

CRASH_WAIT_SECONDS_MAX = 300.0
"""The longest time for which a version that crashed the server is refused even as the fallback."""


class BlockedBy(Enum):
    """The originator of a block, which decides how long the block lasts."""

    OPERATOR = "operator"  # a person's rollback: until a person allows it
    CANARY = "canary"  # a canary's figures: until a person allows it
    CRASH = "crash"  # the server died while it ran or loaded it: until a person allows it
    GATE = "gate"  # gates refused it: until its files or the settings of these gates change
    FAILURE = "failure"  # its load failed while no other version served: until its files or settings change


@dataclass(frozen=True)
class Refusal:
    """The files that gates have refused, and the settings of these gates, by gate, in the types of JSON."""

    files: Fingerprint
    gates: Mapping[str, Mapping[str, Any]] = field(hash=False)


@dataclass(frozen=True, kw_only=True)
class BlockedVersion:
    """The block of one version. `since_wall_ns` is a Unix time.

    Until `not_before_wall_ns` the version does not serve even as the fallback: a crash sets this time. 0
    for every other block. A gate's block has a `refusal` if the source has named the files.
    """

    by: BlockedBy
    reason: str = ""
    since_wall_ns: int = 0
    not_before_wall_ns: int = 0
    refusal: Refusal | None = None

    @property
    def needs_operator(self) -> bool:
        """True if only an operator can remove the block.

        Such a block outlives the process and a change of the files.
        """
        return self.by not in (BlockedBy.FAILURE, BlockedBy.GATE)

    @property
    def is_kept(self) -> bool:
        """True if the block outlives the process."""
        return self.needs_operator or self.refusal is not None

    def wait_ns(self, now_wall_ns: int) -> int:
        """The time for which it must not serve even as the fallback; 0 if it may.

        More than any wait is left only if the clock was set back, or was ahead at the crash. Then the wait
        is over: otherwise the model would be refused until the clock comes to that time again.
        """
        left_ns = self.not_before_wall_ns - now_wall_ns
        return left_ns if 0 < left_ns <= CRASH_WAIT_SECONDS_MAX * NS_PER_SECOND else 0


BlockedVersions: TypeAlias = Mapping[int, BlockedVersion]
"""The blocks of one model, by version."""


def crashed_of(blocked_versions: BlockedVersions) -> BlockedVersions:
    """The versions that the server has crashed with."""
    return {key: block for key, block in blocked_versions.items() if block.not_before_wall_ns}


def as_rows(blocked_versions: BlockedVersions) -> list[dict[str, Any]]:
    """The blocks in the types of JSON, by version, for the status and for a file."""
    return [
        {
            "version": version,
            "by": blocked_versions[version].by.value,
            "reason": blocked_versions[version].reason,
            "since_wall_ns": blocked_versions[version].since_wall_ns,
            **_not_before(blocked_versions[version]),
        }
        for version in sorted(blocked_versions)
    ]


def as_kept_rows(blocked_versions: BlockedVersions) -> list[dict[str, Any]]:
    """The blocks for a file: the rows of `as_rows`, with what gates have refused."""
    rows = as_rows(blocked_versions)
    for row in rows:
        refusal = blocked_versions[row["version"]].refusal
        if refusal is not None:
            row["files"] = [list(entry) for entry in refusal.files.entries]
            row["gates"] = {gate: dict(settings) for gate, settings in refusal.gates.items()}
    return rows


def _not_before(block: BlockedVersion) -> dict[str, int]:
    """The key that only the row of a crash has."""
    return {"not_before_wall_ns": block.not_before_wall_ns} if block.not_before_wall_ns else {}


def from_rows(rows: object) -> BlockedVersions:
    """Reads the rows that `as_rows` or `as_kept_rows` returned. Raises DataLoss for anything else."""
    if not isinstance(rows, list):
        raise DataLoss(f"blocked versions are a list, not {rows!r}")
    return dict(_from_row(row) for row in rows)


def _from_row(row: object) -> tuple[int, BlockedVersion]:
    try:
        version, by = row["version"], BlockedBy(row["by"])  # type: ignore[index]
        reason, since_wall_ns = row["reason"], row["since_wall_ns"]  # type: ignore[index]
        not_before_wall_ns = row.get("not_before_wall_ns", 0)  # type: ignore[attr-defined]
        refusal = _refusal_from(row) if "files" in row else None  # type: ignore[arg-type, operator]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataLoss(f"not a blocked version: {row!r}") from error
    are_numbers = all(type(item) is int for item in (version, since_wall_ns, not_before_wall_ns))
    is_typed = are_numbers and isinstance(reason, str)
    if not is_typed or version < 0:
        raise DataLoss(f"not a blocked version: {row!r}")
    block = BlockedVersion(
        by=by,
        reason=reason,
        since_wall_ns=since_wall_ns,
        not_before_wall_ns=not_before_wall_ns,
        refusal=refusal,
    )
    return version, block


def _refusal_from(row: Mapping[str, Any]) -> Refusal:
    """Reads a refusal. Raises KeyError, TypeError, ValueError or AttributeError."""
    entries = []
    for path, size_bytes, mtime_ns, stamp in row["files"]:
        if type(path) is not str or any(
            type(item) is not int for item in (size_bytes, mtime_ns, stamp)
        ):
            raise ValueError(path)
        entries.append((path, size_bytes, mtime_ns, stamp))
    gates = {gate: dict(settings) for gate, settings in row["gates"].items()}
    return Refusal(Fingerprint(tuple(entries)), gates)

"""Failed loads: decides if changed settings make a retry worthwhile.

The same files with the same settings would fail again. A source reports changed files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from serving.base.errors import StatusCode
from serving.base.fingerprint import Fingerprint
from serving.core.blocked_versions import Refusal
from serving.core.model_settings import GateMode, ModelSettings
from serving.core.servable import AspiredVersion, ServableStatus
from serving.gates.gates import Gate, settings_of


@dataclass(frozen=True, kw_only=True)
class FailedLoad:
    """A load that has failed and is not retried.

    It has loaded `files`, and began with `settings`. `refused_by` are the enforced gates that it did not
    pass.
    """

    files: AspiredVersion
    settings: ModelSettings
    code: StatusCode
    refused_by: tuple[Gate, ...] = ()

    @classmethod
    def of(
        cls, files: AspiredVersion, status: ServableStatus, settings: ModelSettings
    ) -> "FailedLoad":
        """The failed load of a version that ended with `status`."""
        refused_by = tuple(
            Gate(verdict.gate)
            for verdict in status.verdicts
            if verdict.mode == GateMode.ENFORCE.value and not verdict.is_passed
        )
        return cls(files=files, settings=settings, code=status.health.code, refused_by=refused_by)


def why_try_again(failed: FailedLoad, now: ModelSettings) -> str:
    """The changed setting that makes a retry worthwhile; "" without such a change.

    Compares the settings of the gates that refused the version. After a lack of memory, compares the
    settings that decide how much memory a load may take.
    """
    for gate in failed.refused_by:
        if settings_of(gate, failed.settings.gates) != settings_of(gate, now.gates):
            return f"the settings of gate {gate.value!r} have changed"
    if failed.code is StatusCode.RESOURCE_EXHAUSTED:
        for name in ("aspired_version_policy", "keep_previous_seconds"):
            if getattr(failed.settings, name) != getattr(now, name):
                return f"{name} has changed"
    return ""


def refusal_of(failed: FailedLoad) -> Refusal | None:
    """The refusal of a load by gates; None if the source has not named the files."""
    if failed.files.fingerprint is None:
        return None
    gates = {gate.value: _as_json(gate, failed.settings) for gate in failed.refused_by}
    return Refusal(failed.files.fingerprint, gates)


def why_refusal_ends(refusal: Refusal, files: Fingerprint, now: ModelSettings) -> str:
    """The change of the files, or of a gate's settings, that ends a refusal; "" without such a change.

    A setting that an earlier release did not have is no change.
    """
    if not files.has_the_files_of(refusal.files):
        return "its files have changed"
    known = {gate.value: _as_json(gate, now) for gate in Gate}
    for gate, settings in refusal.gates.items():
        if not settings.items() <= known.get(gate, {}).items():
            return f"the settings of gate {gate!r} have changed"
    return ""


def _as_json(gate: Gate, settings: ModelSettings) -> dict[str, Any]:
    found = settings_of(gate, settings.gates)
    return {key: item.value if isinstance(item, Enum) else item for key, item in found.items()}


def without_changed_files(
    failed: Mapping[int, FailedLoad], found: Iterable[AspiredVersion]
) -> Mapping[int, FailedLoad]:
    """The failures without those of versions that are found with other files."""
    changed = {
        item.version
        for item in found
        if item.version in failed and failed[item.version].files != item
    }
    return {key: item for key, item in failed.items() if key not in changed} if changed else failed

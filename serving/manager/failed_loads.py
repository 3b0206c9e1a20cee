"""Failed loads: whether other settings make one worth another try. Pure.

The same files by the same settings would fail again; `source.py` tells when the files change.
"""

from dataclasses import dataclass

from serving.base.errors import StatusCode
from serving.core.model_settings import GateMode, ModelSettings
from serving.core.servable import ServableStatus
from serving.gates.gates import Gate, settings_of


@dataclass(frozen=True, kw_only=True)
class FailedLoad:
    """One that has failed for good: `settings` are those by which it began, `refused_by` the enforced
    gates that it did not pass.
    """

    settings: ModelSettings
    code: StatusCode
    refused_by: tuple[Gate, ...] = ()

    @classmethod
    def of(cls, status: ServableStatus, settings: ModelSettings) -> "FailedLoad":
        """The load that ended with `status`."""
        refused_by = tuple(
            Gate(verdict.gate)
            for verdict in status.verdicts
            if verdict.mode == GateMode.ENFORCE.value and not verdict.is_passed
        )
        return cls(settings=settings, code=status.health.code, refused_by=refused_by)


def why_try_again(failed: FailedLoad, now: ModelSettings) -> str:
    """What of the settings has changed that the load failed by; "" where nothing has.

    A gate's own settings, and what decides how much memory there is for a load.
    """
    for gate in failed.refused_by:
        if settings_of(gate, failed.settings.gates) != settings_of(gate, now.gates):
            return f"the settings of gate {gate.value!r} have changed"
    if failed.code is StatusCode.RESOURCE_EXHAUSTED:
        for name in ("aspired_version_policy", "keep_previous_seconds"):
            if getattr(failed.settings, name) != getattr(now, name):
                return f"{name} has changed"
    return ""

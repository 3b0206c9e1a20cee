"""Failed loads: decides if changed settings make a retry worthwhile.

The same files with the same settings would fail again. A source reports changed files.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from serving.base.errors import StatusCode
from serving.core.model_settings import GateMode, ModelSettings
from serving.core.servable import AspiredVersion, ServableStatus
from serving.gates.gates import Gate, settings_of


@dataclass(frozen=True, kw_only=True)
class FailedLoad:
    """A load that has failed and is not retried.

    It was a load of `files` that began with `settings`. `refused_by` are the enforced gates that it did not pass.
    """

    files: AspiredVersion
    settings: ModelSettings
    code: StatusCode
    refused_by: tuple[Gate, ...] = ()

    @classmethod
    def of(
        cls, files: AspiredVersion, status: ServableStatus, settings: ModelSettings
    ) -> "FailedLoad":
        """Returns the failed load of a version that ended with `status`."""
        refused_by = tuple(
            Gate(verdict.gate)
            for verdict in status.verdicts
            if verdict.mode == GateMode.ENFORCE.value and not verdict.is_passed
        )
        return cls(files=files, settings=settings, code=status.health.code, refused_by=refused_by)


def why_try_again(failed: FailedLoad, now: ModelSettings) -> str:
    """Returns the changed setting that makes a retry worthwhile; "" without such a change.

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


class LoadHistory:
    """The settings that each load of a stream began with, and the loads that failed and are not retried.

    Control thread only.
    """

    def __init__(self) -> None:
        self._begun_with: dict[int, ModelSettings] = {}
        self._failed: dict[int, FailedLoad] = {}

    @property
    def failed(self) -> Collection[int]:
        """The versions whose load has failed and is not retried."""
        return self._failed.keys()

    def note_begin(self, version: int, settings: ModelSettings) -> None:
        self._begun_with[version] = settings

    def note_failure(
        self, files: AspiredVersion, status: ServableStatus, now: ModelSettings
    ) -> None:
        """Records a load of `files` that has failed and is not retried.

        `now` are the settings to record if the settings at the begin of the load are unknown.
        """
        settings = self._begun_with.get(files.version, now)
        self._failed[files.version] = FailedLoad.of(files, status, settings)

    def found(self, versions: Iterable[AspiredVersion]) -> None:
        """Forgets the failures of versions that are found with other files."""
        for item in versions:
            if item.version in self._failed and self._failed[item.version].files != item:
                self.forget_failure(item.version)

    def forget_failure(self, version: int) -> None:
        self._failed.pop(version, None)

    def why_try_again(self, version: int, now: ModelSettings) -> str:
        """Returns the changed setting that makes a retry of a failed version worthwhile, or ""."""
        return why_try_again(self._failed[version], now)

    def keep_only(self, *, begun: Collection[int], failed: Collection[int]) -> None:
        """Forgets the settings of versions not in `begun`, and failures not in `failed`."""
        self._begun_with = {key: item for key, item in self._begun_with.items() if key in begun}
        self._failed = {key: item for key, item in self._failed.items() if key in failed}

"""The memory pressure of one stream: the loads that lack memory, and the load for which room is made.

A value.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PressureState:
    """A version presses while its load waits until an old version is unloaded.

    At most one version presses at a time.

    Pressure ends when that version is AVAILABLE, has failed and is not retried, or is no longer aspired.
    """

    # The version that did not fit beside the old one; None without pressure.
    pressing_version: int | None = None
    # The reason why an old version is now unloaded first; "" without pressure.
    reason: str = ""
    # The versions whose last load lacked memory that no unload could free.
    lacking: frozenset[int] = frozenset()

    @property
    def is_on(self) -> bool:
        return self.pressing_version is not None

    def begun(self, version: int, reason: str) -> "PressureState":
        """Notes that the load of `version` waits until an old version is unloaded.

        Changes nothing if another load waits already.
        """
        return self if self.is_on else replace(self, pressing_version=version, reason=reason)

    def ended(self) -> "PressureState":
        """Ends the pressure, so two versions may be in memory again."""
        return replace(self, pressing_version=None, reason="") if self.is_on else self

    def unless_aspired(self, aspired: Collection[int]) -> "PressureState":
        """Ends the pressure of a version that is no longer aspired."""
        return self if self.pressing_version in aspired else self.ended()

    def with_lack(self, version: int, *, is_lacking: bool) -> "PressureState":
        """Notes if the load of `version` lacked memory that no unload could free."""
        lacking = self.lacking | {version} if is_lacking else self.lacking - {version}
        return replace(self, lacking=lacking)

    def only(self, versions: Collection[int]) -> "PressureState":
        """Forgets the lack of other versions."""
        lacking = self.lacking & frozenset(versions)
        return self if lacking == self.lacking else replace(self, lacking=lacking)

"""The memory pressure of one stream: the loads that lack memory, and the one that makes room.

Control thread only.
"""

from collections.abc import Collection


class PressureState:
    """At most one version presses at a time: its load waits until an old version is unloaded.

    Pressure ends when that version is AVAILABLE, has failed for good or is no longer aspired.
    """

    def __init__(self) -> None:
        self._pressing_version: int | None = None
        self._reason = ""
        self._lacking: frozenset[int] = frozenset()

    @property
    def pressing_version(self) -> int | None:
        """The version that did not fit beside the old one; None without pressure."""
        return self._pressing_version

    @property
    def reason(self) -> str:
        """The reason why an old version is unloaded first at the moment; "" without pressure."""
        return self._reason

    @property
    def is_on(self) -> bool:
        return self._pressing_version is not None

    def begin(self, version: int, reason: str) -> bool:
        """Starts pressure by `version`. Returns False if another load presses already."""
        if self.is_on:
            return False
        self._pressing_version, self._reason = version, reason
        return True

    def end(self) -> None:
        """Ends the pressure: two versions may be in memory again."""
        self._pressing_version, self._reason = None, ""

    def end_unless_aspired(self, aspired: Collection[int]) -> None:
        """Ends the pressure of a version that is no longer aspired."""
        if self._pressing_version not in aspired:
            self.end()

    def note_lack(self, version: int, *, is_lacking: bool) -> None:
        """Notes if a load lacked memory while no other version could be unloaded for it."""
        self._lacking = self._lacking | {version} if is_lacking else self._lacking - {version}

    def lacks_memory(self, version: int) -> bool:
        """Returns True if the last load of `version` was noted as lacking."""
        return version in self._lacking

    def keep_only(self, versions: Collection[int]) -> None:
        """Forgets the lacks of other versions."""
        self._lacking &= frozenset(versions)

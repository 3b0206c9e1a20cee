"""The memory pressure of one stream: the loads that lack memory, and the one that makes room.

Control thread only.
"""

from collections.abc import Collection


class PressureState:
    """At most one version presses at a time: its load waits until an old version is unloaded.

    Pressure ends when that version is AVAILABLE, has failed and is not retried, or is no longer aspired.
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
        """The reason why an old version is now unloaded first; "" without pressure."""
        return self._reason

    @property
    def is_on(self) -> bool:
        return self._pressing_version is not None

    def begin(self, version: int, reason: str) -> bool:
        """Records that the load of `version` waits until an old version is unloaded.

        At most one load waits at a time. Returns False if another load waits already.
        """
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
        """Records whether a load lacked memory that no unload could free."""
        self._lacking = self._lacking | {version} if is_lacking else self._lacking - {version}

    def lacks_memory(self, version: int) -> bool:
        """Returns True if the last load of `version` lacked memory that no unload could free."""
        return version in self._lacking

    def keep_only(self, versions: Collection[int]) -> None:
        """Forgets which other versions lacked memory."""
        self._lacking &= frozenset(versions)

"""The version of one stream that stays in memory for a rollback. Control thread only."""

from serving.base.clock import NS_PER_SECOND


class KeptPrevious:
    """Records since when the previous version is in memory only for a rollback (monotonic).

    If a load needs its memory, the version is given up. It is not kept again until another version
    becomes the previous one.
    """

    def __init__(self) -> None:
        self._superseded: tuple[int, int] | None = None
        self._given_up: int | None = None

    @property
    def version(self) -> int | None:
        """The version that is in memory only for a rollback."""
        return None if self._superseded is None else self._superseded[0]

    @property
    def given_up(self) -> int | None:
        """The previous version if it was given up."""
        return self._given_up

    def note(self, previous: int | None, *, is_named: bool, now_ns: int) -> None:
        """Records the previous version. `is_named` is True if a label or a canary keeps it too."""
        if self._given_up != previous:
            self._given_up = None
        if previous is None or is_named:
            self._superseded = None
        elif self.version != previous:
            self._superseded = (previous, now_ns)

    def give_up(self, version: int) -> None:
        self._given_up = version

    def until_ns(self, keep_seconds: float) -> int | None:
        """Returns the end of `keep_seconds` for the previous version (monotonic).

        Returns None if no version is kept.
        """
        if keep_seconds == 0 or self._superseded is None:
            return None
        version, since_ns = self._superseded
        return None if version == self._given_up else since_ns + round(keep_seconds * NS_PER_SECOND)

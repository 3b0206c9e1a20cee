"""The version of one stream that stays in memory for a rollback: a value."""

from dataclasses import dataclass, replace

from serving.base.clock import NS_PER_SECOND


@dataclass(frozen=True)
class KeptPrevious:
    """The previous version, and the time since when it is in memory only for a rollback (monotonic).

    If a load needs its memory, the version is given up. It is not kept again until another version
    becomes the previous one.
    """

    # The version that is in memory only for a rollback, and since when.
    superseded: tuple[int, int] | None = None
    # The previous version if it was given up.
    given_up: int | None = None

    @property
    def version(self) -> int | None:
        """The version that is in memory only for a rollback."""
        return None if self.superseded is None else self.superseded[0]

    def after(self, previous: int | None, *, is_named: bool, now_ns: int) -> "KeptPrevious":
        """Takes over this previous version. If it `is_named`, a label or a canary keeps it too."""
        given_up = self.given_up if self.given_up == previous else None
        if previous is None or is_named:
            superseded = None
        elif self.version == previous:
            superseded = self.superseded
        else:
            superseded = (previous, now_ns)
        if (superseded, given_up) == (self.superseded, self.given_up):
            return self
        return KeptPrevious(superseded, given_up)

    def without(self, version: int) -> "KeptPrevious":
        """Gives `version` up."""
        return replace(self, given_up=version)

    def until_ns(self, keep_seconds: float) -> int | None:
        """The end of `keep_seconds` for the previous version (monotonic).

        Returns None if no version is kept.
        """
        if keep_seconds == 0 or self.superseded is None:
            return None
        version, since_ns = self.superseded
        return None if version == self.given_up else since_ns + round(keep_seconds * NS_PER_SECOND)

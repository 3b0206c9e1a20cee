"""Settling: when a copied version is complete."""

from dataclasses import dataclass, replace

from serving.base.clock import NS_PER_SECOND

SETTLE_NS = NS_PER_SECOND
"""A directory that has not changed for this long has settled.

Long enough for the pause between two files of a copy; a copy that stalls for longer is caught by
the completeness check. Short, because every version that is copied and not renamed waits it out.
"""


RECHECK_NS = 10 * NS_PER_SECOND
"""An incomplete version that does not change is checked again after this long, and the files of one
that serves are looked at again.

What failed may not have been the files (a network disk), but parsing a graph costs CPU that
requests would use, and a look walks a whole directory.
"""


MISSING_ASSET_WAIT_NS = 30 * NS_PER_SECOND
"""A version that lacks an asset is found once it has not changed for this long, by default.

TensorFlow loads a graph that reads none of the missing assets. A copy may bring them last.
"""


@dataclass(frozen=True)
class Instant:
    """Now, on both clocks: `now_ns` for durations, `wall_ns` to compare with file times."""

    now_ns: int
    wall_ns: int


@dataclass(frozen=True)
class Fingerprint:
    """Relative path, size in bytes, mtime_ns and ctime_ns of everything below a directory, and of
    itself, whose path is "".

    ctime, because a copy that keeps the times (`cp -p`, `rsync -a`) can put other bytes under the
    same size and mtime.
    """

    entries: tuple[tuple[str, int, int, int], ...]

    def has_the_files_of(self, other: "Fingerprint") -> bool:
        """Whether they differ at most in the ctime of the directory itself, as after it was moved
        away and back.
        """
        return _without_own_ctime(self) == _without_own_ctime(other)

    @property
    def mtime_ns_newest(self) -> int:
        """The latest change of a file or directory, on the clock of the file system."""
        return max((mtime_ns for _, _, mtime_ns, _ in self.entries), default=0)


def _without_own_ctime(fingerprint: Fingerprint) -> list[tuple[str, int, int, int]]:
    return [entry if entry[0] else (*entry[:3], 0) for entry in fingerprint.entries]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A version directory that is not found yet, or changes after a failed load: it settles, or it
    is incomplete.

    `unchanged_since_ns` and `detected_at_ns`, when its directory was first seen, are monotonic;
    `reason` says what the last check missed. `missing_assets` are paths below the directory; their
    absence alone makes it incomplete until the directory is unchanged for `asset_wait_ns`.
    """

    directory: str
    fingerprint: Fingerprint
    unchanged_since_ns: int
    detected_at_ns: int = 0
    checked_at_ns: int | None = None
    reason: str = ""
    is_broken: bool = False
    missing_assets: tuple[str, ...] = ()
    asset_wait_ns: int = 0
    # At the last check the missing assets could still come.
    waits_for_assets: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the last check found nothing missing that may still come: the version is found."""
        return self.checked_at_ns is not None and not self.reason and not self.waits_for_assets


def observe(
    previous: Candidate | None, directory: str, fingerprint: Fingerprint, now: Instant
) -> Candidate:
    """The candidate after one more look: as it was where nothing changed, else starting over."""
    if previous and (previous.directory, previous.fingerprint) == (directory, fingerprint):
        return previous
    is_same = previous is not None and previous.directory == directory
    return Candidate(
        directory=directory,
        fingerprint=fingerprint,
        unchanged_since_ns=now.now_ns,
        detected_at_ns=previous.detected_at_ns if previous and is_same else now.now_ns,
    )


def settles_in_ns(candidate: Candidate, now: Instant) -> int:
    """Nanoseconds until the candidate has settled, if nothing changes; 0 where it has.

    Settled by age, so that a server that starts on old files does not wait: the newest mtime is
    SETTLE_NS ago, and not in the future. Or by having been watched for as long: file systems'
    clocks may be wrong.
    """
    return max(0, SETTLE_NS - _still_ns(candidate, now))


def _still_ns(candidate: Candidate, now: Instant) -> int:
    watched_ns = now.now_ns - candidate.unchanged_since_ns
    age_ns = now.wall_ns - candidate.fingerprint.mtime_ns_newest
    return max(watched_ns, age_ns)


def asset_wait_ends_in_ns(candidate: Candidate, now: Instant) -> int:
    """Returns the nanoseconds until a candidate that waits for assets is found without them, if
    nothing changes. Returns 0 if the time is over, or if it waits for none.
    """
    if not candidate.waits_for_assets:
        return 0
    return max(0, candidate.asset_wait_ns - _still_ns(candidate, now))


def needs_check(candidate: Candidate, now: Instant) -> bool:
    """Whether to check completeness now: settled, and not checked or not lately; or checked when
    assets could still come, and that time is over.
    """
    if settles_in_ns(candidate, now) > 0:
        return False
    if candidate.checked_at_ns is None or now.now_ns - candidate.checked_at_ns >= RECHECK_NS:
        return True
    return candidate.waits_for_assets and asset_wait_ends_in_ns(candidate, now) == 0


def checked(
    candidate: Candidate,
    reason: str,
    now: Instant,
    *,
    is_broken: bool = False,
    missing_assets: tuple[str, ...] = (),
    asset_wait_ns: int = MISSING_ASSET_WAIT_NS,
) -> Candidate:
    """The candidate after a check; `reason` is "" where it is complete.

    One that `is_broken` is found too: its load ends with the error, for status and page to show.
    One that lacks assets is complete if nothing in it has changed for `asset_wait_ns`.
    """
    return replace(
        candidate,
        checked_at_ns=now.now_ns,
        reason=reason,
        is_broken=is_broken,
        missing_assets=missing_assets,
        asset_wait_ns=asset_wait_ns,
        waits_for_assets=bool(missing_assets) and _still_ns(candidate, now) < asset_wait_ns,
    )

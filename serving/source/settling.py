"""Decides when the copy of a version is still, and when its completeness is checked. Pure."""

from dataclasses import dataclass, replace

from serving.base.clock import NS_PER_SECOND
from serving.base.fingerprint import Fingerprint

SETTLE_NS = NS_PER_SECOND
"""A directory that has not changed for this long has settled.

It is long enough for the pause between two files of a copy. If a copy stalls for longer, the
completeness check detects it. It is short because every version that is copied, and not moved into
place, waits for it.
"""


RECHECK_NS = 10 * NS_PER_SECOND
"""An incomplete version that does not change is checked again after this long, and the files of a
version that serves are compared again.

The check is repeated because it may have failed for another reason than the files (a network disk).
It is rare because parsing a graph costs CPU that requests need, and a comparison walks a whole directory.
"""


MISSING_ASSET_WAIT_NS = 30 * NS_PER_SECOND
"""A version that lacks an asset is found once it has not changed for this long, by default.

A graph that reads none of the missing assets loads. The wait is there because a copy may bring the
assets last.
"""


@dataclass(frozen=True)
class Instant:
    """Now, on both clocks: `now_ns` for durations, `wall_ns` to compare with file times."""

    now_ns: int
    wall_ns: int


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A version directory that settles or is incomplete.

    It is not found yet, or it has changed after a failed load. `detected_at_ns` is when its directory was
    first seen; this time and `unchanged_since_ns` are monotonic. `reason` is why the last check found it
    incomplete. `missing_assets` are paths below the directory. If only assets are missing, it is incomplete
    until it has been unchanged for `asset_wait_ns`.
    """

    directory: str
    fingerprint: Fingerprint
    unchanged_since_ns: int
    # True if an earlier poll of this directory saw other files. The files may be changing now.
    has_changed: bool = False
    detected_at_ns: int = 0
    checked_at_ns: int | None = None
    reason: str = ""
    is_broken: bool = False
    missing_assets: tuple[str, ...] = ()
    asset_wait_ns: int = 0
    # True if the wait for the missing assets was not over at the last check.
    waits_for_assets: bool = False

    @property
    def is_complete(self) -> bool:
        """True if the last check found the version complete, or gave up waiting for its assets."""
        return self.checked_at_ns is not None and not self.reason and not self.waits_for_assets


def observe(
    previous: Candidate | None,
    directory: str,
    fingerprint: Fingerprint,
    now: Instant,
    found: Fingerprint | None = None,
) -> Candidate:
    """Makes the candidate after one more poll: `previous` if nothing has changed, else a new one.

    `found` is the fingerprint with which the same directory was found, if it was.
    """
    is_same = previous is not None and previous.directory == directory
    if previous and is_same and previous.fingerprint.is_as(fingerprint):
        return previous
    earlier = previous.fingerprint if previous and is_same else found
    return Candidate(
        directory=directory,
        fingerprint=fingerprint,
        unchanged_since_ns=now.now_ns,
        has_changed=earlier is not None and not fingerprint.has_the_files_of(earlier),
        detected_at_ns=previous.detected_at_ns if previous and is_same else now.now_ns,
    )


def settles_in_ns(candidate: Candidate, now: Instant) -> int:
    """The nanoseconds until the candidate has settled if nothing changes; 0 if it has.

    A candidate has settled if its newest mtime is at least SETTLE_NS ago, so that a server that
    starts on old files does not wait. It has also settled if it was seen unchanged for SETTLE_NS,
    because the clock of a file system may be wrong. Only the latter counts after its files were seen
    to change: a copy may keep old mtimes, and a file may be seen empty before its mtime is new.
    """
    return max(0, SETTLE_NS - _still_ns(candidate, now))


def _still_ns(candidate: Candidate, now: Instant) -> int:
    watched_ns = now.now_ns - candidate.unchanged_since_ns
    if candidate.has_changed:
        return watched_ns
    age_ns = now.wall_ns - candidate.fingerprint.mtime_ns_newest
    return max(watched_ns, age_ns)


def asset_wait_ends_in_ns(candidate: Candidate, now: Instant) -> int:
    """The nanoseconds until a candidate is found without its missing assets, if nothing changes.

    0 if that time is over, or if the candidate waits for no assets.
    """
    if not candidate.waits_for_assets:
        return 0
    return max(0, candidate.asset_wait_ns - _still_ns(candidate, now))


def needs_check(candidate: Candidate, now: Instant) -> bool:
    """True if the candidate's completeness should be checked now.

    The candidate has settled, and was not checked within RECHECK_NS or its wait for assets is over.
    """
    if settles_in_ns(candidate, now) > 0:
        return False
    if candidate.checked_at_ns is None or now.now_ns - candidate.checked_at_ns >= RECHECK_NS:
        return True
    return candidate.waits_for_assets and asset_wait_ends_in_ns(candidate, now) == 0


def after_check(
    candidate: Candidate,
    reason: str,
    now: Instant,
    *,
    is_broken: bool = False,
    missing_assets: tuple[str, ...] = (),
    asset_wait_ns: int = MISSING_ASSET_WAIT_NS,
) -> Candidate:
    """Takes the result of a check into the candidate; `reason` is "" if it is complete.

    A candidate that `is_broken`, because a file does not parse or may not be read, is found too: its load ends
    with the error, which status and page show. A candidate that lacks assets is complete once it is unchanged
    for `asset_wait_ns`.
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

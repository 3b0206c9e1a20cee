"""Blocked versions on disk (--state_directory): rolled back versions stay blocked after a restart.

`blocked_version_rows` reads and writes the file.
"""

import fcntl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TextIO

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import DataLoss
from serving.base.periodic_thread import PeriodicThread
from serving.core.blocked_versions import BlockedVersions
from serving.manager.blocked_version_rows import (
    FILE_NAME,
    read_blocked_versions,
    write_blocked_versions,
)

LOCK_NAME = "lock"

RETRY_SECONDS = 10.0
"""The wait before a failed write is repeated: a full or unreachable disk may have recovered."""

_log = structlog.get_logger(__name__)


class BlockedVersionKeeper(Protocol):
    """Keeps blocked versions beyond the end of the process."""

    def read(self) -> Mapping[str, BlockedVersions]:
        """Reads the kept versions by model. Call it once, before `keep`."""
        ...

    def keep(self, name: str, blocked_versions: BlockedVersions) -> None:
        """Replaces the kept versions of one model. Any thread; returns at once."""
        ...

    def wait_until_kept(self, timeout_seconds: float) -> str:
        """Waits until everything passed to `keep` is on disk; returns "", or the reason why it is not.

        For threads that may wait for a disk.
        """
        ...

    def start(self) -> None: ...
    def stop(self, timeout_seconds: float) -> bool: ...


class NoBlockedVersionKeeper:
    """Keeps nothing: blocked versions end with the process."""

    def read(self) -> Mapping[str, BlockedVersions]:
        return {}

    def keep(self, name: str, blocked_versions: BlockedVersions) -> None:
        """See `BlockedVersionKeeper`."""

    def wait_until_kept(self, timeout_seconds: float) -> str:
        """Does not wait, because nothing has to reach a disk."""
        del timeout_seconds
        return ""

    def start(self) -> None:
        """See `BlockedVersionKeeper`."""

    def stop(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        return True


class BlockedVersionFile:
    """Keeps `directory/blocked_versions.json`. Writes it on a thread of its own.

    So requests and the control thread do not wait for a disk. An operator's call waits for the file by
    `wait_until_kept`, because its reply promises that the block holds.

    An error of the file or the disk is logged and stops nothing. A file that cannot be read is put
    aside. A write that failed is repeated every RETRY_SECONDS and with the next change.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        write: Callable[[Path, Mapping[str, BlockedVersions]], None] = write_blocked_versions,
    ) -> None:
        self._path = directory / FILE_NAME
        self._write = write
        self._lock_file: TextIO | None = None
        self._clock = clock
        # Guards the members below, and is notified after each write. Not held during a write.
        self._lock = threading.Condition()
        self._blocked_versions: dict[str, BlockedVersions] = {}
        self._change_count = 0
        # The change count that the file has, and the number of writes that have begun.
        self._written_count = 0
        self._attempt_count = 0
        # The last write that failed: its number, and its reason.
        self._failed_attempt = 0
        self._refusal = ""
        self._is_retry = False
        self._thread = PeriodicThread(
            "blocked_versions",
            self.write_now,
            # Without a failed write there is nothing to do until the next change.
            wait_seconds=lambda: RETRY_SECONDS if self._is_retry else None,
            failure_event="blocked_versions_not_kept",
            at_end=self.write_now,
            clock=clock,
        )

    def read(self) -> Mapping[str, BlockedVersions]:
        """See `BlockedVersionKeeper`. Writes once, so that a start logs a directory that refuses writes."""
        try:
            self._blocked_versions = read_blocked_versions(self._path)
        except (DataLoss, OSError) as error:
            _log.error(
                "blocked_versions_unreadable",
                file=str(self._path),
                reason=str(error),
                consequence="versions that were blocked before this start are served again",
                put_aside=self._put_aside(),
                remedy="roll them back again (millpond rollback)",
            )
        # Writes the same content, because an error would otherwise appear only at the next rollback.
        self._change_count += 1
        self.write_now()
        if any(self._blocked_versions.values()):
            blocked = {
                name: sorted(blocked_versions)
                for name, blocked_versions in self._blocked_versions.items()
            }
            _log.warning("blocked_versions_read", file=str(self._path), blocked=blocked)
        return dict(self._blocked_versions)

    def keep(self, name: str, blocked_versions: BlockedVersions) -> None:
        """See `BlockedVersionKeeper`."""
        with self._lock:
            if self._blocked_versions.get(name, {}) == blocked_versions:
                return
            self._blocked_versions = {**self._blocked_versions, name: blocked_versions}
            self._change_count += 1
            self._is_retry = False
        self._thread.wake()

    def wait_until_kept(self, timeout_seconds: float) -> str:
        """See `BlockedVersionKeeper`. Writes again if the last write failed."""
        end_ns = self._clock.now_ns() + round(timeout_seconds * NS_PER_SECOND)
        self._thread.wake()
        with self._lock:
            wanted_count, first_attempt = self._change_count, self._attempt_count + 1
            while self._written_count < wanted_count:
                if self._failed_attempt >= first_attempt:
                    return self._refusal
                remaining_ns = end_ns - self._clock.now_ns()
                if remaining_ns <= 0:
                    return f"{self._path}: not written within {timeout_seconds:.3g} s"
                self._clock.wait(self._lock, remaining_ns / NS_PER_SECOND)
        return ""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Writes the last changes and ends the thread; returns False if the disk takes longer."""
        self._thread.stop()
        is_over = self._thread.join(timeout_seconds)
        if is_over and self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None
        return is_over

    def _lock_directory(self) -> None:
        """Locks the directory until `stop`, as two servers would overwrite each other's rollbacks.

        Raises OSError if another server holds the lock. A server that drains releases it soon.
        """
        if self._lock_file is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock_file = open(self._path.with_name(LOCK_NAME), "a", encoding="ascii")  # noqa: SIM115
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock_file.close()
            raise OSError(
                error.errno,
                "another server keeps its blocked versions there: give each a directory",
            ) from error
        self._lock_file = lock_file

    def write_now(self) -> bool:
        """Writes changes on the calling thread; returns False if that failed.

        Not for two threads at once.
        """
        with self._lock:
            if self._written_count == self._change_count:
                return True
            blocked_versions, change_count = self._blocked_versions, self._change_count
            self._attempt_count += 1
        try:
            self._lock_directory()
            self._write(self._path, blocked_versions)
        except OSError as error:
            self._log_unwritten(error)
            return False
        with self._lock:
            self._written_count = change_count
            self._is_retry = False
            self._lock.notify_all()
        return True

    def _log_unwritten(self, error: OSError) -> None:
        with self._lock:
            self._failed_attempt, self._refusal = self._attempt_count, f"{self._path}: {error}"
            self._lock.notify_all()
            is_first, self._is_retry = not self._is_retry, True
        if is_first:
            _log.error(
                "blocked_versions_not_kept",
                file=str(self._path),
                reason=str(error),
                consequence="a rollback lasts only until this process ends",
                retry_seconds=RETRY_SECONDS,
            )

    def _put_aside(self) -> str:
        """Renames a damaged file, so that a person can mend it; returns its new name, "" if that fails."""
        aside = self._path.with_suffix(".damaged")
        try:
            self._path.replace(aside)
        except OSError:
            return ""
        return str(aside)

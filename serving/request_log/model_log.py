"""The log of one model: the file that is being written, when it ends, and the count of every record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.core.model_settings import RequestLogSettings
from serving.core.request_logging import RequestLogging
from serving.data_plane.request_log import LoggedBatch
from serving.request_log.log_files import CompleteFile, LogFiles, PartialFile

FAILURE_LOG_SECONDS = 60.0
"""The time in which further failures of a disk are counted and not logged again."""

RECORDS_ARE_DROPPED = "records are dropped and counted until the disk takes them again"
"""The consequence of most failures of a disk."""

HIDDEN_FILE = "a power failure may hide the last file, which is complete"
EXCEEDED_BUDGET = "complete files may take more than disk_bytes_max until the next one is complete"
LATE_UPLOAD = "the last file is sent with the next one"
"""The consequences of failures after a file is complete, which lose no record."""

_log = structlog.get_logger(__name__)


class ContentWriter(Protocol):
    """Writes the content of a file. Thread: one at a time. Its methods raise OSError."""

    @property
    def size_bytes(self) -> int:
        """The bytes so far, or about so many."""
        ...

    def add(self, batch: LoggedBatch) -> bool:
        """Adds the records of a batch, all or none. Returns False if they need a new file."""
        ...

    def finish(self) -> None:
        """Ends the content."""
        ...


MakeWriter = Callable[[int], ContentWriter]
"""Makes the writer to a file's descriptor."""


@dataclass(frozen=True, kw_only=True)
class LogTarget:
    """The configuration of a model's log, and its settings."""

    logging: RequestLogging
    settings: RequestLogSettings


@dataclass(frozen=True)
class LogError:
    """The last failure of a disk or of a store, for people."""

    reason: str
    wall_ns: int


def newer(one: LogError | None, other: LogError | None) -> LogError | None:
    """The later one of two errors."""
    return max(
        (error for error in (one, other) if error), key=lambda error: error.wall_ns, default=None
    )


@dataclass
class WriterCounts:
    """The counts of one log since the server's start. One thread adds, any thread reads."""

    written_count: int = 0  # records in complete files
    dropped_count: int = 0  # records that the disk did not take
    late_count: int = 0  # records that came after the log was turned off
    file_count: int = 0  # complete files
    byte_count: int = 0  # bytes of these files
    deleted_file_count: int = 0
    deleted_byte_count: int = 0
    unsent_file_count: int = 0  # deleted files that were not in object storage yet
    disk_error_count: int = 0
    last_error: LogError | None = None


@dataclass
class _OpenFile:
    file: PartialFile
    content: ContentWriter
    began_ns: int
    record_count: int = 0


class ModelLog:
    """Writes the records of one model to files of one target. Thread: one at a time.

    No method raises an exception. Each record is counted once: as dropped if its batch or the end of its file
    fails, whatever the failure is, and as written when its file is complete. No failure after that counts
    it again. The first failure of a minute is logged, and the next batch tries again.
    """

    def __init__(
        self,
        name: str,
        target: LogTarget,
        *,
        files: LogFiles,
        make_writer: MakeWriter,
        counts: WriterCounts,
        on_complete: Callable[[], None] = lambda: None,
        clock: Clock,
    ) -> None:
        """`counts` may go on from an earlier target of the model. Calls `on_complete` after each complete file."""
        self._name = name
        self._target = target
        self._files = files
        self._make_writer = make_writer
        self._counts = counts
        self._on_complete = on_complete
        self._clock = clock
        self._open: _OpenFile | None = None
        self._quiet_until_ns = 0
        self._recover()

    @property
    def target(self) -> LogTarget:
        """The target of the files."""
        return self._target

    def write(self, batch: LoggedBatch) -> None:
        """Appends the records of a batch, and completes the file if it is large enough."""
        try:
            opened = self._add(batch)
        except Exception as error:  # noqa: BLE001 (a bug or no memory; the records are counted)
            self._counts.dropped_count += batch.record_count
            self._failed(error)
            # If this file is at a limit, a new one has room.
            self.complete()
            return
        opened.record_count += batch.record_count
        if opened.content.size_bytes >= self._target.settings.file_bytes_max:
            self.complete()

    def complete_if_old(self) -> None:
        """Completes the file if its time is over."""
        if self._open is None:
            return
        age_ns = self._clock.now_ns() - self._open.began_ns
        if age_ns >= self._target.settings.file_seconds_max * NS_PER_SECOND:
            self.complete()

    def complete(self) -> None:
        """Completes the file, if there is one, and deletes the oldest files above the budget."""
        if self._open is None:
            return
        opened, self._open = self._open, None
        if opened.record_count == 0:
            self._files.discard(opened.file)
            return
        try:
            opened.content.finish()
            size_bytes = self._files.complete(opened.file)
        except Exception as error:  # noqa: BLE001 (a writer's bug; its records must not stay pending)
            self._files.discard(opened.file)
            self._counts.dropped_count += opened.record_count
            self._failed(error)
            return
        self._counts.written_count += opened.record_count
        self._counts.file_count += 1
        self._counts.byte_count += size_bytes
        self._try(self._files.sync_directory, HIDDEN_FILE)
        self._try(self._keep_to_budget, EXCEEDED_BUDGET)
        self._try(self._on_complete, LATE_UPLOAD)

    def _add(self, batch: LoggedBatch) -> _OpenFile:
        """Appends the records to the open file or to a new one, which it returns."""
        if self._open is not None and self._files.is_deleted(self._open.file):
            # Its end fails, so its records are counted now, and not with all that would follow.
            self.complete()
        if self._open is None or not self._open.content.add(batch):
            self.complete()
            self._open = self._begun()
            self._open.content.add(batch)
        return self._open

    def _begun(self) -> _OpenFile:
        file = self._files.begin(self._clock.wall_ns())
        try:
            return _OpenFile(file, self._make_writer(file.descriptor), self._clock.now_ns())
        except Exception:
            self._files.discard(file)
            raise

    def _try(self, step: Callable[[], object], consequence: str) -> None:
        """Does a step after a file is complete, whose records are counted already."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 (a bug; the file is complete all the same)
            self._failed(error, consequence)

    def _keep_to_budget(self) -> None:
        deleted = self._files.delete_oldest(self._target.settings.disk_bytes_max)
        self._counts.deleted_file_count += len(deleted)
        self._counts.deleted_byte_count += sum(file.size_bytes for file in deleted)
        if deleted and self._target.logging.is_uploaded:
            self._say_unsent(deleted)

    def _say_unsent(self, deleted: Sequence[CompleteFile]) -> None:
        self._counts.unsent_file_count += len(deleted)
        _log.error(
            "request_log_unsent_deleted",
            model=self._name,
            filename_prefix=self._target.logging.filename_prefix,
            files=[file.name for file in deleted],
            bytes=sum(file.size_bytes for file in deleted),
            reason="files that wait for their upload take more than disk_bytes_max",
            remedy="see request_log_upload_failed for what the store says, or raise disk_bytes_max",
        )

    def _recover(self) -> None:
        try:
            recovered = self._files.recover()
        except OSError as error:
            self._failed(error)
            return
        for file in recovered:
            _log.info(
                "request_log_recovered", model=self._name, file=file.name, bytes=file.size_bytes
            )

    def _failed(self, error: Exception, consequence: str = RECORDS_ARE_DROPPED) -> None:
        reason = str(error) if isinstance(error, OSError) else repr(error)
        self._counts.disk_error_count += 1
        self._counts.last_error = LogError(reason, self._clock.wall_ns())
        now_ns = self._clock.now_ns()
        if now_ns < self._quiet_until_ns:
            return
        self._quiet_until_ns = now_ns + round(FAILURE_LOG_SECONDS * NS_PER_SECOND)
        _log.error(
            "request_log_failed",
            model=self._name,
            filename_prefix=self._target.logging.filename_prefix,
            reason=reason,
            consequence=consequence,
            remedy="make room, lower disk_bytes_max, or remove the model's logging_config",
        )

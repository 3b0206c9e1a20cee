"""The request logs of all models, and the thread that writes them."""

import itertools
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.errors import InvalidConfig
from serving.base.periodic_thread import PeriodicThread
from serving.core.model_config import ModelConfig
from serving.core.model_settings import ALL_NAMES
from serving.core.request_logging import PARQUET, TFRECORD, RequestLogging
from serving.data_plane.plane import DataPlane
from serving.data_plane.request_log import LoggedBatch, RequestLog
from serving.request_log.log_files import LogFiles, check_directory
from serving.request_log.log_uploads import LogUploads, UploadFigures
from serving.request_log.model_log import (
    FAILURE_LOG_SECONDS,
    RECORDS_ARE_DROPPED,
    LogError,
    LogTarget,
    MakeWriter,
    ModelLog,
    WriterCounts,
    newer,
)
from serving.request_log.tfrecord_file import TfRecordWriter

_log = structlog.get_logger(__name__)

QUEUE_BYTES_MAX = 64 * 2**20
"""The memory for records that wait to be written, for all models together: a second of 64 MB/s, or a
minute of 1 MB/s while a disk stands still."""

PERIOD_SECONDS = 0.25
"""The time between two turns of the writer: short beside the time in which the queue fills, and long
beside the work of a turn."""


Formats = Mapping[str, Callable[[Clock], MakeWriter]]
"""Makes what writes the files of one log, by their type. Raises ImportError if a package is missing."""


def _parquet_files(clock: Clock) -> MakeWriter:
    # Imported here because pyarrow is an extra, and takes half a second to import.
    from serving.request_log.parquet_file import ParquetFiles

    return ParquetFiles(clock)


FORMATS: Formats = {TFRECORD: lambda clock: TfRecordWriter, PARQUET: _parquet_files}
"""All types of files."""


@dataclass(frozen=True, kw_only=True)
class RequestLogFigures:
    """The records of one model's log since the server's start: each is written, dropped or pending."""

    filename_prefix: str
    """The path or URL of the files; "" while the log is off."""

    sampled_count: int
    written_count: int
    queue_full_count: int
    """The records that were dropped because the queue was full."""

    disk_count: int
    """The records that were dropped because the disk did not take them."""

    late_count: int
    """The records that were dropped because the log was turned off before they were written."""

    byte_count: int
    file_count: int
    deleted_byte_count: int
    deleted_file_count: int
    unsent_file_count: int
    """The deleted files that were not in object storage yet."""

    disk_error_count: int
    uploads: UploadFigures
    last_error: LogError | None

    @property
    def dropped_count(self) -> int:
        """The records that are in no file."""
        return self.queue_full_count + self.disk_count + self.late_count

    @property
    def pending_count(self) -> int:
        """The records in the queue and in the file that is not complete."""
        return self.sampled_count - self.written_count - self.dropped_count


@dataclass
class _Log:
    """One model's log. The writer's thread alone uses `writer` and what follows it."""

    log_id: int
    name: str
    native: RequestLog
    wanted: LogTarget | None = None
    writer: ModelLog | None = None
    counts: WriterCounts = field(default_factory=WriterCounts)
    has_failed: bool = False  # `wanted` could not be adopted at the last turn
    quiet_until_ns: int = 0
    is_used: bool = False


class RequestLogs:
    """The logs by model, each made when its model is configured, whether it logs or not.

    A log stays when its model is removed, because loaded versions still hold it: if the model comes back
    before they end, they log again, and the counts go on. So it takes some hundred bytes for each name.

    Thread: `set_models`, `start` and `stop`: one at a time. `of` and `figures`: any. The thread
    `prediction-log` writes, at the priority that `on_thread_start` gives it. It sleeps while no model logs.
    """

    def __init__(
        self,
        plane: DataPlane,
        *,
        uploads: LogUploads,
        formats: Formats = FORMATS,
        on_thread_start: Callable[[], None] = lambda: None,
        clock: Clock,
    ) -> None:
        """Makes no log yet. `uploads` starts and stops with the logs."""
        self._plane = plane
        self._uploads = uploads
        self._formats = formats
        self._clock = clock
        self._token = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        # Takes only address space until records reach it.
        self._queue = plane.RecordQueue(QUEUE_BYTES_MAX)
        self._lock = threading.Lock()
        # Guarded by `_lock`. The key of the second is the id of the log.
        self._by_name: dict[str, _Log] = {}
        self._by_id: dict[int, _Log] = {}
        self._next_id = 1
        self._thread = PeriodicThread(
            "prediction-log",
            self.write_now,
            wait_seconds=self._wait_seconds,
            failure_event="request_log_writer_failed",
            at_start=on_thread_start,
            at_end=self._write_last,
            clock=clock,
        )

    # --- The configuration ------------------------------------------------------------------------

    def check(self, model: ModelConfig) -> None:
        """Raises InvalidConfig if the model's requests cannot be logged as it is configured."""
        if model.logging is None:
            return
        where = f"model {model.name!r}: logging_config"
        try:
            self._formats[model.logging.file_type](self._clock)
        except ImportError as error:
            raise InvalidConfig(
                f"{where}: type {model.logging.file_type!r} needs the package pyarrow ({error}); "
                "run `pip install 'millpond[parquet]'`, or use type 'tfrecord'"
            ) from error
        check_directory(self._local_prefix(model.name, model.logging), where)

    def set_models(self, models: Sequence[ModelConfig]) -> None:
        """Logs the requests of these models as they are configured, and of no others."""
        targets = {model.name: _target(model) for model in models}
        with self._lock:
            for name, target in targets.items():
                self._set(self._log_of(name), target)
            for name in self._by_name.keys() - targets.keys():
                self._set(self._by_name[name], None)
        self._thread.wake()

    def of(self, name: str) -> RequestLog:
        """The log for the versions of a model."""
        with self._lock:
            return self._log_of(name).native

    def figures(self) -> Mapping[str, RequestLogFigures]:
        """The figures of each log that has been on."""
        uploads = self._uploads.figures()
        with self._lock:
            return {
                log.name: _figures(log, uploads.get(log.name, UploadFigures()))
                for log in self._by_name.values()
                if log.is_used
            }

    def _log_of(self, name: str) -> _Log:
        log = self._by_name.get(name)
        if log is None:
            native = self._plane.RequestLog(self._queue, self._next_id)
            log = _Log(self._next_id, name, native)
            self._by_name[name] = self._by_id[self._next_id] = log
            self._next_id += 1
        return log

    def _set(self, log: _Log, target: LogTarget | None) -> None:
        if log.wanted == target:
            return
        log.wanted = target
        log.is_used |= target is not None
        settings = target.settings if target else None
        log.native.set(
            sampling_rate=target.logging.sampling_rate if target else 0.0,
            inputs=_names(settings.inputs) if settings else (),
            outputs=_names(settings.outputs) if settings else (),
        )

    # --- The writer -------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the threads."""
        self._thread.start()
        self._uploads.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Writes what is queued, completes all files, sends those that go to a store, and ends the threads.

        Returns False if the queue is still written at the timeout. Files that a store has not taken by then
        stay for the next process. Call it when no more requests come.
        """
        start_ns = self._clock.now_ns()
        self._thread.stop()
        is_written = self._thread.join(timeout_seconds)
        self._uploads.stop(max(timeout_seconds - seconds_since(self._clock, start_ns), 0.0))
        return is_written

    def write_now(self) -> None:
        """Takes the queue's records, writes them, and completes files, on the calling thread."""
        # A change of a target takes effect in the first turn that begins after it, and behind all records that
        # were queued before it. Records in between are written to the former files.
        wanted_targets = [(log, log.wanted) for log in self._logs()]
        for log, wanted in wanted_targets:
            if log.writer is None and wanted is not None:
                self._adopt(log, wanted)
        # Only what is there now, so that a turn ends however fast records come.
        left_bytes = self._queue.used_bytes
        while left_bytes > 0 and (batches := self._queue.take()):
            for batch in batches:
                self._write(batch)
                left_bytes -= len(batch.heads) + len(batch.frames)
        for log, wanted in wanted_targets:
            if log.writer is None:
                continue
            if wanted != log.writer.target:
                log.writer.complete()
                log.writer = None
                if wanted is not None:
                    self._adopt(log, wanted)
            else:
                log.writer.complete_if_old()

    def _write_last(self) -> None:
        try:
            self.write_now()
        finally:
            for log in self._logs():
                if log.writer is not None:
                    log.writer.complete()

    def _write(self, batch: LoggedBatch) -> None:
        with self._lock:
            log = self._by_id[batch.log_id]
        if log.writer is None and log.wanted is not None and not log.has_failed:
            # The log is newer than this turn.
            self._adopt(log, log.wanted)
        if log.writer is None:
            if log.has_failed:
                log.counts.dropped_count += batch.record_count
            else:
                log.counts.late_count += batch.record_count
            return
        log.writer.write(batch)

    def _adopt(self, log: _Log, target: LogTarget) -> None:
        """Makes the writer of a log. If it fails, only this log's records are dropped until the next turn."""
        try:
            self._make_writer(log, target)
            log.has_failed = False
        except Exception as error:  # noqa: BLE001 (the other models' records must be written)
            log.has_failed = True
            self._adopt_failed(log, target, error)

    def _adopt_failed(self, log: _Log, target: LogTarget, error: Exception) -> None:
        log.counts.disk_error_count += 1
        log.counts.last_error = LogError(str(error), self._clock.wall_ns())
        now_ns = self._clock.now_ns()
        if now_ns < log.quiet_until_ns:
            return
        log.quiet_until_ns = now_ns + round(FAILURE_LOG_SECONDS * NS_PER_SECOND)
        _log.error(
            "request_log_failed",
            model=log.name,
            filename_prefix=target.logging.filename_prefix,
            reason=str(error),
            consequence=RECORDS_ARE_DROPPED,
            remedy="see the reason, or remove the model's logging_config",
        )

    def _make_writer(self, log: _Log, target: LogTarget) -> None:
        logging = target.logging
        url = logging.filename_prefix
        files = LogFiles(
            self._local_prefix(log.name, logging),
            logging.file_type,
            token=self._token,
            numbers=self._numbers,
            make_directory=partial(self._uploads.make_directory, log.name, url)
            if logging.is_uploaded
            else lambda: None,
        )
        log.writer = ModelLog(
            log.name,
            target,
            files=files,
            make_writer=self._formats[logging.file_type](self._clock),
            counts=log.counts,
            on_complete=self._uploads.wake if logging.is_uploaded else lambda: None,
            clock=self._clock,
        )
        if logging.is_uploaded:
            self._uploads.add(log.name, url, files)

    def _local_prefix(self, name: str, logging: RequestLogging) -> str:
        """The prefix of the files on this machine. Raises InvalidConfig if there is no place for them."""
        if logging.is_uploaded:
            return self._uploads.local_prefix(name, logging.filename_prefix)
        return logging.filename_prefix

    def _logs(self) -> Iterator[_Log]:
        with self._lock:
            return iter(tuple(self._by_name.values()))

    def _wait_seconds(self) -> float | None:
        is_busy = any(log.wanted or log.writer for log in self._logs())
        return PERIOD_SECONDS if is_busy else None


def _target(model: ModelConfig) -> LogTarget | None:
    if model.logging is None:
        return None
    return LogTarget(logging=model.logging, settings=model.settings.request_log)


def _names(names: Sequence[str]) -> Sequence[str] | None:
    """The names for the data plane, in which None stands for all."""
    return None if set(ALL_NAMES) & set(names) else list(names)


def _figures(log: _Log, uploads: UploadFigures) -> RequestLogFigures:
    # The records of later stages are counted first, so that none is counted in a later stage only.
    counts = replace(log.counts)
    statistics = log.native.statistics()
    target = log.wanted
    return RequestLogFigures(
        filename_prefix=target.logging.filename_prefix if target else "",
        sampled_count=statistics.sampled_count,
        written_count=counts.written_count,
        queue_full_count=statistics.dropped_count,
        disk_count=counts.dropped_count,
        late_count=counts.late_count,
        byte_count=counts.byte_count,
        file_count=counts.file_count,
        deleted_byte_count=counts.deleted_byte_count,
        deleted_file_count=counts.deleted_file_count,
        unsent_file_count=counts.unsent_file_count,
        disk_error_count=counts.disk_error_count,
        uploads=uploads,
        last_error=newer(counts.last_error, uploads.last_error),
    )


def log_document(figures: RequestLogFigures) -> dict[str, Any]:
    """The log of one model as JSON, for `millpond status` and the page. Pure."""
    error = figures.last_error
    return {
        "filename_prefix": figures.filename_prefix,
        "written_count": figures.written_count,
        "dropped_count": figures.dropped_count,
        "pending_count": figures.pending_count,
        "byte_count": figures.byte_count,
        "waiting_file_count": figures.uploads.waiting_count,
        "lost_file_count": figures.unsent_file_count,
        "last_error": error.reason if error else None,
        "last_error_wall_ns": error.wall_ns if error else None,
    }

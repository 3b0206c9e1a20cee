"""Sends the complete files of request logs to object storage, and deletes them here once they are there."""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import InvalidConfig, Unavailable
from serving.base.name_text import file_name
from serving.base.periodic_thread import PeriodicThread
from serving.request_log.log_files import CompleteFile, LogFiles
from serving.request_log.model_log import LogError, newer
from serving.request_log.upload_directories import UploadDirectories

RETRY_SECONDS_MAX = 300.0
"""The longest pause after failures. Each failure doubles the pause, from a second on."""

FAILURE_LOG_SECONDS = 60.0
"""The time in which further failures of a store are counted and not logged again."""

_DIGEST_LENGTH = 12

_log = structlog.get_logger(__name__)


class LogStore(Protocol):
    """A directory of object storage. Thread: one at a time."""

    def upload(self, path: Path, name: str) -> None:
        """Writes the local file as the object `name`, whole or not at all, and replaces an earlier one.

        Raises Unavailable, without credentials.
        """
        ...


MakeLogStore = Callable[[str], LogStore]
"""Makes the store of a directory's URL, without a connection."""


@dataclass(frozen=True, kw_only=True)
class UploadFigures:
    """The uploads of a model's files since the server's start, and the complete files that wait."""

    file_count: int = 0
    byte_count: int = 0
    failure_count: int = 0
    waiting_count: int = 0
    last_error: LogError | None = None


@dataclass
class _Destination:
    """A URL of one model. The thread of the uploads alone changes what follows `store`."""

    model: str
    url: str
    files: LogFiles
    store: LogStore
    file_count: int = 0
    byte_count: int = 0
    failure_count: int = 0
    waiting_count: int = 0
    last_error: LogError | None = None
    failures_in_row: int = 0
    retry_ns: int = 0
    quiet_until_ns: int = 0
    refusal_counts: dict[str, int] = field(default_factory=dict)
    """The failed attempts of each file that waits. Files with fewer go first, so that none blocks the others."""


class LogUploads:
    """The files of all logs whose `filename_prefix` is a URL.

    A file stays in `directory` until it is in the store. A destination stays after its model is removed or
    has another URL, so that its last files are sent too.

    Thread: `add`, `wake` and `figures`: any. The thread `request-log-upload` lists and sends, at the priority
    that `on_thread_start` gives it. It sleeps while nothing waits.
    """

    def __init__(
        self,
        directory: Callable[[], Path],
        make_store: MakeLogStore,
        *,
        on_thread_start: Callable[[], None] = lambda: None,
        clock: Clock,
    ) -> None:
        """`directory` finds where files wait; it is called if a log has a URL, and may raise InvalidConfig."""
        self._directories = UploadDirectories(directory)
        self._make_store = make_store
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by `_lock`, but for the values' own counts.
        self._destinations: dict[tuple[str, str], _Destination] = {}
        self._thread = PeriodicThread(
            "request-log-upload",
            self.upload_now,
            wait_seconds=self._wait_seconds,
            failure_event="request_log_upload_broken",
            at_start=on_thread_start,
            at_end=self._upload_last,
            clock=clock,
        )

    def local_prefix(self, model: str, url: str) -> str:
        """The prefix of the local files of a model's URL, the same in the next process. Makes their directory.

        Raises InvalidConfig if there is no place for it.
        """
        try:
            directory = self._directories.take(_directory_name(model, url))
        except OSError as error:
            raise InvalidConfig(
                f"model {model!r}: logging_config: the directory where files wait for their upload cannot be "
                f"made ({error}); make it, or give another --model_cache_directory"
            ) from error
        return str(directory / url.rpartition("/")[2])

    def make_directory(self, model: str, url: str) -> None:
        """Makes the directory of `local_prefix` again if it was deleted. Raises OSError."""
        self._directories.take(_directory_name(model, url))

    def add(self, model: str, url: str, files: LogFiles) -> None:
        """Sends complete files of the model from now on, and those that an earlier process left."""
        with self._lock:
            if (model, url) not in self._destinations:
                store = self._make_store(url.rpartition("/")[0])
                self._destinations[model, url] = _Destination(model, url, files, store)
        self.wake()

    def wake(self) -> None:
        """Looks for complete files now."""
        self._thread.wake()

    def figures(self) -> Mapping[str, UploadFigures]:
        """The figures of each model that has had a URL."""
        found: dict[str, UploadFigures] = {}
        for item in self._all():
            so_far = found.get(item.model, UploadFigures())
            found[item.model] = UploadFigures(
                file_count=so_far.file_count + item.file_count,
                byte_count=so_far.byte_count + item.byte_count,
                failure_count=so_far.failure_count + item.failure_count,
                waiting_count=so_far.waiting_count + item.waiting_count,
                last_error=newer(so_far.last_error, item.last_error),
            )
        return found

    # --- The thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Tries each destination once more, and ends the thread. Call it when the last files are complete.

        Returns False if it still runs at the timeout. The files that are left are sent by the next process.
        """
        self._thread.stop()
        is_over = self._thread.join(timeout_seconds)
        if is_over:
            self._directories.release()
        return is_over

    def upload_now(self) -> None:
        """Sends what waits, on the calling thread, but for destinations whose pause is not over."""
        for item in self._all():
            self._upload(item, is_due=self._clock.now_ns() >= item.retry_ns)

    def _upload_last(self) -> None:
        # A store that hangs may take all the time that is left, so those that failed come last.
        for item in sorted(self._all(), key=lambda item: item.failures_in_row):
            self._upload(item, is_due=True)

    def _upload(self, item: _Destination, *, is_due: bool) -> None:
        try:
            waiting = _waiting(item.files)
            item.waiting_count = len(waiting)
            if is_due:
                self._send_all(item, waiting)
        except (OSError, Unavailable) as error:
            self._failed(item, error)

    def _send_all(self, item: _Destination, waiting: Sequence[CompleteFile]) -> None:
        counts = item.refusal_counts
        item.refusal_counts = {
            file.name: counts[file.name] for file in waiting if file.name in counts
        }
        for file in sorted(waiting, key=lambda file: counts.get(file.name, 0)):
            self._send(item, file)
            item.waiting_count -= 1
            item.failures_in_row = 0

    def _send(self, item: _Destination, file: CompleteFile) -> None:
        path = item.files.path_of(file)
        try:
            item.store.upload(path, file.name)
        except (OSError, Unavailable):
            if not path.exists():
                # The disk budget has deleted it since the list was made.
                return
            item.refusal_counts[file.name] = item.refusal_counts.get(file.name, 0) + 1
            raise
        item.files.delete(file)
        item.file_count += 1
        item.byte_count += file.size_bytes

    def _failed(self, item: _Destination, error: Exception) -> None:
        item.failure_count += 1
        item.last_error = LogError(str(error), self._clock.wall_ns())
        pause_seconds = min(2.0**item.failures_in_row, RETRY_SECONDS_MAX)
        item.failures_in_row += 1
        now_ns = self._clock.now_ns()
        item.retry_ns = now_ns + round(pause_seconds * NS_PER_SECOND)
        if now_ns < item.quiet_until_ns:
            return
        item.quiet_until_ns = now_ns + round(FAILURE_LOG_SECONDS * NS_PER_SECOND)
        _log.error(
            "request_log_upload_failed",
            model=item.model,
            filename_prefix=item.url,
            waiting_files=item.waiting_count,
            reason=str(error),
            consequence="files wait on the server's disk, up to disk_bytes_max; beyond that the oldest are lost",
            remedy="check the network, the bucket and the credentials; the server tries again by itself",
        )

    def _wait_seconds(self) -> float | None:
        """The time until the first pause of a destination with files ends; None if nothing waits."""
        due_ns = [item.retry_ns for item in self._all() if item.waiting_count > 0]
        if not due_ns:
            return None
        return max((min(due_ns) - self._clock.now_ns()) / NS_PER_SECOND, 0.0)

    def _all(self) -> Sequence[_Destination]:
        with self._lock:
            return tuple(self._destinations.values())


def _directory_name(model: str, url: str) -> str:
    digest = hashlib.sha256(f"{model}\n{url}".encode(errors="surrogatepass")).hexdigest()
    return f"{file_name(model)[:100]}-{digest[:_DIGEST_LENGTH]}"


def _waiting(files: LogFiles) -> Sequence[CompleteFile]:
    """The files that wait: none if someone deleted the directory, which the log's next file makes again."""
    try:
        return files.complete_files()
    except FileNotFoundError:
        return ()

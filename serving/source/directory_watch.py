"""DirectoryWatch: learns from inotify which directories have changed, so that quiet ones need no polls."""

import errno
import os
import select
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from serving.base.no_threads import NO_THREAD_REMEDY
from serving.source.mounts import WATCHED_FILE_SYSTEMS, file_system_of
from serving.source.path_steps import PathSteps, path_steps

if TYPE_CHECKING:
    from inotify_simple import INotify

_log = structlog.get_logger(__name__)

_REMEDIES = {
    errno.ENOSPC: "raise the limit: sysctl fs.inotify.max_user_watches",
    errno.EMFILE: "raise the limit: sysctl fs.inotify.max_user_instances",
}


def _steps_of(directory: str, links: Sequence[str]) -> list[PathSteps]:
    """The steps to `directory`, and then those to its entries `links`. Raises OSError if one leads nowhere."""
    return [
        path_steps(path) for path in (directory, *(os.path.join(directory, link) for link in links))
    ]


def _foreign_file_system(steps: Iterable[PathSteps]) -> str | None:
    """The first file system along `steps` that another machine may change; None if this machine sees all."""
    for directory in sorted(set().union(*(item.decisive_directories for item in steps))):
        found = file_system_of(directory)
        if found not in WATCHED_FILE_SYSTEMS:
            return found or "unknown"
    return None


class DirectoryWatch:
    """Calls `changed(key)` once when the watched directory of a key changes, on a thread of its own.

    The directory changes if an entry comes or goes, or if its path leads elsewhere: a directory above it is
    moved or removed, or a symbolic link is replaced. After the call the key is not watched any more, so
    that a directory that changes all the time costs one event between two polls.

    If the kernel drops events, every key counts as changed. If changes cannot be seen, `watch` returns
    False, and the caller polls; one line of the log for each reason says so. The thread `directory-watch` begins with
    the first watch. Any thread may call each method.
    """

    def __init__(self, changed: Callable[[str], None]) -> None:
        """`changed` is called without a lock, and must not wait."""
        self._changed = changed
        self._lock = threading.Lock()
        # The fields below are guarded by the lock.
        self._inotify: INotify | None = None
        self._wake_fd = -1
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        # The reasons of refusals that are in the log.
        self._logged: set[str] = set()
        # The keys of each watch, and the watches of each key.
        self._keys: dict[int, set[str]] = {}
        self._watches: dict[str, set[int]] = {}
        # The watched directory of each key, and its links.
        self._directories: dict[str, tuple[str, tuple[str, ...]]] = {}

    def watch(self, key: str, directory: str, links: tuple[str, ...] = ()) -> bool:
        """Watches `directory` for `key` from now on, instead of another one; does nothing if it does already.

        `links` are its entries that are symbolic links: the places to which they lead are watched too. Returns
        False if changes cannot be seen: a file system on the way may change on another machine, a path leads
        nowhere, or the kernel refuses.
        """
        if self._directories.get(key) == (directory, links):
            return True
        self.forget(key)
        try:
            # Without the lock, because a dead disk may hold the thread here.
            steps = _steps_of(directory, links)
            foreign = _foreign_file_system(steps)
            if foreign is not None:
                self._log_foreign(foreign, directory)
                return False
            return self._watch(key, (directory, links), steps)
        except (OSError, ImportError, RuntimeError) as error:
            self.forget(key)
            self._log_refusal(error)
            return False

    def forget(self, key: str) -> None:
        """Watches nothing for `key` any more. `changed` may still be called once."""
        with self._lock:
            self._forget(key)

    def stop(self) -> None:
        """Ends the thread and all watches. Returns at once."""
        with self._lock:
            is_running = self._thread is not None and not self._is_stopped
            self._is_stopped = True
            if is_running:
                os.eventfd_write(self._wake_fd, 1)

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread after `stop`; returns False if it still runs."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_seconds)
        return not thread.is_alive()

    def _watch(
        self, key: str, watched: tuple[str, tuple[str, ...]], steps: Sequence[PathSteps]
    ) -> bool:
        with self._lock:
            if self._is_stopped:
                return False
            self._add(key, steps[0], steps[1:])
            self._directories[key] = watched
            return True

    def _log_foreign(self, file_system: str, directory: str) -> None:
        if self._is_new(file_system):
            _log.info(
                "base_path_polled",
                file_system=file_system,
                base_path=directory,
                reason="the kernel does not report changes by other machines",
                consequence="base paths there are polled, one look each period",
            )

    def _log_refusal(self, error: Exception) -> None:
        # A directory that is gone is no refusal: the next poll reports it.
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return
        number = (error.errno if isinstance(error, OSError) else None) or 0
        if self._is_new(f"refused {number}"):
            _log.warning(
                "directory_watch_refused",
                reason=str(error),
                consequence="some base paths are polled, which takes more of a core",
                remedy=NO_THREAD_REMEDY
                if isinstance(error, RuntimeError)
                else _REMEDIES.get(number, "none is needed"),
            )

    def _is_new(self, reason: str) -> bool:
        with self._lock:
            is_new = reason not in self._logged
            self._logged.add(reason)
            return is_new

    # --- Under the lock ---------------------------------------------------------------------------

    def _add(self, key: str, directory: PathSteps, links: Iterable[PathSteps]) -> None:
        """Raises OSError if a directory cannot be watched, ImportError without the library, and RuntimeError
        if the kernel grants no thread.
        """
        from inotify_simple import flags

        gone = flags.MOVE_SELF | flags.DELETE_SELF
        entries = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
        self._add_watch(key, directory.end, gone | entries)
        for steps in (directory, *links):
            for path in (*steps.directories, steps.end):
                self._add_watch(key, path, gone)
            for path in steps.links:
                # A link that another one replaces loses its name (ATTRIB), and goes later if it is open.
                self._add_watch(key, path, gone | flags.ATTRIB | flags.DONT_FOLLOW)

    def _add_watch(self, key: str, path: str, mask: int) -> None:
        from inotify_simple import flags

        inotify = self._inotify or self._begin()
        # inotify has one watch for each inode. Several keys may share it, so masks are added, not replaced.
        descriptor = inotify.add_watch(path, mask | flags.MASK_ADD)
        self._keys.setdefault(descriptor, set()).add(key)
        self._watches.setdefault(key, set()).add(descriptor)

    def _begin(self) -> "INotify":
        from inotify_simple import INotify

        inotify = INotify(nonblocking=True)
        self._wake_fd = os.eventfd(0)
        thread = threading.Thread(
            target=self._run, args=(inotify,), name="directory-watch", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            inotify.close()
            os.close(self._wake_fd)
            raise
        # Only now, because nothing would read the events of a watch without the thread.
        self._inotify, self._thread = inotify, thread
        return inotify

    def _forget(self, key: str) -> None:
        self._directories.pop(key, None)
        for descriptor in self._watches.pop(key, ()):
            keys = self._keys[descriptor]
            keys.discard(key)
            if not keys:
                del self._keys[descriptor]
                self._remove(descriptor)

    def _remove(self, descriptor: int) -> None:
        assert self._inotify is not None
        try:
            self._inotify.rm_watch(descriptor)
        except OSError:
            # The kernel has removed the watch of a directory that is gone.
            return

    # --- directory-watch --------------------------------------------------------------------------

    def _run(self, inotify: "INotify") -> None:
        poller = select.poll()
        for descriptor in (inotify.fileno(), self._wake_fd):
            poller.register(descriptor, select.POLLIN)
        while not self._is_stopped:
            poller.poll()
            for key in self._take(inotify):
                self._changed(key)
        with self._lock:
            inotify.close()
            os.close(self._wake_fd)

    def _take(self, inotify: "INotify") -> list[str]:
        """Reads the events that have come; returns the keys that they concern, and forgets these."""
        from inotify_simple import flags

        with self._lock:
            keys: set[str] = set()
            for event in inotify.read(timeout=0):
                if event.mask & flags.Q_OVERFLOW:
                    _log.warning(
                        "directory_watch_overflowed", consequence="each base path is polled once"
                    )
                    keys.update(self._watches)
                keys.update(self._keys.get(event.wd, ()))
            for key in keys:
                self._forget(key)
            return sorted(keys)

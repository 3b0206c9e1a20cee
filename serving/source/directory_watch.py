"""DirectoryWatch: learns from inotify which directories have changed, so that quiet ones need no polls."""

import errno
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from serving.source.mounts import WATCHED_FILE_SYSTEMS, file_system_of

if TYPE_CHECKING:
    from inotify_simple import INotify

_log = structlog.get_logger(__name__)

_REMEDIES = {
    errno.ENOSPC: "raise the limit: sysctl fs.inotify.max_user_watches",
    errno.EMFILE: "raise the limit: sysctl fs.inotify.max_user_instances",
}


def _is_changed_here_only(directory: str) -> bool:
    """True if no link leads to the directory, and no other machine changes its file system."""
    if file_system_of(os.path.abspath(directory)) not in WATCHED_FILE_SYSTEMS:
        return False
    return os.path.realpath(directory) == os.path.abspath(directory)


class DirectoryWatch:
    """Calls `changed(key)` once when the watched directory of a key changes, on a thread of its own.

    The directory changes if an entry comes or goes, or if the directory or one above it is moved or
    removed. After the call the key is not watched any more, so that a directory that changes
    all the time costs one event between two polls.

    If the kernel drops events, every key counts as changed. If it grants no further watch, `watch` returns
    False, and the caller polls; one line of the log says so. The thread `directory-watch` begins with
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
        self._is_refusal_logged = False
        # The keys of each watch, and the watches of each key.
        self._keys: dict[int, set[str]] = {}
        self._watches: dict[str, set[int]] = {}
        # The watched directory of each key.
        self._directories: dict[str, str] = {}

    def watch(self, key: str, directory: str) -> bool:
        """Watches `directory` for `key` from now on, instead of another one; does nothing if it does already.

        Returns False if its changes cannot be seen: its path leads over a link, its file system may change
        on another machine, or the kernel refuses.
        """
        if self._directories.get(key) == directory:
            return True
        # Without the lock, because a dead disk may hold the thread here.
        can_be_seen = _is_changed_here_only(directory)
        with self._lock:
            self._forget(key)
            if self._is_stopped or not can_be_seen:
                return False
            try:
                self._add(key, directory)
            except (OSError, ImportError) as error:
                self._forget(key)
                self._log_refusal(error)
                return False
            self._directories[key] = directory
            return True

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

    # --- Under the lock ---------------------------------------------------------------------------

    def _add(self, key: str, directory: str) -> None:
        """Raises OSError if a directory cannot be watched, and ImportError without the library."""
        from inotify_simple import flags

        inotify = self._inotify or self._begin()
        # inotify has one watch for each inode. Several keys may share it, so masks are added, not replaced.
        shared = flags.MASK_ADD | flags.ONLYDIR
        gone = flags.MOVE_SELF | flags.DELETE_SELF
        entries = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO
        above, mask = os.path.abspath(directory), shared | gone | entries
        while True:
            descriptor = inotify.add_watch(above, mask)
            self._keys.setdefault(descriptor, set()).add(key)
            self._watches.setdefault(key, set()).add(descriptor)
            if above == os.path.dirname(above):
                return
            above, mask = os.path.dirname(above), shared | gone

    def _begin(self) -> "INotify":
        from inotify_simple import INotify

        self._inotify = INotify(nonblocking=True)
        self._wake_fd = os.eventfd(0)
        self._thread = threading.Thread(
            target=self._run, args=(self._inotify,), name="directory-watch", daemon=True
        )
        self._thread.start()
        return self._inotify

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

    def _log_refusal(self, error: Exception) -> None:
        # A directory that is gone is no refusal: the next poll reports it.
        if self._is_refusal_logged or isinstance(error, FileNotFoundError | NotADirectoryError):
            return
        self._is_refusal_logged = True
        number = error.errno if isinstance(error, OSError) else None
        _log.warning(
            "directory_watch_refused",
            reason=str(error),
            consequence="some base paths are polled, which takes more of a core",
            remedy=_REMEDIES.get(number or 0, "none is needed"),
        )

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

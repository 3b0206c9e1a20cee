"""Writes log lines to a descriptor, and never blocks the thread that logs.

A pipe holds 64 KiB. If no process reads from the pipe, a write to the full pipe waits forever. The control
thread must not wait so, nor a native thread that writes to descriptor 2. Two things prevent it:

- `unblock` gives this process its own non-blocking view of the pipe. If a native line does not fit into the
  pipe, the line is lost, and its thread goes on.
- `LogWriter` keeps lines that do not fit, up to a limit, and its own thread writes them later. Lines beyond
  the limit are dropped and counted.
"""

import io
import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from serving.base.clock import NS_PER_SECOND, Clock

CAPACITY_BYTES = 4 << 20
"""The most bytes that are kept: about 20,000 lines, so that a reader may pause for minutes and lose none."""

LOOK_SECONDS = 0.2
"""While the pipe is full, the thread checks this often if it should end."""

_OWN_VIEW_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def unblock(descriptor: int) -> bool:
    """Makes writes to `descriptor` return at once, also those of native code. Returns False if they may block.

    Writes to a file may block, because no flag changes that. A pipe or terminal is opened again for this
    process, and only this new view gets the flag, because other processes, such as the shell, share the old
    view. A socket cannot be opened again, so the flag is set on the socket itself.
    """
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)):
        return False
    try:
        own = os.open(f"/proc/self/fd/{descriptor}", _OWN_VIEW_FLAGS)
    except OSError:
        if stat.S_ISCHR(mode):
            return False
        os.set_blocking(descriptor, False)
        return True
    os.dup2(own, descriptor)
    os.close(own)
    return True


def write_at_once(descriptor: int, line: bytes) -> bool:
    """Writes `line` without waiting for the reader. Returns False if the line does not fit as a whole.

    Changes no flag of `descriptor`, because other processes and Python's own streams may rely on its flags.
    If the reader is gone or the disk is full, the line counts as written, because no later try would help.
    """
    try:
        own = _own_view(descriptor)
    except OSError:
        return True  # Standard error is closed.
    try:
        return _wait_until_writable(own, 0) and os.write(own, line) == len(line)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        os.close(own)


def _own_view(descriptor: int) -> int:
    """Opens a non-blocking view of a pipe or terminal. Of any other descriptor it makes a duplicate.

    A file must not be opened again, because writes to the new view would begin at the file's start.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):  # The pipe belongs to another user, or its reader is gone.
            return os.open(f"/proc/self/fd/{descriptor}", _OWN_VIEW_FLAGS)
    return os.dup(descriptor)


def _wait_until_writable(descriptor: int, timeout_seconds: float) -> bool:
    """Waits until `descriptor` accepts data, or has lost its reader. Returns False at the timeout."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(timeout_seconds * 1_000))


class LogWriter(io.TextIOBase):
    """A stream for log lines. Each `write` has one line or more, and returns at once. Any thread.

    Lines are written in their order. While the descriptor accepts all lines, the threads that log write
    them, so that no line is lost if the process crashes. When a line does not fit, the thread `log-writer`
    writes it and the lines after it. If the reader of the descriptor is gone, lines are lost.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        may_block: bool,
        on_dropped: Callable[[int], None],
        capacity_bytes: int = CAPACITY_BYTES,
        clock: Clock,
    ) -> None:
        """`on_dropped` gets the count of dropped lines once there is space again, on `log-writer`.

        The lines that `on_dropped` logs are never dropped. If writes to the descriptor `may_block`, only
        `log-writer` writes.
        """
        self._descriptor = descriptor
        self._may_block = may_block
        self._on_dropped = on_dropped
        self._capacity_bytes = capacity_bytes
        self._clock = clock
        # Guards all members below, and is notified of their changes.
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        # True from the time when `log-writer` takes a line out of `_waiting` until it has written the line.
        self._is_writing = False
        self._dropped_count = 0
        self._reported_count = 0
        self._end_ns: int | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def start(self) -> None:
        """Starts the thread `log-writer`."""
        self._thread.start()

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    @property
    def dropped_count(self) -> int:
        """The number of lines that were dropped since the start."""
        return self._dropped_count

    def write(self, text: str) -> int:
        """Writes the lines in `text`, keeps them for later, or drops them. Returns the length of `text`."""
        line = text.encode(errors="backslashreplace")
        with self._changed:
            if not (self._may_block or self._waiting or self._is_writing):
                line = self._put(line)
            is_kept = self._is_reporting() or self._waiting_bytes < self._capacity_bytes
            if line and is_kept:
                self._waiting.append(line)
                self._waiting_bytes += len(line)
                self._changed.notify_all()
            elif line:
                self._dropped_count += 1
        return len(text)

    def close_within(self, timeout_seconds: float) -> bool:
        """Writes the lines that are kept, and ends the thread. Returns False if the timeout loses some."""
        with self._changed:
            self._end_ns = self._clock.now_ns() + round(timeout_seconds * NS_PER_SECOND)
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds + LOOK_SECONDS)
        with self._changed:
            return not (self._waiting or self._is_writing)

    # --- The thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (line := self._take()) is not None:
            rest = self._put(line)
            while rest and not self._is_late():
                self._wait_for_space()
                rest = self._put(rest)
            with self._changed:
                self._is_writing = False
            self._report_dropped()

    def _take(self) -> bytes | None:
        """Waits for the next line; None if the thread should end."""
        with self._changed:
            while not self._waiting or self._is_late():
                if self._end_ns is not None:
                    return None
                self._clock.wait(self._changed, None)
            line = self._waiting.popleft()
            self._waiting_bytes -= len(line)
            self._is_writing = True
            return line

    def _put(self, line: bytes) -> bytes:
        """Writes as much of `line` as the descriptor accepts, and returns the rest."""
        try:
            return line[os.write(self._descriptor, line) :]
        except BlockingIOError:
            return line
        except OSError:
            return b""  # The reader is gone, or the disk is full.

    def _wait_for_space(self) -> None:
        with suppress(OSError):
            _wait_until_writable(self._descriptor, LOOK_SECONDS)

    def _report_dropped(self) -> None:
        """Calls `on_dropped` if lines were dropped and at least half of the space is free."""
        with self._changed:
            count = self._dropped_count - self._reported_count
            if count == 0 or self._waiting_bytes > self._capacity_bytes // 2 or self._is_late():
                return
            self._reported_count = self._dropped_count
        self._on_dropped(count)

    def _is_reporting(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def _is_late(self) -> bool:
        return self._end_ns is not None and self._clock.now_ns() >= self._end_ns

"""Log lines to a descriptor, without ever blocking the thread that logs.

A pipe that nothing reads holds 64 KiB, and a write to it then waits for ever: the control thread
would wait with it, and so would a native thread that writes to descriptor 2. Hence two measures:

- `unblock` gives this process its own non-blocking view of the pipe. A native line that does not
  fit into the pipe is lost, and its thread goes on.
- `LogWriter` keeps the lines that do not fit, up to a limit, for its thread to write later. Beyond
  the limit lines are dropped and counted.
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
"""Some 20,000 lines: a reader that pauses for minutes loses none."""

LOOK_SECONDS = 0.2
"""The time between two checks, while the pipe is full, if the thread should end."""

_OWN_VIEW_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def unblock(descriptor: int) -> bool:
    """Makes writes to `descriptor` return at once, for native code too; False if they may block.

    Writes to a file may block: no flag changes that. The flag is set on a new view of the same pipe
    or terminal, because other processes, such as the shell, share the old one. A socket has no such
    view.
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
    """Writes `line` without waiting for the reader; False if it, or its end, does not fit.

    Changes no flag of `descriptor`, because other processes and Python's own streams may rely on
    its flags. If the reader is gone or the disk is full, the line counts as written: no later try
    would help.
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
    """Opens a non-blocking view of a pipe or terminal; if there can be no such view, a duplicate.

    A file is not opened again, because the new view would write over its beginning.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):  # It belongs to another user, or its reader is gone.
            return os.open(f"/proc/self/fd/{descriptor}", _OWN_VIEW_FLAGS)
    return os.dup(descriptor)


def _wait_until_writable(descriptor: int, timeout_seconds: float) -> bool:
    """Waits until `descriptor` accepts data, or has lost its reader; False at the timeout."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(timeout_seconds * 1_000))


class LogWriter(io.TextIOBase):
    """Each `write` is one log line or more; it returns at once, on any thread.

    Lines are written in their order. While the descriptor accepts all lines, the threads that log
    write them, so that no line is lost if the process crashes. Otherwise the thread `log-writer`
    writes them. If the reader of the descriptor is gone, lines are lost.
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

        What `on_dropped` logs is never dropped. `may_block`: only `log-writer` writes.
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
        # True while `log-writer` has taken a line out of `waiting` and not written all of it.
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
        """The count of lines dropped since the start."""
        return self._dropped_count

    def write(self, text: str) -> int:
        """Writes the lines in `text`, or keeps them for later, or drops them."""
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
        """Writes the lines that are kept, and ends the thread; False if some are lost at the
        timeout.
        """
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
        """Waits for the next line; None when the thread is to end."""
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
        """Writes as much of `line` as the descriptor takes; returns the rest of it."""
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
        """Reports the lines that were dropped, once half of the space is free."""
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

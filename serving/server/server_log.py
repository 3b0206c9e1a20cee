"""Reads the log of a server process while the server writes it."""

import collections
import json
import threading
from collections.abc import Callable, Mapping
from itertools import islice
from typing import IO, Any

from serving.base.clock import NS_PER_SECOND, Clock

LogEvent = Mapping[str, Any]
"""A line of a JSON log (`serving.server.logs`): `event`, `level`, `timestamp` and the event's values."""

# The last lines that an error shows. They are enough to see the cause of a failure.
_TAIL_LINE_COUNT = 40
_END_TIMEOUT_SECONDS = 5


class LogReader:
    """Reads a server's log from `pipe` on its own thread, into `file` and into memory.

    Owns the pipe and the file, and closes both at the end of the log. Because the log comes through a pipe,
    `wait_for` need not poll a file.
    """

    def __init__(self, pipe: IO[bytes], file: IO[bytes]) -> None:
        self._pipe = pipe
        self._file = file
        self._changed = threading.Condition()
        self._events: list[LogEvent] = []
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINE_COUNT)
        self._is_at_end = False
        self._thread = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._thread.start()

    def wait_for(
        self, is_wanted: Callable[[LogEvent], bool], timeout_seconds: float, clock: Clock
    ) -> LogEvent | None:
        """Waits for the first event for which `is_wanted` returns True.

        Returns None at the timeout, and at the end of the log.
        """
        deadline_ns = clock.now_ns() + round(timeout_seconds * NS_PER_SECOND)
        with self._changed:
            seen_count = 0
            while True:
                # Looks at each event only once, because a server of many models logs thousands.
                event = next(filter(is_wanted, islice(self._events, seen_count, None)), None)
                seen_count = len(self._events)
                left_seconds = (deadline_ns - clock.now_ns()) / NS_PER_SECOND
                if event is not None or self._is_at_end or left_seconds <= 0:
                    return event
                clock.wait(self._changed, left_seconds)

    def events(self) -> tuple[LogEvent, ...]:
        with self._changed:
            return tuple(self._events)

    def tail(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(self._tail)

    def join(self) -> None:
        """Waits until the whole log is read. Call it after the process has ended.

        Waits five seconds at most, because another process that the server has started may hold the pipe.
        """
        self._thread.join(_END_TIMEOUT_SECONDS)

    def _read(self) -> None:
        with self._pipe, self._file:
            for line in self._pipe:
                self._file.write(line)
                self._file.flush()
                self._add(line.decode(errors="replace").rstrip("\n"))
        with self._changed:
            self._is_at_end = True
            self._changed.notify_all()

    def _add(self, line: str) -> None:
        with self._changed:
            self._tail.append(line)
            if (event := _event(line)) is not None:
                self._events.append(event)
                self._changed.notify_all()


def _event(line: str) -> LogEvent | None:
    """The event of a JSON line; None for a line that is no event, such as one of TensorFlow."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None

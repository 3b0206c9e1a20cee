"""Receives the events for which a supervisor waits: signals, and the end of its standard input."""

import os
import select
import signal
from types import TracebackType
from typing import Any

from serving.base.early_stop import heeded

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that a supervisor passes on to the server. A server that ends after them is not started again."""


class Events:
    """Receives SIGCHLD, and STOP_SIGNALS unless SIGHUP is ignored, in `with`. One thread.

    The signals are written to a pipe, so that a signal that comes just before `wait` is not lost.
    """

    def __init__(self, input_descriptor: int | None = None) -> None:
        """The end of `input_descriptor` counts as SIGTERM. If it is None, only signals count."""
        self._input = input_descriptor
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Events":
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end)
        for number in (*heeded(STOP_SIGNALS), signal.SIGCHLD):
            self._before[number] = signal.signal(number, lambda number, frame: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._write_end)
        os.close(self._read_end)

    def wait(self, timeout_seconds: float | None) -> list[int]:
        """Waits for signals, and returns the numbers of those that came, in their order; [] at the timeout."""
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        if self._input is not None:
            poll.register(self._input, select.POLLIN)
        ready = poll.poll(None if timeout_seconds is None else max(0.0, timeout_seconds) * 1_000)
        numbers: list[int] = []
        for descriptor, _ in ready:
            if descriptor == self._read_end:
                numbers += os.read(self._read_end, 512)
            elif not os.read(descriptor, 4_096):
                self._input = None
                numbers.append(signal.SIGTERM)
        return numbers

"""Receives STOP_SIGNALS on a thread of its own, which no lock of the main thread can block."""

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from serving.base.clock import Clock, SystemClock, seconds_since
from serving.base.early_stop import STOP_SIGNALS, heeded
from serving.server.logs import write_last_line

ECHO_SECONDS = 0.5
"""A second signal within this time is ignored as an echo of the first.

`timeout` and some supervisors send each signal to the process and to its group. That must not end a drain.
"""

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals of which the second one ends a drain. SIGHUP does not count, because it is no request for an end:
a closed terminal sends it several times, and so do tools that want a daemon to read its files again."""


class StopSignals:
    """Receives STOP_SIGNALS in `with`. The first one requests a stop.

    The second of ENDING_SIGNALS ends the process at once.

    The interpreter's C handler writes each signal to a pipe, from which the thread `signals` reads it. A
    Python handler would not do, because it runs only on the main thread, between two of that thread's steps.
    If a signal came just as the main thread began to wait for a lock, the handler would never run (seen in 3
    of 75 stops right after a start). Enter `with` on the main thread.

    `exit_now` is `os._exit`, which runs no exit handlers, so it works even if one of them would hang.
    """

    def __init__(
        self,
        request_stop: Callable[[str], None],
        exit_now: Callable[[int], Any] = os._exit,
        clock: Clock | None = None,
    ) -> None:
        self.exit_now = exit_now
        self._clock = clock or SystemClock()
        self._request_stop = request_stop
        self._is_stopping = False
        self._told_to_end_at_ns: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end)
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()
        for number in heeded(STOP_SIGNALS):
            # The handler does nothing, but without a Python handler the C handler would not be called.
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
        self._thread.join()
        os.close(self._read_end)

    def receive(self, number: int) -> None:
        """Handles one signal. Called on the thread `signals`."""
        name = signal.Signals(number).name
        if not self._is_stopping:
            self._is_stopping = True
            self._request_stop(name)
        if number not in ENDING_SIGNALS:
            return
        if self._told_to_end_at_ns is None:
            self._told_to_end_at_ns = self._clock.now_ns()
            return
        if seconds_since(self._clock, self._told_to_end_at_ns) < ECHO_SECONDS:
            return
        write_last_line("second_signal", f"millpond: second signal ({name}): exiting at once")
        self.exit_now(128 + number)

    def _run(self) -> None:
        while numbers := os.read(self._read_end, 64):
            for number in numbers:
                if number in self._before:
                    self.receive(number)

"""StopSignals: SIGTERM and SIGINT, received where no lock can hold them up."""

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from serving.base.clock import Clock, SystemClock, seconds_since
from serving.server.logs import write_last_line

ECHO_SECONDS = 0.5
"""Within it a second signal is the first one's echo: `timeout` and some supervisors send theirs to
the process and to its group, and a drain must not end by that."""


class StopSignals:
    """SIGTERM and SIGINT while in `with`: the first requests a stop, the second ends the process.

    A second that follows at once is an echo and does nothing. They are received on a thread of its
    own, from the pipe that the interpreter's C handler writes to. A handler in Python runs on the
    main thread alone, between two of its steps: a signal that comes just as that thread begins to
    wait for a lock would wait with it, for ever (seen in 3 of 75 stops right after a start). Enter
    it on the main thread.

    `exit_now` is `os._exit`: it runs no handlers, so it works whatever hangs.
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
        self._requested_at_ns: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end)
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Any handler will do, for without one the C handler is not called.
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
        """What a signal does. On the thread `signals`."""
        name = signal.Signals(number).name
        if self._requested_at_ns is None:
            self._requested_at_ns = self._clock.now_ns()
            self._request_stop(name)
            return
        if seconds_since(self._clock, self._requested_at_ns) < ECHO_SECONDS:
            return
        write_last_line("second_signal", f"millpond: second signal ({name}): exiting at once")
        self.exit_now(128 + number)

    def _run(self) -> None:
        while numbers := os.read(self._read_end, 64):
            for number in numbers:
                if number in self._before:
                    self.receive(number)

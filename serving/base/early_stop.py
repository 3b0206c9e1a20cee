"""Ends a server that is told to stop before it serves: in the second of its imports it has nothing to drain."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_at_stop_signals() -> None:
    """Makes the first SIGTERM or SIGINT end this process with status 0, until `StopSignals` receives them.

    A signal that `signals_kept` has kept counts too. Ends by `os._exit`, because an exception could come from
    the middle of any import. A server is often process 1 of a container, for which the kernel drops a SIGTERM
    without a handler. Call it on the main thread.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Keeps a stop signal for the program that is executed in `with`, which begins without a handler."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Ends a server that is told to stop before it serves: in the second of its imports it has nothing to drain."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that stop a server. SIGHUP is one, because without a handler it ends a process at once, and the
requests under way with it: when its terminal closes, or when it is sent to make a daemon read its files again."""


def heeded(signals: Sequence[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Leaves SIGHUP out if this process ignores it, as a process begun by `nohup` does."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(each for each in signals if not (is_ignored and each is signal.SIGHUP))


def exit_at_stop_signals() -> None:
    """Makes the first of STOP_SIGNALS end this process with status 0, until `StopSignals` receives them.

    A signal that `signals_kept` has kept counts too. Ends by `os._exit`, because an exception could come from
    the middle of any import. A server is often process 1 of a container, for which the kernel drops a SIGTERM
    without a handler. Call it on the main thread.
    """
    for number in heeded(STOP_SIGNALS):
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

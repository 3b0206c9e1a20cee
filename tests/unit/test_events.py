"""Signals and the end of an input, as a supervisor receives them."""

import os
import signal

from serving.supervisor.events import Events


def test_signals_come_in_order_and_once():
    with Events() as events:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert events.wait(5) == [signal.SIGTERM, signal.SIGINT]
        assert events.wait(0) == []


def test_handlers_before_are_restored():
    before = signal.getsignal(signal.SIGTERM)
    with Events():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_end_of_input_counts_as_sigterm_once():
    read_end, write_end = os.pipe()
    os.write(write_end, b"ignored")
    os.close(write_end)
    with Events(read_end) as events:
        assert events.wait(5) == []
        assert events.wait(5) == [signal.SIGTERM]
        assert events.wait(0) == []
    os.close(read_end)

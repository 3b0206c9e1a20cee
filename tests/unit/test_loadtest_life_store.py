"""`loadtest life store`: its figures and what it prints."""

import io

from rich.console import Console

from loadtest.commands.store import Idle, print_store, store_report, waits_seconds


def test_report_has_medians_and_the_longest_time():
    seconds = [{"upload": 1.0, "available": time} for time in (3.0, 9.0, 4.0)]
    report = store_report(seconds, Idle(6.5, 0.012, 0.004), mib=100, poll_seconds=10)
    assert (report["available_seconds"], report["available_seconds_max"]) == (4, 9)
    console = Console(file=io.StringIO(), width=200)
    print_store(report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "to AVAILABLE 4.0 s (longest 9.0 s)" in text
    assert "6.5 requests a minute, 1.20% of a core; with a local directory 0.40%" in text


def test_uploads_are_spread_between_two_looks():
    assert waits_seconds(4, 10) == [1.25, 3.75, 6.25, 8.75]
    assert waits_seconds(1, 10) == [5]

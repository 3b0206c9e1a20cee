"""`demo`: swaps a version in and out under load, and shows the clients' figures.

The exit status is 0 only if no request failed and every answer was right for the version it names.
"""

import argparse
import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command
from loadtest.drive.checked_sender import checked_sender
from loadtest.drive.demo_model import MODEL_NAME, DemoModel, demo_directory, prepare_model
from loadtest.drive.traffic import Outcome, Traffic
from loadtest.measure.latency import TooFewRequests, percentile_ms
from loadtest.measure.swaps import Swap, is_unloaded, swaps_in
from loadtest.measure.timeline import LogClock, Span, times_of_swaps
from serving.base.clock import NS_PER_SECOND, SystemClock
from serving.client.stubs import PredictionServiceStub
from serving.commands.argument_types import positive_number, whole_number
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS
from serving.server.model_server import ModelServer

# Enough for a version of 500 MB from a cold disk.
_SWAP_TIMEOUT_SECONDS = 120
# The requests that p99.9 needs.
_REQUEST_COUNT_MIN = 5_000
_START_NS = NS_PER_SECOND


@dataclass(frozen=True)
class Report:
    """The results of a demo."""

    outcomes: Sequence[Outcome]
    swaps: Sequence[Swap]
    times: Sequence[Span] = ()
    """The time of each swap."""

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.answer is None]

    @property
    def wrong(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.answer is not None and not o.answer.is_right]

    @property
    def is_clean(self) -> bool:
        """True if no request failed and every answer was right."""
        return bool(self.outcomes) and not self.failed and not self.wrong

    @property
    def latencies_ns(self) -> list[int]:
        return [outcome.latency_ns for outcome in self.outcomes]

    def latencies_in_swaps_ns(self, *, is_in_swap: bool) -> list[int]:
        """The latencies of the requests that were in flight in a swap, or of all others.

        The first second is left out, because the clients connect in it, and send late what was due
        meanwhile.
        """
        begin_ns = min((o.scheduled_ns for o in self.outcomes), default=0) + _START_NS
        return [
            outcome.latency_ns
            for outcome in self.outcomes
            if outcome.scheduled_ns >= begin_ns and self._is_in_swap(outcome) == is_in_swap
        ]

    def _is_in_swap(self, outcome: Outcome) -> bool:
        return any(
            outcome.scheduled_ns <= time.end_ns and time.begin_ns <= outcome.completed_ns
            for time in self.times
        )

    @property
    def verdict(self) -> str:
        """One line: what swaps do to the tail, what was lost, and if the demo passed.

        The ratio decides nothing, because it depends on what else the machine does.
        """
        return (
            f"p99 in swaps over steady: {self._ratio_text()}; lost {len(self.failed)}, "
            f"wrong {len(self.wrong)}: {'passed' if self.is_clean else 'failed'}"
        )

    def _ratio_text(self) -> str:
        try:
            in_swaps = percentile_ms(self.latencies_in_swaps_ns(is_in_swap=True), 990)
            steady = percentile_ms(self.latencies_in_swaps_ns(is_in_swap=False), 990)
        except TooFewRequests:
            return "too few requests"
        return f"{in_swaps / steady:.1f}"


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    with demo_directory(parsed.directory) as directory:
        model = prepare_model(directory, parsed.rows, console.print)
        report = swap_under_load(model, parsed, console.print)
    print_report(report, console)
    return 0 if report.is_clean else 1


def swap_under_load(
    model: DemoModel, parsed: argparse.Namespace, say: Callable[[str], None]
) -> Report:
    """Serves version 1, swaps to 2 and back, all under load. Raises MillpondError at a timeout."""
    with (
        ModelServer(
            model_name=MODEL_NAME,
            base_path=model.base_path,
            file_system_poll_wait_seconds=0.5,
            allocator=parsed.allocator,
        ) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        server.wait_until_available(MODEL_NAME, 1, _SWAP_TIMEOUT_SECONDS)
        clock = SystemClock()
        log_clock = LogClock(clock.wall_ns() - clock.now_ns())
        say(f"version 1 serves at {server.target}, {parsed.rate:g} requests/s")
        traffic = Traffic(
            checked_sender(PredictionServiceStub(channel), parsed.request_rows, parsed.rows),
            rate_per_second=parsed.rate,
            thread_count=8,
            clock=clock,
        )
        with traffic:
            timeout_seconds = _SWAP_TIMEOUT_SECONDS + _REQUEST_COUNT_MIN / parsed.rate
            _swap_to_2_and_back(model, traffic, timeout_seconds, say)
        server.wait_for_event(lambda event: is_unloaded(event, 2), _SWAP_TIMEOUT_SECONDS)
        events = server.events()
        times = times_of_swaps(events, MODEL_NAME, log_clock)
        return Report(traffic.outcomes(), swaps_in(events), times)


def print_report(report: Report, console: Console) -> None:
    """Prints the clients' figures, the stage times of each swap, and the verdict."""
    console.print(_requests_table(report))
    console.print(_swaps_table(report.swaps))
    for outcome in report.failed[:3]:
        console.print(f"failed: {outcome.error}", style="red", markup=False)
    console.print(report.verdict, style=None if report.is_clean else "red", highlight=False)


def _swap_to_2_and_back(
    model: DemoModel, traffic: Traffic, timeout_seconds: float, say: Callable[[str], None]
) -> None:
    """Swaps to version 2 and back. Raises Unavailable if a swap, or a third of the requests, takes
    longer than `timeout_seconds`.
    """
    # Each version serves for about a third of the requests.
    traffic.wait_for_count(_REQUEST_COUNT_MIN // 3, timeout_seconds)
    model.drop(2)
    try:
        say("version 2 dropped")
        traffic.wait_for_answer_from(2, _SWAP_TIMEOUT_SECONDS)
        say("version 2 answers")
        traffic.wait_for_count(_REQUEST_COUNT_MIN * 2 // 3, timeout_seconds)
    finally:
        model.remove(2)
    say("version 2 removed")
    traffic.wait_for_answer_from(1, _SWAP_TIMEOUT_SECONDS)
    say("version 1 answers again")
    traffic.wait_for_count(_REQUEST_COUNT_MIN, timeout_seconds)


def _requests_table(report: Report) -> Table:
    answered = collections.Counter(o.answer.version for o in report.outcomes if o.answer)
    table = Table("requests", "", title="as the clients measured it")
    table.add_row("sent", str(len(report.outcomes)))
    table.add_row("failed", str(len(report.failed)))
    table.add_row("wrong answers", str(len(report.wrong)))
    for version, count in sorted(answered.items()):
        table.add_row(f"answered by version {version}", str(count))
    for name, per_mille in (("p50", 500), ("p99", 990), ("p999", 999)):
        table.add_row(f"{name} ms", _percentile_text(report.latencies_ns, per_mille))
    for title, is_in_swap in (("p99 ms, steady", False), ("p99 ms, in swaps", True)):
        latencies_ns = report.latencies_in_swaps_ns(is_in_swap=is_in_swap)
        table.add_row(title, _percentile_text(latencies_ns, 990))
    return table


def _percentile_text(latencies_ns: Sequence[int], per_mille: int) -> str:
    try:
        return f"{percentile_ms(latencies_ns, per_mille):.2f}"
    except TooFewRequests as error:
        return f"refused: {error}"


def _swaps_table(swaps: Sequence[Swap]) -> Table:
    stages = list(dict.fromkeys(stage for swap in swaps for stage in swap.stage_seconds))
    titles = (f"{swap.title} {swap.version}" for swap in swaps)
    table = Table("stage, ms", *titles, title="loads and unloads in the server")
    for stage in stages:
        cells = (
            f"{swap.stage_seconds[stage] * 1e3:.1f}" if stage in swap.stage_seconds else "-"
            for swap in swaps
        )
        table.add_row(stage, *cells)
    return table


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory", type=Path, help="keep the exported versions here for the next demo"
    )
    parser.add_argument(
        "--rows", type=whole_number(1), default=DEFAULT_TABLE_ROWS, help="rows of each table"
    )
    parser.add_argument(
        "--request_rows", type=whole_number(1), default=10, help="rows of each request"
    )
    parser.add_argument("--rate", type=positive_number, default=400, help="requests per second")
    parser.add_argument("--allocator", default="jemalloc", help="see millpond serve --help")


DEMO = Command("swaps a version in and out under load, and shows the figures", _add_options, _run)

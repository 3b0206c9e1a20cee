"""The demo: swaps a version in and out under load, and shows the clients' figures.

    python -m loadtest.commands.demo [--directory DIR] [--rows 300000]

The exit status is 0 only if no request failed and every answer was right for the version it names.
"""

import argparse
import collections
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.drive.traffic import Answer, Outcome, Send, Traffic
from loadtest.measure.latency import TooFewRequests, percentile_ms
from loadtest.measure.swaps import Swap, is_unloaded, swaps_in
from serving.base.clock import SystemClock
from serving.base.closed_pipe import until_closed_pipe
from serving.base.errors import InvalidConfig, MillpondError
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto
from serving.client.stubs import PredictionServiceStub
from serving.commands.argument_types import positive_number, whole_number
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS, reference_answers, request_inputs
from serving.commands.ctr_request import predict_request
from serving.server.model_server import ModelServer

MODEL_NAME = "ctr"

# The requests differ in their ids and are sent in turn.
_REQUEST_SEEDS = range(16)
# The answers are float32 sums of 429 products; the reference sums in float64.
_TOLERANCE = 1e-5
# Longer than the slowest request of a swap, shorter than the patience of the demo's user.
_REQUEST_TIMEOUT_SECONDS = 10
# Enough for a version of 500 MB from a cold disk.
_SWAP_TIMEOUT_SECONDS = 120
# The requests that p99.9 needs.
_REQUEST_COUNT_MIN = 5_000


@dataclass(frozen=True)
class DemoModel:
    """The CTR model on disk: the server polls `base_path`; versions wait in `staged`.

    Both are on one file system, so that a version is added and removed by one rename.
    """

    base_path: Path
    staged: Path

    @classmethod
    def below(cls, directory: Path, table_rows: int) -> "DemoModel":
        """Returns the model's directories below `directory`; each table size has its own."""
        root = directory / f"rows-{table_rows}"
        return cls(root / "served" / MODEL_NAME, root / "staged" / MODEL_NAME)

    def drop(self, version: int) -> None:
        """Moves a version to the base path."""
        (self.staged / str(version)).rename(self.base_path / str(version))

    def remove(self, version: int) -> None:
        """Moves a version away from the base path and keeps it for the next demo."""
        (self.base_path / str(version)).rename(self.staged / str(version))


@dataclass(frozen=True)
class Report:
    """The results of a demo."""

    outcomes: Sequence[Outcome]
    swaps: Sequence[Swap]

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo and returns its exit status."""
    return until_closed_pipe(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parsed = _parser().parse_args(arguments)
    console = Console()
    try:
        with demo_directory(parsed.directory) as directory:
            model = prepare_model(directory, parsed.rows, console.print)
            report = swap_under_load(model, parsed, console.print)
    except BrokenPipeError:
        raise
    except (MillpondError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print_report(report, console)
    return 0 if report.is_clean else 1


def prepare_model(directory: Path, table_rows: int, say: Callable[[str], None]) -> DemoModel:
    """Exports versions 1 and 2 if they do not exist yet; 1 is served, 2 staged."""
    model = DemoModel.below(directory, table_rows)
    model.base_path.mkdir(parents=True, exist_ok=True)
    model.staged.mkdir(parents=True, exist_ok=True)
    if (model.base_path / "2").exists():  # an earlier demo was interrupted
        model.remove(2)
    for version, place in ((1, model.base_path), (2, model.staged)):
        if (place / str(version)).exists():
            say(f"version {version} was exported before")
        else:
            _export(place, version, table_rows)
    return model


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
        say(f"version 1 serves at {server.target}, {parsed.rate:g} requests/s")
        traffic = Traffic(
            checked_sender(PredictionServiceStub(channel), parsed.request_rows, parsed.rows),
            rate_per_second=parsed.rate,
            thread_count=8,
            clock=SystemClock(),
        )
        with traffic:
            timeout_seconds = _SWAP_TIMEOUT_SECONDS + _REQUEST_COUNT_MIN / parsed.rate
            _swap_to_2_and_back(model, traffic, timeout_seconds, say)
        server.wait_for_event(lambda event: is_unloaded(event, 2), _SWAP_TIMEOUT_SECONDS)
        return Report(traffic.outcomes(), swaps_in(server.events()))


def checked_sender(stub: Any, request_rows: int, table_rows: int) -> Send:
    """Returns a `Send` that sends the requests in turn with the stock stub and checks version and
    `ctr` of each answer.
    """
    inputs = [request_inputs(seed, request_rows, table_rows) for seed in _REQUEST_SEEDS]
    requests = [predict_request(MODEL_NAME, arrays) for arrays in inputs]
    expected = reference_answers((1, 2), inputs, table_rows)

    def send(number: int) -> Answer:
        index = number % len(requests)
        response = stub.Predict(requests[index], timeout=_REQUEST_TIMEOUT_SECONDS)
        return checked_answer(response, {v: answers[index] for v, answers in expected.items()})

    return send


def checked_answer(
    response: predict_pb2.PredictResponse, expected: Mapping[int, np.ndarray[Any, Any]]
) -> Answer:
    """Returns the answer, which is right if `ctr` and the `version` output fit the reply's version.

    `expected` has for each version the right `ctr`, float64[rows, 1].
    """
    version = response.model_spec.version.value
    ctr = from_tensor_proto(response.outputs["ctr"])
    versions = from_tensor_proto(response.outputs["version"])
    is_right = (
        version in expected
        and ctr.shape == expected[version].shape
        and bool(np.allclose(ctr, expected[version], rtol=0, atol=_TOLERANCE))
        and bool((versions == version).all())
    )
    return Answer(version, is_right)


def print_report(report: Report, console: Console) -> None:
    """Prints the clients' figures and the stage times of each swap."""
    console.print(_requests_table(report))
    console.print(_swaps_table(report.swaps))
    for outcome in report.failed[:3]:
        console.print(f"failed: {outcome.error}", style="red", markup=False)


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
    latencies_ns = [outcome.latency_ns for outcome in report.outcomes]
    table = Table("requests", "", title="as the clients measured it")
    table.add_row("sent", str(len(report.outcomes)))
    table.add_row("failed", str(len(report.failed)))
    table.add_row("wrong answers", str(len(report.wrong)))
    for version, count in sorted(answered.items()):
        table.add_row(f"answered by version {version}", str(count))
    for name, per_mille in (("p50", 500), ("p99", 990), ("p999", 999)):
        table.add_row(f"{name} ms", _percentile_text(latencies_ns, per_mille))
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


def _export(place: Path, version: int, table_rows: int) -> None:
    """Exports a version in a separate process, to keep TensorFlow's threads and memory out of the
    clients' process.
    """
    command = [sys.executable, "-m", "serving", "demo-model", str(place)]
    result = subprocess.run(
        [*command, f"--version={version}", f"--rows={table_rows}"],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    if result.returncode != 0:
        raise InvalidConfig(f"version {version} could not be exported to {place}; see above")


@contextmanager
def demo_directory(given: Path | None) -> Iterator[Path]:
    """Yields the given directory, or a temporary one that is removed at the end."""
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="millpond-demo-") as directory:
        yield Path(directory)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.commands.demo", description=__doc__, allow_abbrev=False
    )
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
    return parser


if __name__ == "__main__":
    sys.exit(main())

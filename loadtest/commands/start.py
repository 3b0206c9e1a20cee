"""`life start`: how long a server with many small models takes until it is ready, what it takes at rest,
how large its pages are, and how long it takes until it is stopped."""

import argparse
import os
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.commands.options import (
    Command,
    add_flag_option,
    add_json_option,
    flags_of,
    positive_integer,
)
from loadtest.drive.small_model import config_text, write_small_models
from loadtest.measure.process_memory import resident
from loadtest.report.tables import write_json
from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.base.errors import Unavailable
from serving.client import Client
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

_START_TIMEOUT_SECONDS = 600.0
# Long enough for a few polls of each base path, one a second.
_REST_SECONDS = 10.0
# The swaps of a start are followed for 12 s, which is no rest yet.
_SETTLE_SECONDS = 15.0
_MB = 1_000_000
_PAGES = ("/metrics", "/v1/page", "/v1/swaps")


@dataclass(frozen=True)
class Spent:
    """The processor seconds of a process so far, and its thread count."""

    user_seconds: float
    system_seconds: float
    thread_count: int

    @classmethod
    def parse(cls, stat: str, seconds_per_tick: float) -> "Spent":
        """Parses the text of /proc/PID/stat."""
        # Fields 14, 15 and 20, counted after the name in parentheses, which may hold spaces.
        fields = stat.rpartition(")")[2].split()
        return cls(
            int(fields[11]) * seconds_per_tick, int(fields[12]) * seconds_per_tick, int(fields[17])
        )

    @property
    def seconds(self) -> float:
        return self.user_seconds + self.system_seconds

    @classmethod
    def of(cls, process_id: int) -> "Spent":
        """Reads the figures now. Raises OSError if the process has ended."""
        stat = Path(f"/proc/{process_id}/stat").read_text()
        return cls.parse(stat, 1 / os.sysconf("SC_CLK_TCK"))


@dataclass(frozen=True)
class PageRead:
    """One page, as it was read after the requests: its size without compression.

    The thread that makes it yields to all others, so that `seconds` say little on a busy machine.
    """

    bytes: int
    seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class Started:
    """One start. `http_seconds` is the time until HTTP answers, as in a server without models."""

    http_seconds: float
    ready_seconds: float
    spent: Spent
    # Processor seconds per second after the start, without requests.
    rest_ratio: float
    resident_bytes: int
    # By path, once some models have had requests.
    pages: Mapping[str, PageRead]
    stage_seconds: Mapping[str, float]
    # From SIGTERM to the end of the process.
    stop_seconds: float


def stage_totals(events: Iterable[LogEvent]) -> dict[str, float]:
    """The seconds of each stage of all loads, the longest first. Pure."""
    totals: Counter[str] = Counter()
    for event in events:
        if event["event"] == "version_available":
            stages = {key: value for key, value in event.items() if key.endswith("_seconds")}
            totals.update({key.removesuffix("_seconds"): took for key, took in stages.items()})
    return {stage: round(seconds, 3) for stage, seconds in totals.most_common()}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model-count", type=positive_integer, default=200, metavar="N", help="default 200"
    )
    parser.add_argument(
        "--asked-count",
        type=positive_integer,
        default=50,
        metavar="N",
        help="the models that get a request before the pages are read, default 50",
    )
    parser.add_argument("--repeats", type=positive_integer, default=1, help="starts, default 1")
    add_flag_option(parser)
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    flags = flags_of(parsed)
    with tempfile.TemporaryDirectory(prefix="millpond-start-") as directory:
        base_paths = write_small_models(Path(directory), parsed.model_count)
        config_path = Path(directory, "models.config")
        config_path.write_text(config_text(base_paths))
        asked = list(base_paths)[: parsed.asked_count]
        starts = [measure_start(config_path, flags, asked, clock) for _ in range(parsed.repeats)]
    console.print(table_of(parsed.model_count, starts))
    write_json(parsed.json, [asdict(started) for started in starts])
    return 0


def measure_start(
    config_path: Path, flags: Mapping[str, object], asked: Sequence[str], clock: Clock
) -> Started:
    """Starts a server, lets it rest, sends requests to the models `asked`, reads its pages, stops it.

    Raises MillpondError if it does not start, or a model of it does not load.
    """
    server = ModelServer(
        model_config_file=config_path,
        listen_before_ready=False,
        start_timeout_seconds=_START_TIMEOUT_SECONDS,
        **flags,  # type: ignore[arg-type]
    )
    start_ns = clock.now_ns()
    with server:
        ready_seconds = seconds_since(clock, start_ns)
        spent = Spent.of(server.process_id)
        ready = server.wait_for_event(lambda event: event["event"] == "ready", 60)
        if ready["unavailable"]:
            raise Unavailable(f"{len(ready['unavailable'])} models did not load; see {ready}")
        pause(clock, _SETTLE_SECONDS)
        before, rest_ns = Spent.of(server.process_id), clock.now_ns()
        pause(clock, _REST_SECONDS)
        after, rest_seconds = Spent.of(server.process_id), seconds_since(clock, rest_ns)
        memory = resident(server.process_id, clock)
        assert memory is not None
        _ask(server.target, asked)
        pages = {path: _read(server, path, clock) for path in _PAGES}
        events = server.events()
        http = next(event for event in events if event["event"] == "http_listening")
        stop_ns = clock.now_ns()
        server.stop()
        stop_seconds = seconds_since(clock, stop_ns)
    return Started(
        http_seconds=ready_seconds - _seconds_between(http, ready),
        ready_seconds=ready_seconds,
        spent=spent,
        rest_ratio=(after.seconds - before.seconds) / rest_seconds,
        resident_bytes=memory.total_bytes,
        pages=pages,
        stage_seconds=stage_totals(events),
        stop_seconds=stop_seconds,
    )


def _ask(target: str, models: Iterable[str]) -> None:
    """Sends one request to each model."""
    with Client(target) as client:
        for name in models:
            client.predict(name, {"x": np.array([5.0], np.float32)})


def _read(server: ModelServer, path: str, clock: Clock) -> PageRead:
    """Reads a page twice, and times the second time: the first one may import modules."""
    urllib.request.urlopen(server.url + path).read()
    before, start_ns = Spent.of(server.process_id), clock.now_ns()
    content = urllib.request.urlopen(server.url + path).read()
    seconds, after = seconds_since(clock, start_ns), Spent.of(server.process_id)
    return PageRead(len(content), seconds, after.seconds - before.seconds)


def table_of(model_count: int, starts: Iterable[Started]) -> Table:
    """A table with a column for each start. Pure."""
    starts = list(starts)
    rows: dict[str, list[str]] = {
        "seconds until HTTP answers": [f"{item.http_seconds:.1f}" for item in starts],
        "seconds until ready": [f"{item.ready_seconds:.1f}" for item in starts],
        "processor seconds until ready, user": [
            f"{item.spent.user_seconds:.1f}" for item in starts
        ],
        "processor seconds until ready, system": [
            f"{item.spent.system_seconds:.1f}" for item in starts
        ],
        "threads when ready": [str(item.spent.thread_count) for item in starts],
        "processor, at rest": [f"{item.rest_ratio:.1%}" for item in starts],
        "resident MB, at rest": [f"{item.resident_bytes / _MB:,.0f}" for item in starts],
        "seconds until stopped": [f"{item.stop_seconds:.1f}" for item in starts],
    }
    for path in starts[0].pages:
        rows[f"kB of {path}"] = [f"{item.pages[path].bytes / 1000:,.0f}" for item in starts]
        rows[f"seconds of {path}"] = [f"{item.pages[path].seconds:.3f}" for item in starts]
        rows[f"processor seconds of {path}"] = [
            f"{item.pages[path].processor_seconds:.2f}" for item in starts
        ]
    for stage in dict.fromkeys(stage for item in starts for stage in item.stage_seconds):
        rows[f"seconds of all loads, {stage}"] = [
            f"{item.stage_seconds.get(stage, 0):.2f}" for item in starts
        ]
    table = Table(f"{model_count} models", *(str(number + 1) for number in range(len(starts))))
    for name, figures in rows.items():
        table.add_row(name, *figures)
    return table


def _seconds_between(earlier: LogEvent, later: LogEvent) -> float:
    stamps = [datetime.fromisoformat(event["timestamp"]) for event in (earlier, later)]
    return (stamps[1] - stamps[0]).total_seconds()


START = Command(
    "how long a server with many small models takes until it is ready", _add_options, _run
)

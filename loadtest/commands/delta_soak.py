"""`life delta-soak`: many deltas in a row beside requests, with all that may happen to a server meanwhile.
No request may be lost, and each answer must have the right bits.
"""

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.commands.soak import BUG_EVENTS
from loadtest.drive.delta_series import MODEL_NAME, DeltaSeries
from loadtest.measure.delta_events import World, happens, schedule, write_settings
from loadtest.measure.delta_servers import DeltaServers, ServerEnd, resident_mb
from loadtest.measure.latency import figures
from loadtest.measure.outcome_figures import error_messages, latencies_ns
from loadtest.plan.arrivals import poisson
from loadtest.plan.delta_load import DeltaLoad
from loadtest.report.tables import latency_table, write_json
from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

# 1.28 MB each: above the size from which a variable counts as a table.
_DEFAULT_ROW_COUNT = 20_000
_PROBE_SHAPE = (16, 32)
_RESTART_COUNT = 2
# The longest that one server's requests may go on.
_PLANNED_SECONDS_MIN, _PLANNED_SECONDS_PER_DELTA = 300.0, 10.0


@dataclass(frozen=True, kw_only=True)
class DeltaSoakSetup:
    """The parameters of a soak of deltas. Another event happens after every `event_each` deltas."""

    delta_count: int
    seconds_per_delta: float = 1.0
    base_each: int = 200
    event_each: int = 8
    restart_count: int = _RESTART_COUNT
    row_count: int = _DEFAULT_ROW_COUNT
    changed_ratio: float = 0.01
    rate_per_second: float = 100.0
    tensorflow_each: int = 10
    seed: int = 1


@dataclass(frozen=True)
class DeltaSoakResult:
    """The results of a soak of deltas. `faults` are wrong answers to all ids at once, which are compared with
    NumPy's, and now and then with TensorFlow's. `read_in_full` has the reasons of the log. `bugs` are log events
    that must not occur.
    """

    ends: Sequence[ServerEnd]
    wrong_count: int
    faults: Sequence[str]
    compared_count: int
    compared_with_tensorflow_count: int
    done: Mapping[str, int]
    loads: Mapping[str, int]
    read_in_full: Mapping[str, int]
    restored: Mapping[str, int]
    available_seconds: Sequence[float]
    seconds: float

    @property
    def lost_count(self) -> int:
        """The requests that did not end with OK."""
        return sum(int((end.outcome.codes != 0).sum()) for end in self.ends)

    @property
    def request_count(self) -> int:
        """The requests that were sent."""
        return sum(len(end.outcome.codes) for end in self.ends)

    @property
    def bugs(self) -> Sequence[LogEvent]:
        """The log events that are bugs of the server."""
        return [event for event in _events(self.ends) if event["event"] in BUG_EVENTS]

    @property
    def is_good(self) -> bool:
        """True if no request was lost or wrong, and no bug was logged."""
        return not (self.lost_count or self.wrong_count or self.faults or self.bugs)


def delta_soak(setup: DeltaSoakSetup, clock: Clock, say: Callable[[str], None]) -> DeltaSoakResult:
    """Runs a soak. Raises MillpondError, after it has stopped everything that it started."""
    started_ns = clock.now_ns()
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-deltas-"))
        )
        series = DeltaSeries(directory, setup.row_count, _PROBE_SHAPE, setup.seed)
        series.publish_base()
        settings_file = directory / "settings.toml"
        write_settings(settings_file, 0)
        load = DeltaLoad(MODEL_NAME, series.probes)
        servers = DeltaServers(
            series,
            lambda: _server(series.base_path, settings_file),
            load.plan(_arrivals(setup), setup.seed),
            clock,
            setup.tensorflow_each,
        )
        world = World(series, servers, settings_file, setup.changed_ratio)
        with servers:
            live(world, setup, clock, say)
    return DeltaSoakResult(
        ends=servers.ends,
        wrong_count=sum(load.wrong_count(end.outcome, series.answers) for end in servers.ends),
        faults=servers.faults,
        compared_count=servers.compared_count,
        compared_with_tensorflow_count=servers.compared_with_tensorflow_count,
        done=dict(world.done),
        loads=_loads(servers.ends),
        read_in_full=_reasons(servers.ends),
        restored=_restored(servers.ends),
        available_seconds=servers.available_seconds,
        seconds=seconds_since(clock, started_ns),
    )


def live(world: World, setup: DeltaSoakSetup, clock: Clock, say: Callable[[str], None]) -> None:
    """Brings the deltas, at most one in `seconds_per_delta`, and lets the events of the schedule happen."""
    events = schedule(setup.delta_count, setup.event_each, setup.restart_count, setup.seed)
    for number in range(1, setup.delta_count + 1):
        started_ns = clock.now_ns()
        is_base = number % setup.base_each == 0
        world.bring(world.series.publish_base if is_base else world.series.publish_delta)
        world.done["base" if is_base else "delta"] += 1
        if number in events:
            happens(world, events[number])
        if number % 100 == 0:
            say(f"{number} deltas, version {world.series.newest}: {dict(world.done)}")
        left_seconds = setup.seconds_per_delta - seconds_since(clock, started_ns)
        if left_seconds > 0:
            pause(clock, left_seconds)


def _server(base_path: Path, settings_file: Path) -> ModelServer:
    return ModelServer(
        model_name=MODEL_NAME,
        base_path=base_path,
        model_settings_file=settings_file,
        file_system_poll_wait_seconds=0.05,
        max_num_load_retries=0,
    )


def _arrivals(setup: DeltaSoakSetup) -> Any:
    seconds = _PLANNED_SECONDS_MIN + setup.delta_count * _PLANNED_SECONDS_PER_DELTA
    return poisson(setup.rate_per_second, seconds, setup.seed)


# --- The figures ----------------------------------------------------------------------------------


def _events(ends: Sequence[ServerEnd]) -> list[LogEvent]:
    return [event for end in ends for event in end.events]


def _loads(ends: Sequence[ServerEnd]) -> Mapping[str, int]:
    counts = Counter(event["event"] for event in _events(ends))
    names = ("version_available", "load_failed", "version_unloaded", "rolled_back")
    return {name: counts[name] for name in names}


def _reasons(ends: Sequence[ServerEnd]) -> Mapping[str, int]:
    return Counter(
        event["reason"].partition(": ")[2]
        for event in _events(ends)
        if event["event"] == "delta_restored_in_full"
    )


def _restored(ends: Sequence[ServerEnd]) -> Mapping[str, int]:
    restored = [event for event in _events(ends) if event["event"] == "restored"]
    return {
        name: sum(event[name] for event in restored)
        for name in ("restored_bytes", "kept_bytes", "copied_bytes")
    }


# --- The command ----------------------------------------------------------------------------------


def _add_options(parser: argparse.ArgumentParser) -> None:
    default = DeltaSoakSetup(delta_count=1000)
    for name, kind, text in (
        ("delta-count", positive_integer, "deltas in a row"),
        ("seconds-per-delta", positive, "from one to the next, at least"),
        ("base-each", positive_integer, "a new base instead of every Nth delta"),
        ("event-each", positive_integer, "another event after every Nth delta"),
        ("row-count", positive_integer, "rows of each of two tables of 64 bytes a row"),
        ("rate-per-second", positive, "requests per second"),
        ("tensorflow-each", positive_integer, "versions that TensorFlow loads too: every Nth"),
        ("seed", int, "of the events, the training and the requests"),
    ):
        value = getattr(default, name.replace("-", "_"))
        parser.add_argument(
            f"--{name}", type=kind, default=value, metavar="N", help=f"{text}; default {value}"
        )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    names = DeltaSoakSetup.__dataclass_fields__.keys() & vars(parsed).keys()
    setup = DeltaSoakSetup(**{name: getattr(parsed, name) for name in names})
    result = delta_soak(setup, SystemClock(), console.print)
    shown = shown_figures(result)
    console.print(latency_table(f"{setup.rate_per_second:g} requests/s", {"": shown["latency"]}))
    console.print(_table(shown))
    for line in (*error_messages([end.outcome for end in result.ends]), *result.faults[:5]):
        console.print(f"  {line}", markup=False)
    for event in result.bugs[:5]:
        console.print(f"  {event}", markup=False)
    write_json(parsed.json, {"setup": asdict(setup), **shown})
    return 0 if result.is_good else 1


def shown_figures(result: DeltaSoakResult) -> dict[str, Any]:
    """The figures of a soak for tables and JSON. Pure."""
    latencies = [latencies_ns(end.outcome) for end in result.ends]
    seconds = sorted(result.available_seconds)
    return {
        "requests": result.request_count,
        "lost": result.lost_count,
        "wrong": result.wrong_count,
        "whole_answers_compared": result.compared_count,
        "... with tf.saved_model.load too": result.compared_with_tensorflow_count,
        "whole_answers_wrong": len(result.faults),
        "bugs": len(result.bugs),
        **{f"times: {name}": count for name, count in sorted(result.done.items())},
        **{f"log: {name}": count for name, count in result.loads.items()},
        **{f"read in full: {reason}": count for reason, count in result.read_in_full.items()},
        "MB read": result.restored["restored_bytes"] / 1e6,
        "MB found in memory": result.restored["kept_bytes"] / 1e6,
        "MB copied of these": result.restored["copied_bytes"] / 1e6,
        "seconds, rename to AVAILABLE: median": statistics.median(seconds),
        "seconds, rename to AVAILABLE: highest": seconds[-1],
        "resident MB of each server: first, median, highest, last": resident_mb(result.ends),
        "minutes": result.seconds / 60,
        "latency": figures(np.concatenate(latencies)),
    }


def _table(shown: Mapping[str, Any]) -> Table:
    table = Table("delta soak", "")
    for name, value in shown.items():
        if name == "latency":
            continue
        table.add_row(name, _text(value))
    return table


def _text(value: Any) -> str:
    if isinstance(value, Sequence):
        return "; ".join(" ".join(f"{number:,.0f}" for number in each) for each in value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


DELTA_SOAK = Command(
    "many deltas in a row beside requests, with all that may happen: no answer lost or wrong",
    _add_options,
    _run,
)

"""`soak`: adds, removes, breaks and rolls back versions at random under load; no request may
fail."""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive
from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.drive.generator import Generator
from loadtest.drive.mixing_model import BURST, mixing_clients, write_mixing_model
from loadtest.drive.mixing_model import MODEL_NAME as MIXING_NAME
from loadtest.drive.soak_events import (
    EVENTS,
    FIRST_VERSION,
    OPENING,
    World,
    come_to_rest,
    happens,
    write_config,
    write_settings,
)
from loadtest.drive.soak_unfit import UnfitVersion
from loadtest.drive.traffic import Outcome as BurstOutcome
from loadtest.drive.version_series import VersionSeries, content_of
from loadtest.measure.process_memory import MemoryWatch
from loadtest.measure.soak_blocked import blocked_answers, blocked_spans
from loadtest.plan.arrivals import poisson
from loadtest.plan.ctr_load import CtrLoad, parsed
from loadtest.plan.plan import NOT_KEPT, Outcome, Plan
from loadtest.report.report import run_report
from loadtest.report.tables import generator_line, latency_table, write_json
from serving.base.clock import SystemClock, seconds_since
from serving.base.errors import StatusCode
from serving.client import Client
from serving.commands.ctr_model import EMBEDDING_SIZE, TABLE_COUNT
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

# A table that loads in a tenth of a second, so that many changes fit in the time.
DEFAULT_TABLE_ROWS = 20_000
_TABLE_BYTES = TABLE_COUNT * EMBEDDING_SIZE * 4 * DEFAULT_TABLE_ROWS
_START_TIMEOUT_SECONDS = 60
# Enough for a load that was deferred or waits for memory and is retried, and then the expected
# load.
_REST_TIMEOUT_SECONDS = 60
# Enough for the distinct answers of some hundred versions to 64 requests each.
_KEPT_REPLY_BYTES_MAX = 1 << 30
# Log events that are bugs of the server, so that no change of the soak may cause them.
BUG_EVENTS = frozenset(
    {
        *("control_failed", "load_raised", "unload_raised", "poll_failed", "listener_failed"),
        *("task_failed", "arena_leaked", "stop_failed", "quiesce_slow"),
    }
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=positive, default=30, metavar="M", help="default 30")
    parser.add_argument(
        "--rate", type=positive, default=200, metavar="R", help="requests per second"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="K", help="seed of the events and their times"
    )
    parser.add_argument(
        "--memory-versions",
        type=_not_negative,
        default=3.5,
        metavar="V",
        help="memory for this many versions of all models together, default 3.5; 0: no limit",
    )
    parser.add_argument(
        "--load-jitter",
        type=_not_negative,
        default=1.0,
        metavar="S",
        help="--load_jitter_seconds of the server, default 1",
    )
    add_json_option(parser)


def live(world: World, minutes: float, is_enough: Callable[[], bool]) -> None:
    """Runs an event about every second, for `minutes` and until `is_enough()` is True."""
    started_ns = world.clock.now_ns()
    for opening in OPENING:
        happens(world, opening)
    while seconds_since(world.clock, started_ns) < minutes * 60 or not is_enough():
        (event,) = world.dice.choices(list(EVENTS), list(EVENTS.values()))
        happens(world, event)


# --- The command ----------------------------------------------------------------------------------


_SHOWN = (
    *("done", "loads", "refusals", "forbidden_answers", "blocked_answers", "resident_mb"),
    "mixing_errors",
)


def _not_negative(text: str) -> float:
    """A number of 0 or more. Raises ArgumentTypeError."""
    return 0.0 if text == "0" else positive(text)


@dataclass(frozen=True, kw_only=True)
class SoakSetup:
    """The parameters of a soak. `memory_versions` is the count of versions that fit in memory; 0
    means no limit.

    The soak continues beyond `minutes` until the server has loaded `load_count_min` versions, so
    that a slow machine runs as many swaps as a fast one.
    """

    minutes: float
    rate_per_second: float
    seed: int
    memory_versions: float = 3.5
    load_jitter_seconds: float = 1.0
    load_count_min: int = 0


@dataclass(frozen=True)
class SoakResult:
    """The results of a soak.

    `forbidden_answers` counts the requests that each broken or refused version answered.
    `blocked_answers` counts the requests that each rolled-back version answered while another
    version could. `bugs` are log events that must not occur. `refusals` are loads that a gate or
    the memory limit ended.
    """

    outcome: Outcome
    wrong_count: int
    forbidden_answers: Mapping[int, int]
    blocked_answers: Mapping[int, int]
    done: Mapping[str, int]
    loads: Mapping[str, int]
    refusals: Mapping[str, int]
    bugs: Sequence[LogEvent]
    resident_mb: Sequence[float]
    mixing: Sequence[BurstOutcome]

    @property
    def mixing_errors(self) -> Mapping[str, int]:
        """The errors of the bursts that failed or were answered wrongly, with their counts."""
        return Counter(
            burst.error or "a wrong answer"
            for burst in self.mixing
            if burst.answer is None or not burst.answer.is_right
        )

    @property
    def is_good(self) -> bool:
        """True if no request was lost, wrong, or answered by a forbidden version, and no bug
        logged.
        """
        is_lost = self.outcome.codes.any()
        answered = self.forbidden_answers or self.blocked_answers
        return not (self.bugs or self.wrong_count or answered or is_lost or self.mixing_errors)


def soak(setup: SoakSetup, console: Console) -> SoakResult:
    """Runs a soak. Raises MillpondError, after it has stopped everything that it started."""
    clock = SystemClock()
    load = CtrLoad(MODEL_NAME, rows=10, table_rows=DEFAULT_TABLE_ROWS, seed=setup.seed)
    with ExitStack() as stack:
        series, unfit = _versions(stack, console)
        files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-soak-")))
        mixing_path = files / MIXING_NAME
        write_mixing_model(mixing_path)
        write_settings(files, "")
        write_config(files, {MODEL_NAME: series.base_path, MIXING_NAME: mixing_path})
        server = stack.enter_context(_server(files, setup))
        server.wait_until_available(MODEL_NAME, FIRST_VERSION, _START_TIMEOUT_SECONDS)
        server.wait_until_available(MIXING_NAME, 1, _START_TIMEOUT_SECONDS)
        client = stack.enter_context(Client(server.admin_target))
        dice, is_tight = random.Random(setup.seed), setup.memory_versions > 0
        world = World(series, files, client, clock, dice, unfit, is_tight)
        world.lasting[MIXING_NAME] = mixing_path
        watch = stack.enter_context(MemoryWatch([server.process_id], clock))
        with (
            Generator(_plan(load, setup), server.target) as generator,
            mixing_clients(server.target, clock) as mixing,
        ):
            live(world, setup.minutes, lambda: _load_count(server.events()) >= setup.load_count_min)
            last = come_to_rest(world)
            server.wait_until_available(MODEL_NAME, last, _REST_TIMEOUT_SECONDS)
            outcome = generator.stop()
        samples = [sample.total_bytes / 1e6 for sample in watch.samples()]
        server.stop()
        events = server.events()
    return SoakResult(
        outcome=outcome,
        wrong_count=load.wrong_count(outcome, content_of),
        forbidden_answers=answers_of(outcome, world.forbidden),
        blocked_answers=blocked_answers(
            outcome,
            versions_of(outcome),
            blocked_spans(events, world.allowed, MODEL_NAME),
            clock.wall_ns() - clock.now_ns(),
        ),
        done=dict(world.done),
        loads=_counts(events, "event", ("version_available", "load_failed", "version_unloaded")),
        refusals=_counts(events, "code", ("FAILED_PRECONDITION", "RESOURCE_EXHAUSTED")),
        bugs=[event for event in events if event["event"] in BUG_EVENTS],
        resident_mb=[samples[0], max(samples), samples[-1]] if samples else [],
        mixing=mixing.outcomes(),
    )


def versions_of(outcome: Outcome) -> list[int | None]:
    """The version that answered each request; None for a failure or a reply not kept."""
    by_reply = [
        response.model_spec.version.value
        if reply.code == StatusCode.OK and (response := parsed(reply)) is not None
        else None
        for reply in outcome.replies
    ]
    return [None if place == NOT_KEPT else by_reply[place] for place in outcome.reply_of]


def answers_of(outcome: Outcome, versions: Collection[int]) -> dict[int, int]:
    """The count of requests that each of `versions` answered, without counts of 0."""
    counts = Counter(versions_of(outcome))
    return {version: counts[version] for version in sorted(versions) if counts[version]}


def _load_count(events: Sequence[LogEvent]) -> int:
    return sum(event["event"] == "version_available" for event in events)


def _counts(events: Sequence[LogEvent], key: str, values: Sequence[str]) -> dict[str, int]:
    counts = Counter(event.get(key) for event in events)
    return {value: counts[value] for value in values}


def _versions(stack: ExitStack, console: Console) -> tuple[VersionSeries, UnfitVersion]:
    directory = stack.enter_context(demo_directory(None))
    exports = prepare_model(directory, DEFAULT_TABLE_ROWS, console.print)
    series = stack.enter_context(VersionSeries(exports, MODEL_NAME, "records", ()))
    series.drop(FIRST_VERSION)
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
    good = exports.base_path / "1"
    return series, UnfitVersion(place, good, series.base_path, DEFAULT_TABLE_ROWS)


def _server(files: Path, setup: SoakSetup) -> ModelServer:
    flags = {
        "model_config_file": files / "models.config",
        "model_settings_file": files / "settings.toml",
        "model_config_file_poll_wait_seconds": 1,
        "file_system_poll_wait_seconds": 0.2,
        "load_retry_interval_micros": 500_000,
        "load_jitter_seconds": setup.load_jitter_seconds,
        "model_memory_limit_bytes": round(setup.memory_versions * _TABLE_BYTES),
        "enable_batching": True,
    }
    return ModelServer(**flags)  # type: ignore[arg-type]


def _plan(load: CtrLoad, setup: SoakSetup) -> Plan:
    # The events and the rest phase take extra seconds; the generator is stopped after them.
    seconds = setup.minutes * 60 + 60 + _REST_TIMEOUT_SECONDS
    offsets_ns = poisson(setup.rate_per_second, seconds, setup.seed)
    return replace(load.plan(offsets_ns, setup.seed), kept_reply_bytes_max=_KEPT_REPLY_BYTES_MAX)


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    setup = SoakSetup(
        minutes=parsed.minutes,
        rate_per_second=parsed.rate,
        seed=parsed.seed,
        memory_versions=parsed.memory_versions,
        load_jitter_seconds=parsed.load_jitter,
    )
    result = soak(setup, console)
    report = run_report(result.outcome, result.wrong_count, parsed.rate)
    console.print(latency_table(f"{parsed.rate:g} requests/s", {"": report["latency"]}))
    console.print(generator_line(report["generator"]))
    console.print(_events_table(result))
    console.print(f"resident MB first, highest, last: {result.resident_mb}")
    console.print(
        f"failed {report['errors']}, wrong {result.wrong_count}, answered by forbidden versions "
        f"{sum(result.forbidden_answers.values())}, by rolled-back versions "
        f"{sum(result.blocked_answers.values())}, bugs {len(result.bugs)}; of "
        f"{BURST * len(result.mixing)} requests to a model that mixes rows, in bursts of {BURST}, "
        f"bursts failed or wrong: {sum(result.mixing_errors.values())}"
    )
    errors = [f"{MIXING_NAME}: {count} x {text}" for text, count in result.mixing_errors.items()]
    for message in (*report["error_messages"], *errors, *map(str, result.bugs[:5])):
        console.print(f"  {message}", markup=False)
    shown = {name: getattr(result, name) for name in _SHOWN}
    write_json(parsed.json, {**report, **shown, "seed": parsed.seed, "bugs": len(result.bugs)})
    return 0 if result.is_good else 1


def _events_table(result: SoakResult) -> Table:
    table = Table("what happened", "times", title="soak")
    for name, count in sorted({**result.done, **result.loads, **result.refusals}.items()):
        table.add_row(name, str(count))
    return table


SOAK = Command("random changes of versions, config and disk under load", _add_options, _run)

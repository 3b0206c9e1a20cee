"""`soak`: versions come, go, break and are rolled back at random under load, and no request may fail."""

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.arrivals import payload_numbers, poisson
from loadtest.ctr_load import CtrLoad
from loadtest.demo import MODEL_NAME, demo_directory, prepare_model
from loadtest.generator import Generator
from loadtest.options import Command, positive, writable_file
from loadtest.plan import Outcome, Plan
from loadtest.process_memory import MemoryWatch
from loadtest.report import run_report
from loadtest.tables import generator_line, latency_table, write_json
from loadtest.version_series import VersionSeries, content_of
from serving.client import Client
from serving.clock import Clock, SystemClock, pause, seconds_since
from serving.errors import FailedPrecondition
from serving.model_server import ModelServer
from serving.server_log import LogEvent

NEIGHBOUR_NAME = "neighbour"

# Loads of it take a tenth of a second: as many changes as can be in the time.
_DEFAULT_TABLE_ROWS = 20_000
_START_TIMEOUT_SECONDS = 60
# Distinct answers, a version's number is in each: some hundred versions of 64 requests.
_KEPT_REPLY_BYTES_MAX = 1 << 30
# The server's own bugs: none of what happens here may lead to one.
_BUG_EVENTS = frozenset(
    {
        *("control_failed", "load_raised", "unload_raised", "poll_failed", "listener_failed"),
        *("task_failed", "arena_leaked", "stop_failed", "quiesce_slow"),
    }
)
_VERSIONS_ON_DISK_MAX = 4


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=positive, default=30, metavar="M", help="default 30")
    parser.add_argument(
        "--rate", type=positive, default=200, metavar="R", help="requests per second"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="K", help="of what happens, and when"
    )
    parser.add_argument(
        "--json", type=writable_file, metavar="FILE", help="write the figures there"
    )


@dataclass
class World:
    """A server, the versions on its disk, and what was done to them. `dice` draws what is next."""

    series: VersionSeries
    directory: Path
    client: Client
    clock: Clock
    dice: random.Random
    next_version: int = 2
    sound: set[int] = field(default_factory=lambda: {1})
    broken: set[int] = field(default_factory=set)
    label_version: int | None = None
    has_neighbour: bool = False
    done: Counter[str] = field(default_factory=Counter)

    def take_version(self) -> int:
        """The number of the next version: they only go up."""
        self.next_version += 1
        return self.next_version - 1

    def pause(self, seconds: float) -> None:
        """Waits."""
        pause(self.clock, seconds)

    def write_config(self) -> None:
        """Writes the server's config file as the world is now."""
        write_config(self.directory, self.series.base_path, self.label_version, self.has_neighbour)


def write_config(
    directory: Path, base_path: Path, label_version: int | None, has_neighbour: bool
) -> None:
    """Writes the server's config file by one rename."""
    label = ""
    if label_version is not None:
        label = f'version_labels {{ key: "stable" value: {label_version} }}'
    names = {MODEL_NAME: label, **({NEIGHBOUR_NAME: ""} if has_neighbour else {})}
    models = (
        f'config {{ name: "{name}" base_path: "{base_path}" model_platform: "tensorflow" {more} }}'
        for name, more in names.items()
    )
    _replace(directory / "models.config", f"model_config_list {{ {' '.join(models)} }}")


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


# --- What can happen ------------------------------------------------------------------------------


def drop(world: World) -> None:
    """A new version comes by one rename; old ones go, so that the disk does not fill."""
    version = world.take_version()
    world.series.drop(version)
    world.sound.add(version)
    while len(world.sound) > _VERSIONS_ON_DISK_MAX:
        _remove(world, min(world.sound))


def drop_slowly(world: World) -> None:
    """A new version comes as a copy that stalls before its variables are there."""
    version = world.take_version()
    finish = world.series.begin_copy(version)
    world.pause(world.dice.uniform(0.5, 3))
    finish()
    world.sound.add(version)


def drop_broken(world: World) -> None:
    """A new version whose variables are damaged: it must never serve."""
    version = world.take_version()
    world.series.drop_damaged(version)
    world.broken.add(version)


def remove_broken(world: World) -> None:
    """A version that never served goes."""
    for version in sorted(world.broken):
        world.series.remove(version)
    world.broken.clear()


def remove(world: World) -> None:
    """Any version goes, the one that serves included; one stays."""
    if len(world.sound) > 1:
        _remove(world, world.dice.choice(sorted(world.sound)))


def _remove(world: World, version: int) -> None:
    world.sound.discard(version)
    world.series.remove(version)


def vanish(world: World) -> None:
    """The disk is away for a while."""
    away = world.series.base_path.with_suffix(".away")
    world.series.base_path.rename(away)
    world.pause(world.dice.uniform(0.1, 3))
    away.rename(world.series.base_path)


def overwrite(world: World) -> None:
    """A version's files are replaced under it."""
    world.series.rewrite_graph(world.dice.choice(sorted(world.sound)))


def roll_back(world: World) -> None:
    """A person puts the previous version back."""
    with suppress(FailedPrecondition):
        world.client.rollback(MODEL_NAME, is_cold_allowed=world.dice.random() < 0.5)


def allow(world: World) -> None:
    """A person takes all rollbacks back."""
    for version in world.client.describe_models()[MODEL_NAME].get("barred", ()):
        with suppress(FailedPrecondition):
            world.client.allow(MODEL_NAME, version)


def promote(world: World) -> None:
    """A person promotes a canary, where there is one."""
    with suppress(FailedPrecondition):
        world.client.promote(MODEL_NAME)


def move_label(world: World) -> None:
    """A label moves to a version on disk, or goes."""
    world.label_version = world.dice.choice([None, *sorted(world.sound)])
    world.write_config()


def toggle_neighbour(world: World) -> None:
    """Another model is configured, or is not any more."""
    world.has_neighbour = not world.has_neighbour
    world.write_config()


def change_settings(world: World) -> None:
    """Another policy, another time that the previous version stays, a canary or none."""
    policy = world.dice.choice(["availability", "auto"])
    keep_seconds = world.dice.choice([0, 5, 60])
    weight = world.dice.choice([0, 0, 0.2])
    request_count = world.dice.choice([0, 200])
    _replace(
        world.directory / "settings.toml",
        f'[models.{MODEL_NAME}]\naspired_version_policy = "{policy}"\n'
        f"keep_previous_seconds = {keep_seconds}\n"
        f"[models.{MODEL_NAME}.canary]\nweight = {weight}\nrequest_count = {request_count}\n",
    )


EVENTS: Mapping[Callable[[World], None], int] = {
    drop: 30,
    drop_slowly: 8,
    drop_broken: 8,
    remove_broken: 6,
    remove: 10,
    vanish: 4,
    overwrite: 4,
    roll_back: 10,
    allow: 8,
    promote: 6,
    move_label: 6,
    toggle_neighbour: 4,
    change_settings: 6,
}
"""What happens, and how often beside the others."""


def live(world: World, minutes: float) -> None:
    """Lets things happen for so long, one every second or so."""
    started_ns = world.clock.now_ns()
    while seconds_since(world.clock, started_ns) < minutes * 60:
        (event,) = world.dice.choices(list(EVENTS), list(EVENTS.values()))
        event(world)
        world.done[event.__name__] += 1
        world.pause(world.dice.uniform(0.2, 2))


# --- The command ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SoakResult:
    """What came of it. `bugs`: events of the server's log that should not be."""

    outcome: Outcome
    wrong_count: int
    done: Mapping[str, int]
    loads: Mapping[str, int]
    bugs: Sequence[LogEvent]
    resident_mb: Sequence[float]

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, wrong, or a bug."""
        return not self.bugs and not self.wrong_count and not self.outcome.codes.any()


def soak(minutes: float, rate: float, seed: int, console: Console) -> SoakResult:
    """Raises MillpondError; whatever it started has ended by then."""
    clock = SystemClock()
    load = CtrLoad(MODEL_NAME, rows=10, table_rows=_DEFAULT_TABLE_ROWS, seed=seed)
    with ExitStack() as stack:
        directory = stack.enter_context(demo_directory(None))
        exports = prepare_model(directory, _DEFAULT_TABLE_ROWS, console.print)
        series = stack.enter_context(VersionSeries(exports, MODEL_NAME, "records", ()))
        series.drop(1)
        files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-soak-")))
        _replace(files / "settings.toml", "")
        write_config(files, series.base_path, label_version=None, has_neighbour=False)
        server = stack.enter_context(_server(files))
        server.wait_until_available(MODEL_NAME, 1, _START_TIMEOUT_SECONDS)
        client = stack.enter_context(Client(server.target))
        world = World(series, files, client, clock, random.Random(seed))
        watch = stack.enter_context(MemoryWatch(server.process_id, clock))
        with Generator(_plan(load, rate, minutes, seed), server.target) as generator:
            live(world, minutes)
            outcome = generator.stop()
        samples = [sample.total_bytes / 1e6 for sample in watch.samples()]
        server.stop()
        events = server.events()
    kinds = Counter(event["event"] for event in events)
    return SoakResult(
        outcome=outcome,
        wrong_count=int(load.wrong(outcome, content_of).sum()),
        done=dict(world.done),
        loads={key: kinds[key] for key in ("version_available", "load_failed", "version_unloaded")},
        bugs=[event for event in events if event["event"] in _BUG_EVENTS],
        resident_mb=[samples[0], max(samples), samples[-1]] if samples else [],
    )


def _server(files: Path) -> ModelServer:
    flags = {
        "model_config_file": files / "models.config",
        "model_settings_file": files / "settings.toml",
        "model_config_file_poll_wait_seconds": 1,
        "file_system_poll_wait_seconds": 0.2,
        "load_retry_interval_micros": 500_000,
    }
    return ModelServer(**flags)  # type: ignore[arg-type]


def _plan(load: CtrLoad, rate: float, minutes: float, seed: int) -> Plan:
    # An event may take seconds; the generator is stopped when they are over.
    offsets_ns = poisson(rate, minutes * 60 + 60, seed)
    return Plan(
        offsets_ns=offsets_ns,
        payload_of=payload_numbers(len(offsets_ns), len(load.payloads), seed),
        payloads=load.payloads,
        kept_reply_bytes_max=_KEPT_REPLY_BYTES_MAX,
    )


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    result = soak(parsed.minutes, parsed.rate, parsed.seed, console)
    report = run_report(result.outcome, result.wrong_count, parsed.rate)
    console.print(latency_table(f"{parsed.rate:g} requests/s", {"": report["latency"]}))
    console.print(generator_line(report["generator"]))
    console.print(_events_table(result))
    console.print(f"resident MB at first, at most, at last: {result.resident_mb}")
    console.print(f"failed {report['errors']}, wrong {result.wrong_count}, bugs {len(result.bugs)}")
    for message in (*report["error_messages"], *map(str, result.bugs[:5])):
        console.print(f"  {message}", markup=False)
    shown = {"done": result.done, "loads": result.loads, "resident_mb": result.resident_mb}
    write_json(parsed.json, {**report, **shown, "seed": parsed.seed, "bugs": len(result.bugs)})
    return 0 if result.is_good else 1


def _events_table(result: SoakResult) -> Table:
    table = Table("what happened", "times", title="soak")
    for name, count in sorted({**result.done, **result.loads}.items()):
        table.add_row(name, str(count))
    return table


SOAK = Command("random changes of versions, config and disk under load", _add_options, _run)

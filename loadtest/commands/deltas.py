"""`life deltas`: what a server reads of delta versions, how long it takes, and what stays in memory."""

import argparse
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.drive.trained_model import MODEL_NAME, TrainedTables
from loadtest.measure.process_memory import resident
from loadtest.measure.server_pages import ServerPages
from loadtest.measure.version_loads import VersionLoad, load_of
from loadtest.plan.row_values import RowValues
from loadtest.report.tables import write_json
from serving.base.clock import Clock, SystemClock, seconds_since
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer

_LOAD_TIMEOUT_SECONDS = 600.0
_MB = 1_000_000


@dataclass(frozen=True)
class LoadedVersion:
    """One delta, and its swap."""

    version: int
    changed_row_count: int
    # Without the links to the base.
    written_bytes: int
    export_seconds: float
    # From the rename to the moment at which a client sees it AVAILABLE.
    available_seconds: float
    load: VersionLoad
    # When the version before it is gone.
    resident_bytes: int


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table-gb", type=positive, default=1.0, metavar="GB", help="of two tables; default 1"
    )
    parser.add_argument(
        "--changed-percent", type=positive, default=1.0, metavar="P", help="of the rows; default 1"
    )
    parser.add_argument(
        "--versions", type=positive_integer, default=6, metavar="N", help="deltas; default 6"
    )
    parser.add_argument("--seed", type=int, default=0)
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    with tempfile.TemporaryDirectory(prefix="millpond-deltas-") as directory:
        values = RowValues.sized(
            parsed.table_gb * 1e9, parsed.changed_percent / 100, None, parsed.seed
        )
        tables = TrainedTables(Path(directory), values)
        loaded = measure_deltas(tables, parsed.versions, clock, console.print)
    console.print(table_of(values.table_bytes, loaded))
    write_json(parsed.json, [asdict(item) for item in loaded])
    return 0


def measure_deltas(
    tables: TrainedTables, delta_count: int, clock: Clock, say: Callable[[str], None]
) -> Sequence[LoadedVersion]:
    """Serves a base, and then one delta after the other. Raises MillpondError if one does not load."""
    tables.publish_base()
    loaded = []
    with ModelServer(
        model_name=MODEL_NAME,
        base_path=tables.base_path,
        file_system_poll_wait_seconds=0.05,
        start_timeout_seconds=_LOAD_TIMEOUT_SECONDS,
    ) as server:
        server.wait_until_available(MODEL_NAME, 1, _LOAD_TIMEOUT_SECONDS)
        say(f"base: {_resident_bytes(server, clock) / _MB:,.0f} MB resident")
        for version in range(2, delta_count + 2):
            tables.train(version)
            loaded.append(_measure(tables, version, server, clock))
            say(f"version {version}: {loaded[-1].available_seconds:.2f} s")
    return loaded


def _measure(
    tables: TrainedTables, version: int, server: ModelServer, clock: Clock
) -> LoadedVersion:
    start_ns = clock.now_ns()
    written = tables.export_delta(version)
    export_seconds = seconds_since(clock, start_ns)
    written_bytes = written.own_bytes
    start_ns = clock.now_ns()
    tables.publish(written)
    server.wait_until_available(MODEL_NAME, version, _LOAD_TIMEOUT_SECONDS)
    available_seconds = seconds_since(clock, start_ns)
    gone = {"event": "version_unloaded", "version": version - 1}
    server.wait_for_event(lambda event: gone.items() <= event.items(), _LOAD_TIMEOUT_SECONDS)
    swaps = ServerPages(server.url).swaps(MODEL_NAME)
    (swap,) = (swap for swap in swaps if swap["version"] == version and swap["published_at"])
    return LoadedVersion(
        version=version,
        changed_row_count=tables.changed_row_count,
        written_bytes=written_bytes,
        export_seconds=export_seconds,
        available_seconds=available_seconds,
        resident_bytes=_resident_bytes(server, clock),
        load=load_of(swap),
    )


def _resident_bytes(server: ModelServer, clock: Clock) -> int:
    memory = resident(server.process_id, clock)
    if memory is None:
        raise Unavailable("the server ended")
    return memory.anonymous_bytes


def table_of(table_bytes: int, loaded: Iterable[LoadedVersion]) -> Table:
    """A table with a column for each delta. Pure."""
    loaded = list(loaded)
    rows = {
        "rows changed": [f"{item.changed_row_count:,}" for item in loaded],
        "MB written": [f"{item.written_bytes / _MB:,.1f}" for item in loaded],
        "seconds to write it": [f"{item.export_seconds:.2f}" for item in loaded],
        "seconds, rename to AVAILABLE": [f"{item.available_seconds:.2f}" for item in loaded],
        "seconds, load to publish": [f"{item.load.load_seconds:.2f}" for item in loaded],
        "MB read": [f"{item.load.restored_bytes / _MB:,.1f}" for item in loaded],
        "MB found in memory": [f"{item.load.kept_bytes / _MB:,.1f}" for item in loaded],
        "MB copied of these": [f"{item.load.copied_bytes / _MB:,.1f}" for item in loaded],
        "MB resident after it": [f"{item.resident_bytes / _MB:,.0f}" for item in loaded],
        "in full, because": [item.load.restored_in_full or "-" for item in loaded],
    }
    for stage in dict.fromkeys(stage for item in loaded for stage in item.load.stage_seconds):
        rows[f"ms of {stage}"] = [
            f"{item.load.stage_seconds.get(stage, 0) * 1000:,.1f}" for item in loaded
        ]
    table = Table(f"{table_bytes / _MB:,.0f} MB of tables", *(str(item.version) for item in loaded))
    for name, figures in rows.items():
        table.add_row(name, *figures)
    return table


DELTAS = Command("what a server reads of delta versions, and how long it takes", _add_options, _run)

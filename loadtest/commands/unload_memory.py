"""`memory`: how much of a large version's memory a server keeps once it is unloaded."""

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option
from loadtest.drive.demo_model import MODEL_NAME, demo_directory, prepare_model
from loadtest.measure.process_memory import resident
from loadtest.measure.swaps import is_unloaded
from loadtest.plan.presets import preset
from loadtest.report.tables import write_json
from serving.base.clock import Clock, SystemClock, pause
from serving.base.errors import Unavailable
from serving.commands.ctr_model import DEFAULT_TABLE_ROWS
from serving.server.model_server import ModelServer

SERVERS: Mapping[str, Mapping[str, object]] = {
    "stock": preset("stock").flags,
    "millpond, a spare kept": {},
    "millpond, no spare kept": {"arena_spare_slabs": 0},
}
"""The flags of the compared servers, by the name in the table."""

_TINY_ROWS = 100
_TIMEOUT_SECONDS = 120
# Memory is given back in steps: 500 MB take a second or two.
_SETTLE_SECONDS = 5.0


@dataclass(frozen=True)
class Kept:
    """Resident MB with a tiny version, with the large version instead, and with a tiny one
    again.
    """

    tiny_mb: float
    large_mb: float
    tiny_again_mb: float

    @property
    def kept_mb(self) -> float:
        """The MB of the large version that are still resident after its unload."""
        return self.tiny_again_mb - self.tiny_mb

    @property
    def kept_ratio(self) -> float:
        """The kept share of the large version's memory."""
        return self.kept_mb / (self.large_mb - self.tiny_mb)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="keep the exported model in DIR; default: not kept",
    )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    with demo_directory(parsed.models) as directory:
        tiny = prepare_model(directory, _TINY_ROWS, console.print).base_path / "1"
        large = prepare_model(directory, DEFAULT_TABLE_ROWS, console.print).base_path / "1"
        kept = {name: measure_kept(tiny, large, flags, clock) for name, flags in SERVERS.items()}
    table = Table("", "tiny MB", "large MB", "tiny again MB", "kept MB", "kept")
    for name, shown in kept.items():
        megabytes = (shown.tiny_mb, shown.large_mb, shown.tiny_again_mb, shown.kept_mb)
        table.add_row(name, *(f"{value:,.0f}" for value in megabytes), f"{shown.kept_ratio:.1%}")
    console.print(table)
    write_json(parsed.json, {name: asdict(shown) for name, shown in kept.items()})
    return 0


def measure_kept(tiny: Path, large: Path, flags: Mapping[str, object], clock: Clock) -> Kept:
    """Starts a server with `flags`, swaps from `tiny` to `large` and back. Raises MillpondError."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=large.parents[1])))
        base_path = root / MODEL_NAME
        base_path.mkdir()
        server = stack.enter_context(
            ModelServer(
                model_name=MODEL_NAME,
                base_path=base_path,
                file_system_poll_wait_seconds=0.1,
                **flags,  # type: ignore[arg-type]
            )
        )

        def swap_to(files: Path, version: int) -> None:
            shutil.copytree(files, root / "partial")
            (root / "partial").rename(base_path / str(version))
            server.wait_until_available(MODEL_NAME, version, _TIMEOUT_SECONDS)
            if version > 1:
                server.wait_for_event(
                    lambda event: is_unloaded(event, version - 1), _TIMEOUT_SECONDS
                )

        def resident_mb() -> float:
            pause(clock, _SETTLE_SECONDS)
            sample = resident(server.process_id, clock)
            if sample is None:
                raise Unavailable("the server ended before its memory was measured")
            return sample.total_bytes / 1e6

        # Twice, so that memory left by the first load and unload of the process is not counted.
        for version in (1, 2):
            swap_to(tiny, version)
        tiny_mb = resident_mb()
        swap_to(large, 3)
        large_mb = resident_mb()
        swap_to(tiny, 4)
        return Kept(tiny_mb, large_mb, resident_mb())


MEMORY = Command("how much memory a server keeps of an unloaded version", _add_options, _run)

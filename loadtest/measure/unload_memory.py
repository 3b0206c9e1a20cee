"""Measures how much of a large version's memory a server keeps once it is unloaded."""

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from loadtest.drive.demo_model import MODEL_NAME
from loadtest.measure.process_memory import resident
from loadtest.measure.swaps import is_unloaded
from serving.base.clock import Clock, pause
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer

_TIMEOUT_SECONDS = 120
# Memory is given back in steps, and 500 MB take a second or two.
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

        # Done twice, so that memory left by the first load and unload of the process is not counted.
        for version in (1, 2):
            swap_to(tiny, version)
        tiny_mb = resident_mb()
        swap_to(large, 3)
        large_mb = resident_mb()
        swap_to(tiny, 4)
        return Kept(tiny_mb, large_mb, resident_mb())

"""A server of Millpond whose versions are swapped: its log and its pages report each step."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest.drive.version_series import VersionSeries
from loadtest.measure.server_pages import ServerPages
from loadtest.measure.server_swaps import ServerSwap, wait_for_swaps
from loadtest.measure.setup import Setup
from loadtest.measure.swap_server import SWAP_TIMEOUT_SECONDS, SwapRecord
from loadtest.measure.swaps import Swap, is_unloaded, swaps_in
from loadtest.measure.timeline import LogClock, swaps_of
from loadtest.plan.presets import preset
from serving.base.clock import Clock
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent


@contextmanager
def millpond_swap_server(
    setup: Setup, series: Mapping[str, VersionSeries], clock: Clock
) -> Iterator["MillpondSwapServer"]:
    """Yields a running server of the setup's preset, without a version yet."""
    with (
        tempfile.TemporaryDirectory(prefix="millpond-load-") as directory,
        _server(setup, series, Path(directory)) as server,
    ):
        yield MillpondSwapServer(setup, server, clock)


class MillpondSwapServer:
    """A running ModelServer as a `SwapServer`."""

    starts_empty = True

    def __init__(self, setup: Setup, server: ModelServer, clock: Clock) -> None:
        self._setup = setup
        self._server = server
        self._clock = clock
        self._log_clock = LogClock(clock.wall_ns() - clock.now_ns())

    @property
    def target(self) -> str:
        return self._server.target

    def process_ids(self) -> Sequence[int]:
        return [self._server.process_id]

    def load_first_versions(self, series: Mapping[str, VersionSeries]) -> None:
        for name, one in series.items():
            one.drop(1)
            self._server.wait_until_available(name, 1, SWAP_TIMEOUT_SECONDS)

    def wait_for_unload(self, version: int, dropped_ns: int) -> None:
        """See `SwapServer`; the log has the instants, so `dropped_ns` is not needed."""

        def is_end(event: LogEvent) -> bool:
            is_ours = event.get("model") == self._setup.reloaded
            has_failed = event["event"] == "load_failed" and not event["will_retry"]
            return is_ours and (has_failed or is_unloaded(event, version))

        event = self._server.wait_for_event(is_end, SWAP_TIMEOUT_SECONDS)
        if event["event"] == "load_failed":
            raise Unavailable(f"version {event['version']} did not load: {event['reason']}")

    def finish(self) -> SwapRecord:
        """See `SwapServer`; waits for the pages' figures of the last swap before the stop."""
        server_swaps = self._server_swaps()
        self._server.stop()
        events = self._server.events()
        return SwapRecord(
            spans=swaps_of(events, self._setup.reloaded, self._log_clock),
            stages=_stages(events, self._setup),
            arena_live_bytes=_arena_live_bytes(events),
            server_swaps=server_swaps,
            last_unload_ns=_last_unload_ns(events, self._log_clock),
        )

    def failure(self, reason: str) -> Unavailable:
        return Unavailable(f"{self._setup.preset}: {reason}")

    def _server_swaps(self) -> Sequence[ServerSwap]:
        """Reads the swaps by the server's own figures, once all are over. Raises Unavailable.

        () if the clients send their requests to another model.
        """
        if self._setup.loaded != self._setup.reloaded:
            return ()
        versions = range(2, self._setup.swaps + 2)
        pages = ServerPages(self._server.url)
        return wait_for_swaps(pages, self._setup.reloaded, versions, self._log_clock, self._clock)


def _server(setup: Setup, series: Mapping[str, VersionSeries], directory: Path) -> ModelServer:
    """Makes a ModelServer, not started, that looks for new versions ten times a second."""
    configs = (
        f'config {{ name: "{name}" base_path: "{one.base_path}" model_platform: "tensorflow" }}'
        for name, one in series.items()
    )
    config_file = directory / "models.config"
    config_file.write_text("model_config_list { " + " ".join(configs) + " }")
    flags = {"file_system_poll_wait_seconds": 0.1, "model_config_file": config_file}
    return ModelServer(**{**flags, **preset(setup.preset).flags, **(setup.extra_flags or {})})  # type: ignore[arg-type]


def _stages(events: Sequence[LogEvent], setup: Setup) -> Sequence[Swap]:
    """The loads and unloads of the swaps, without the first load and the unload at the stop."""
    of_model = (event for event in events if event.get("model") == setup.reloaded)
    first_and_last = (("load", 1), ("unload", setup.swaps + 1))
    return [swap for swap in swaps_in(of_model) if (swap.title, swap.version) not in first_and_last]


def _last_unload_ns(events: Sequence[LogEvent], log_clock: LogClock) -> int | None:
    unloads = [event for event in events if event["event"] == "version_unloaded"]
    return log_clock.instant_ns(unloads[-1]) if unloads else None


def _arena_live_bytes(events: Sequence[LogEvent]) -> int | None:
    """The most bytes that an unload left in its version's arena; None if the server does
    not log them.
    """
    live = [event.get("arena_live_bytes") for event in events]
    return max((count for count in live if count is not None), default=None)

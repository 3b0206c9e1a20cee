"""Runs a server of a preset, puts load on one model, and swaps versions of one model meanwhile.

If both are the same model, this is `swap`; if they are two models, it is `neighbour`.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadtest.drive.demo_model import DemoModel
from loadtest.drive.generator import Generator
from loadtest.drive.version_series import VersionSeries, content_of
from loadtest.measure.process_memory import MemoryWatch, Resident
from loadtest.measure.processor_time import CoreShares, with_core_shares
from loadtest.measure.server_pages import ServerPages
from loadtest.measure.server_swaps import ServerSwap, wait_for_swaps
from loadtest.measure.swaps import Swap, is_unloaded, swaps_in
from loadtest.measure.timeline import LogClock, Mask, SwapSpans, swaps_of
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome, Plan
from loadtest.plan.presets import preset
from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

Say = Callable[[str], None]

# Enough for a version of 500 MB from a cold disk, at idle priority beside a load.
_SWAP_TIMEOUT_SECONDS = 120
# Left out after the first request: connections, caches and the processor's clock are not steady
# yet.
_SETTLE_SECONDS = 2
# The least time between an unload's window and the next drop.
_STEADY_SECONDS_MIN = 2
# The plan is drawn for swaps of this average length, and stopped after the last swap.
_PLANNED_SWAP_SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The parameters of one run. `loaded` and `reloaded` are model names, often the same."""

    preset: str
    loaded: str
    reloaded: str
    rate_per_second: float
    rows: int
    table_rows: int
    swaps: int
    swap_interval_seconds: float
    seed: int
    arrivals: str = "poisson"
    warm_up: str = "records"
    output_filter: Sequence[str] = ()
    extra_flags: Mapping[str, object] | None = None

    @property
    def model_names(self) -> Sequence[str]:
        return tuple(dict.fromkeys((self.loaded, self.reloaded)))

    def load(self) -> CtrLoad:
        """Returns the clients' requests."""
        return CtrLoad(
            self.loaded,
            rows=self.rows,
            table_rows=self.table_rows,
            seed=self.seed,
            output_filter=self.output_filter,
        )


@dataclass(frozen=True, kw_only=True)
class SwapRun:
    """The results of one run of a setup. Instants are of `Clock.now_ns`.

    `server_swaps` are the swaps by the server's own figures.
    """

    outcome: Outcome
    is_wrong: Mask
    spans: Sequence[SwapSpans]
    stages: Sequence[Swap]
    steady_from_ns: int
    memory: Mapping[str, Resident | None]
    arena_live_bytes: int | None
    cores: CoreShares
    server_swaps: Sequence[ServerSwap] = ()

    @property
    def is_failed(self) -> Mask:
        failed: Mask = self.outcome.codes != 0
        return failed


def repeats_of(setup: Setup, count: int) -> Sequence[Setup]:
    """Returns the setup `count` times with different seeds, which are the same for every preset."""
    return [replace(setup, seed=setup.seed + repeat) for repeat in range(count)]


def measure(setup: Setup, exports: DemoModel, clock: Clock, say: Say) -> SwapRun:
    """Starts the server, loads it, swaps `setup.swaps` times, stops everything.

    Raises MillpondError, after it has stopped everything that it started.
    """
    log_clock = LogClock(clock.wall_ns() - clock.now_ns())
    load = setup.load()
    with serving(setup, exports, clock) as running:
        server, watch = running.server, running.watch
        say(f"{setup.preset}: {server.target}, {setup.rate_per_second:g} requests/s")

        def run() -> Outcome:
            with Generator(_plan(setup, load), server.target) as generator:
                running.swap_all(generator.started_ns)
                return generator.stop()

        outcome, cores = with_core_shares(server.process_id, clock, run)
        running.note("after_last_unload")
        server_swaps = running.server_swaps(log_clock)
        watch.watch_closely()
        server.stop()
        events = server.events()
    spans = swaps_of(events, setup.reloaded, log_clock)
    _check_load_lasted(outcome, spans)
    return SwapRun(
        outcome=outcome,
        is_wrong=load.wrong(outcome, content_of),
        spans=spans,
        stages=_stages(events, setup),
        steady_from_ns=outcome.started_ns + _SETTLE_SECONDS * NS_PER_SECOND,
        memory=_memory(watch.samples(), running.notes, spans, _last_unload_ns(events, log_clock)),
        arena_live_bytes=_arena_live_bytes(events),
        cores=cores,
        server_swaps=server_swaps,
    )


@contextmanager
def serving(setup: Setup, exports: DemoModel, clock: Clock) -> Iterator["Running"]:
    """Yields a server of the setup's preset with version 1 of each model."""
    with ExitStack() as stack:
        series = {
            name: stack.enter_context(
                VersionSeries(exports, name, setup.warm_up, setup.output_filter)
            )
            for name in setup.model_names
        }
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-load-"))
        server = stack.enter_context(_server(setup, series, Path(directory)))
        watch = stack.enter_context(MemoryWatch(server.process_id, clock))
        running = Running(setup, server, watch, series, clock)
        running.serve_first_versions()
        yield running


class Running:
    """A started server and the steps of a run. `notes` are the moments whose memory is reported."""

    def __init__(
        self,
        setup: Setup,
        server: ModelServer,
        watch: MemoryWatch,
        series: Mapping[str, VersionSeries],
        clock: Clock,
    ) -> None:
        self.server = server
        self.watch = watch
        self.notes: dict[str, int] = {}
        self._setup = setup
        self._series = series
        self._clock = clock

    def note(self, what: str) -> None:
        self.notes[what] = self._clock.now_ns()

    def serve_first_versions(self) -> None:
        self.note("before")
        for name, series in self._series.items():
            series.drop(1)
            self.server.wait_until_available(name, 1, _SWAP_TIMEOUT_SECONDS)
        self.note("one_version")

    def swap_all(self, load_started_ns: int) -> None:
        """Waits for a first steady stretch, then swaps, with a steady stretch after each swap."""
        self._pause_until(load_started_ns, _SETTLE_SECONDS + self._setup.swap_interval_seconds)
        for version in range(2, self._setup.swaps + 2):
            self._swap_to(version)

    def server_swaps(self, log_clock: LogClock) -> Sequence[ServerSwap]:
        """Returns the swaps by the server's own figures, once all are over. Raises Unavailable.

        Returns () if the clients send their requests to another model.
        """
        if self._setup.loaded != self._setup.reloaded:
            return ()
        versions = range(2, self._setup.swaps + 2)
        pages = ServerPages(self.server.url)
        return wait_for_swaps(pages, self._setup.reloaded, versions, log_clock, self._clock)

    def _swap_to(self, version: int) -> None:
        series = self._series[self._setup.reloaded]
        dropped_ns = self._clock.now_ns()
        series.drop(version)
        self._wait_for_unload(version - 1)
        unloaded_ns = self._clock.now_ns()
        series.remove(version - 1)
        self._pause_until(unloaded_ns, 1 + _STEADY_SECONDS_MIN)
        self._pause_until(dropped_ns, self._setup.swap_interval_seconds)

    def _wait_for_unload(self, version: int) -> None:
        """Waits until `version` is unloaded. Raises Unavailable if its successor does not load, or
        at the timeout.
        """

        def is_end(event: LogEvent) -> bool:
            is_ours = event.get("model") == self._setup.reloaded
            has_failed = event["event"] == "load_failed" and not event["will_retry"]
            return is_ours and (has_failed or is_unloaded(event, version))

        event = self.server.wait_for_event(is_end, _SWAP_TIMEOUT_SECONDS)
        if event["event"] == "load_failed":
            raise Unavailable(f"version {event['version']} did not load: {event['reason']}")

    def _pause_until(self, from_ns: int, seconds: float) -> None:
        """Returns `seconds` after `from_ns`, or at once if that is past."""
        pause = threading.Condition()
        with pause:
            while (left_seconds := seconds - seconds_since(self._clock, from_ns)) > 0:
                self._clock.wait(pause, left_seconds)


def _server(setup: Setup, series: Mapping[str, VersionSeries], directory: Path) -> ModelServer:
    """Returns a ModelServer, not started, that looks for new versions ten times a second."""
    configs = (
        f'config {{ name: "{name}" base_path: "{one.base_path}" model_platform: "tensorflow" }}'
        for name, one in series.items()
    )
    config_file = directory / "models.config"
    config_file.write_text("model_config_list { " + " ".join(configs) + " }")
    flags = {"file_system_poll_wait_seconds": 0.1, "model_config_file": config_file}
    return ModelServer(**{**flags, **preset(setup.preset).flags, **(setup.extra_flags or {})})  # type: ignore[arg-type]


def _plan(setup: Setup, load: CtrLoad) -> Plan:
    swap_seconds = setup.swap_interval_seconds + _PLANNED_SWAP_SECONDS
    duration_seconds = _SETTLE_SECONDS + (setup.swaps + 1) * swap_seconds
    offsets_ns = ARRIVALS[setup.arrivals](setup.rate_per_second, duration_seconds, setup.seed)
    return load.plan(offsets_ns, setup.seed)


def _check_load_lasted(outcome: Outcome, spans: Sequence[SwapSpans]) -> None:
    last_due_ns = int(np.max(outcome.scheduled_ns, initial=0))
    if spans and last_due_ns < spans[-1].swap.end_ns:
        raise Unavailable(
            f"swaps took more than {_PLANNED_SWAP_SECONDS} s each, and the load ended before the "
            "last swap; raise --swap-interval"
        )


def _memory(
    samples: Sequence[Resident],
    notes: Mapping[str, int],
    spans: Sequence[SwapSpans],
    last_unload_ns: int | None,
) -> dict[str, Resident | None]:
    """Returns the resident memory at the moments that the report shows."""
    both = [
        sample
        for sample in samples
        if any(span.load.begin_ns <= sample.at_ns <= span.unload.end_ns for span in spans)
    ]
    ending = [s for s in samples if last_unload_ns is not None and s.at_ns > last_unload_ns]
    return {
        "before": _sample_at(samples, notes["before"]),
        "one_version": _sample_at(samples, notes["one_version"]),
        "two_versions": max(both, key=lambda sample: sample.total_bytes, default=None),
        "after_last_unload": _sample_at(samples, notes["after_last_unload"]),
        "all_unloaded": ending[-1] if ending else None,
    }


def _sample_at(samples: Sequence[Resident], at_ns: int) -> Resident | None:
    """Returns the first sample from `at_ns` on; None if the process ended before."""
    return next((sample for sample in samples if sample.at_ns >= at_ns), None)


def _stages(events: Sequence[LogEvent], setup: Setup) -> Sequence[Swap]:
    """Returns the loads and unloads of the swaps, without the first load and the unload at the
    stop.
    """
    of_model = (event for event in events if event.get("model") == setup.reloaded)
    first_and_last = (("load", 1), ("unload", setup.swaps + 1))
    return [swap for swap in swaps_in(of_model) if (swap.title, swap.version) not in first_and_last]


def _last_unload_ns(events: Sequence[LogEvent], log_clock: LogClock) -> int | None:
    unloads = [event for event in events if event["event"] == "version_unloaded"]
    return log_clock.instant_ns(unloads[-1]) if unloads else None


def _arena_live_bytes(events: Sequence[LogEvent]) -> int | None:
    """Returns the most bytes that an unload left in its version's arena; None if the server does
    not log them.
    """
    live = [event.get("arena_live_bytes") for event in events]
    return max((count for count in live if count is not None), default=None)

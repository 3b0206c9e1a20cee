"""Runs a server, puts load on one model, and swaps versions of one model meanwhile.

Both are the same model, or two models with `swap --neighbour`. With `swap --both` a second model
gets its new versions at the same moments.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from loadtest.drive.demo_model import DemoModel
from loadtest.drive.generator import Generator
from loadtest.drive.version_series import VersionSeries, content_of
from loadtest.measure.foreign_swap_server import foreign_swap_server
from loadtest.measure.millpond_swap_server import millpond_swap_server
from loadtest.measure.process_memory import MemoryWatch, Resident
from loadtest.measure.processor_time import CoreShares, core_shares, with_processor_time
from loadtest.measure.server_swaps import ServerSwap
from loadtest.measure.setup import Setup
from loadtest.measure.swap_server import SwapServer
from loadtest.measure.swaps import Swap
from loadtest.measure.timeline import Mask, SwapSpans
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome, Plan
from loadtest.plan.wrong_replies import WrongReply
from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.errors import Unavailable

Say = Callable[[str], None]

# Left out after the first request, because connections, caches and the processor's clock are not steady
# yet.
_SETTLE_SECONDS = 2
# The least time between an unload's window and the next drop.
_STEADY_SECONDS_MIN = 2
# The plan is drawn for swaps of this average length, and stopped after the last swap.
_PLANNED_SWAP_SECONDS = 20
_MOMENTS = ("before", "one_version", "two_versions", "after_last_unload", "all_unloaded")


@dataclass(frozen=True, kw_only=True)
class SwapRun:
    """The results of one run of a setup. Instants are of `Clock.now_ns`.

    `server_swaps` are the swaps by the server's own figures, and `unknown` are sentences on what the
    server does not report.
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
    unknown: Sequence[str] = ()
    wrong_replies: Sequence[WrongReply] = ()


def repeats_of(setup: Setup, count: int) -> Sequence[Setup]:
    """Repeats the setup `count` times with different seeds, which are the same for every preset."""
    return [replace(setup, seed=setup.seed + repeat) for repeat in range(count)]


def measure(setup: Setup, exports: DemoModel, clock: Clock, say: Say) -> SwapRun:
    """Starts the server, puts load on it, swaps `setup.swaps` times, and stops everything.

    Raises MillpondError, after it has stopped everything that it started.
    """
    load = setup.load()
    with serving(setup, exports, clock) as running:
        server = running.server
        say(f"{setup.preset}: {server.target}, {setup.rate_per_second:g} requests/s")
        outcome, cores = _loaded(setup, running, load, clock)
        running.note("after_last_unload")
        running.watch.watch_closely()
        record = server.finish()
    _check_load_lasted(outcome, record.spans)
    return SwapRun(
        outcome=outcome,
        is_wrong=load.wrong(outcome, content_of),
        wrong_replies=load.wrong_replies(outcome, content_of),
        spans=record.spans,
        stages=record.stages,
        steady_from_ns=outcome.started_ns + _SETTLE_SECONDS * NS_PER_SECOND,
        memory=_memory(running.watch.samples(), running.notes, record.spans, record.last_unload_ns),
        arena_live_bytes=record.arena_live_bytes,
        cores=cores,
        server_swaps=record.server_swaps,
        unknown=record.unknown,
    )


def _loaded(
    setup: Setup, running: "Running", load: CtrLoad, clock: Clock
) -> tuple[Outcome, CoreShares]:
    """Puts the load on the server while all versions are swapped."""
    server = running.server

    def run() -> Outcome:
        with Generator(_plan(setup, load), server.target) as generator:
            running.swap_all(generator.started_ns)
            return generator.stop()

    try:
        outcome, before, after = with_processor_time(server.process_ids(), clock, run)
    except (FileNotFoundError, ProcessLookupError):
        raise server.failure("one of its processes ended under load") from None
    return outcome, core_shares(before, after, outcome.cpu_ns)


@contextmanager
def serving(setup: Setup, exports: DemoModel, clock: Clock) -> Iterator["Running"]:
    """Yields the setup's server with version 1 of each model."""
    with ExitStack() as stack:
        series = {
            name: stack.enter_context(
                VersionSeries(
                    exports,
                    name,
                    setup.warm_up,
                    setup.output_filter,
                    has_one_graph=setup.has_one_graph,
                )
            )
            for name in setup.model_names
        }
        server: SwapServer
        if setup.command is None:
            server = stack.enter_context(millpond_swap_server(setup, series, clock))
        else:
            server = stack.enter_context(foreign_swap_server(setup, series, clock))
        watch = stack.enter_context(MemoryWatch(server.process_ids(), clock))
        running = Running(setup, server, watch, series, clock)
        running.serve_first_versions()
        yield running


class Running:
    """A started server and the steps of a run. `notes` are the moments whose memory is reported."""

    def __init__(
        self,
        setup: Setup,
        server: SwapServer,
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
        if self.server.starts_empty:
            self.note("before")
        self.server.load_first_versions(self._series)
        self.note("one_version")

    def swap_all(self, load_started_ns: int) -> None:
        """Waits for a first steady stretch, then swaps, with a steady stretch after each swap."""
        self._pause_until(load_started_ns, _SETTLE_SECONDS + self._setup.swap_interval_seconds)
        for version in range(2, self._setup.swaps + 2):
            self._swap_to(version)

    def _swap_to(self, version: int) -> None:
        series = self._series[self._setup.reloaded]
        dropped_ns = self._clock.now_ns()
        series.drop(version)
        for name in self._setup.reloaded_too:
            self._series[name].drop(version)
        self.server.wait_for_unload(version - 1, dropped_ns)
        unloaded_ns = self._clock.now_ns()
        series.remove(version - 1)
        # This swap may last longer, so only the version before its predecessor is surely unloaded.
        for name in self._setup.reloaded_too if version > 2 else ():
            self._series[name].remove(version - 2)
        self._pause_until(unloaded_ns, 1 + _STEADY_SECONDS_MIN)
        self._pause_until(dropped_ns, self._setup.swap_interval_seconds)

    def _pause_until(self, from_ns: int, seconds: float) -> None:
        """Pauses until `seconds` after `from_ns`. Does not pause if that is past."""
        pause = threading.Condition()
        with pause:
            while (left_seconds := seconds - seconds_since(self._clock, from_ns)) > 0:
                self._clock.wait(pause, left_seconds)


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
    """The resident memory at the moments that are known of the server."""
    both = [
        sample
        for sample in samples
        if any(span.load.begin_ns <= sample.at_ns <= span.unload.end_ns for span in spans)
    ]
    memory = {what: _sample_at(samples, at_ns) for what, at_ns in notes.items()}
    memory["two_versions"] = max(both, key=lambda sample: sample.total_bytes, default=None)
    if last_unload_ns is not None:
        ending = [sample for sample in samples if sample.at_ns > last_unload_ns]
        memory["all_unloaded"] = ending[-1] if ending else None
    return {moment: memory[moment] for moment in _MOMENTS if moment in memory}


def _sample_at(samples: Sequence[Resident], at_ns: int) -> Resident | None:
    """The first sample from `at_ns` on; None if the process ended before."""
    return next((sample for sample in samples if sample.at_ns >= at_ns), None)

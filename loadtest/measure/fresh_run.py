"""Runs a trainer and a server side by side: versions are written each few seconds, under load."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.drive.generator import Generator
from loadtest.drive.trained_model import MODEL_NAME
from loadtest.drive.trainer import DELTA, Export, Trainer
from loadtest.measure.freshness import FirstAnswer, first_answers
from loadtest.measure.processor_time import CoreShares, with_core_shares
from loadtest.measure.rollbacks import measure_rollbacks
from loadtest.measure.server_pages import ServerPages, read_bytes_of
from loadtest.measure.swaps import is_unloaded
from loadtest.measure.timeline import LogClock, SwapSpans, swaps_of
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.plan import Outcome, Plan
from loadtest.plan.row_load import RowLoad
from loadtest.plan.row_values import RowValues
from serving.base.clock import NS_PER_SECOND, Clock, pause, seconds_since
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

Say = Callable[[str], None]

# For a first version of 32 GB.
_LOAD_SECONDS_MAX = 600.0
# Left out after the first request, because connections, caches and the processor's clock are not steady yet.
_SETTLE_SECONDS = 2.0
# The least time between a swap's window and the next export.
_STEADY_SECONDS_MIN = 2.0
# The plan is drawn for exports and swaps of this length, and stopped after the last one.
_PLANNED_SECONDS = 60.0
# The server looks for versions so often.
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class FreshSetup:
    """The parameters of a run: `version_count` versions after the first, one each `every_seconds`."""

    values: RowValues
    version_count: int
    every_seconds: float
    rate_per_second: float
    rows: int
    arrivals: str
    seed: int

    def load(self) -> RowLoad:
        """Makes the clients' requests."""
        return RowLoad(
            MODEL_NAME,
            self.values,
            rows=self.rows,
            version_count=self.version_count + 1,
            seed=self.seed,
        )

    def plan(self, load: RowLoad) -> Plan:
        """Plans more requests than the run needs."""
        each_seconds = self.every_seconds + _PLANNED_SECONDS
        duration_seconds = _SETTLE_SECONDS + (self.version_count + 1) * each_seconds
        offsets_ns = ARRIVALS[self.arrivals](self.rate_per_second, duration_seconds, self.seed)
        return load.plan(offsets_ns, self.seed)


@dataclass(frozen=True, kw_only=True)
class FreshRun:
    """The results of a run. `versions` has the version of each request's answer, as `RowLoad.versions` has it.

    `read_bytes` and `restored_in_full` are of each version, by the server's swap records; the second is the
    reason, or "". Instants are of `Clock.now_ns`.
    """

    outcome: Outcome
    versions: npt.NDArray[np.int64]
    exports: Sequence[Export]
    answers: Sequence[FirstAnswer]
    spans: Sequence[SwapSpans]
    steady_from_ns: int
    read_bytes: Sequence[int]
    restored_in_full: Sequence[str]
    cores: CoreShares

    @property
    def wrong_count(self) -> int:
        return int((self.versions < 0).sum())


def run_fresh(setup: FreshSetup, kind: str, directory: Path, clock: Clock, say: Say) -> FreshRun:
    """Starts a trainer of `kind` and a server, and stops both at the end; versions stay in `directory`.

    Raises MillpondError.
    """
    with ExitStack() as stack:
        say(f"{kind}: writing {setup.values.table_bytes / 1e6:,.0f} MB of tables")
        trainer = stack.enter_context(Trainer(directory, kind, setup.values))
        server = stack.enter_context(_server(trainer.base_path))
        server.wait_until_available(MODEL_NAME, 1, _LOAD_SECONDS_MAX)
        say(f"{kind}: {server.target}, {setup.rate_per_second:g} requests/s")
        return _Loaded(setup, kind, trainer, server, clock, say).run()


def run_rollbacks(
    setup: FreshSetup, base_path: Path, count: int, clock: Clock
) -> Mapping[str, Sequence[float]]:
    """Measures rollbacks between the last two versions that `run_fresh` left. Raises MillpondError."""
    new = setup.version_count + 1
    aside = base_path.with_name("last")
    (base_path / str(new)).rename(aside)
    request = predict_pb2.PredictRequest.FromString(setup.load().payloads[0])
    with ExitStack() as stack:
        settings = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".toml"))
        settings.write(f"[models.{MODEL_NAME}]\nkeep_previous_seconds = 3600\n")
        settings.flush()
        server = stack.enter_context(_server(base_path, model_settings_file=settings.name))
        server.wait_until_available(MODEL_NAME, new - 1, _LOAD_SECONDS_MAX)
        aside.rename(base_path / str(new))
        server.wait_until_available(MODEL_NAME, new, _LOAD_SECONDS_MAX)
        return measure_rollbacks(server.admin_target, request, count, clock, old=new - 1, new=new)


def _server(base_path: Path, **flags: object) -> ModelServer:
    return ModelServer(
        model_name=MODEL_NAME,
        base_path=base_path,
        file_system_poll_wait_seconds=_POLL_SECONDS,
        start_timeout_seconds=_LOAD_SECONDS_MAX,
        **flags,  # type: ignore[arg-type]
    )


class _Loaded:
    """The part of a run in which the server is under load."""

    def __init__(
        self,
        setup: FreshSetup,
        kind: str,
        trainer: Trainer,
        server: ModelServer,
        clock: Clock,
        say: Say,
    ) -> None:
        self._setup = setup
        self._kind = kind
        self._trainer = trainer
        self._server = server
        self._clock = clock
        self._say = say
        self._exports: list[Export] = []

    def run(self) -> FreshRun:
        """Writes all versions under load. Raises MillpondError."""
        setup = self._setup
        load = setup.load()
        outcome, cores = with_core_shares(
            self._server.process_id, self._clock, lambda: self._put_load(setup.plan(load))
        )
        versions = load.versions(outcome)
        log_clock = LogClock(self._clock.wall_ns() - self._clock.now_ns())
        spans = swaps_of(self._server.events(), MODEL_NAME, log_clock)
        if spans[-1].swap.end_ns > int(outcome.scheduled_ns[-1]):
            raise Unavailable("the load ended before the last swap; raise --every")
        swaps = self._swaps()
        return FreshRun(
            outcome=outcome,
            versions=versions,
            exports=self._exports,
            answers=first_answers(self._exports, outcome, versions),
            spans=spans,
            steady_from_ns=outcome.started_ns + round(_SETTLE_SECONDS * NS_PER_SECOND),
            read_bytes=[read_bytes_of(swap) for swap in swaps],
            restored_in_full=[swap["delta_restored_in_full"] for swap in swaps],
            cores=cores,
        )

    def _swaps(self) -> Sequence[Mapping[str, Any]]:
        """The server's record of the swap to each export."""
        swaps = ServerPages(self._server.url).swaps(MODEL_NAME)
        published = {swap["version"]: swap for swap in swaps if swap["published_at"]}
        return [published[export.version] for export in self._exports]

    def _put_load(self, plan: Plan) -> Outcome:
        with Generator(plan, self._server.target) as generator:
            pause(self._clock, _SETTLE_SECONDS + self._setup.every_seconds)
            for version in range(2, self._setup.version_count + 2):
                self._swap_to(version)
            return generator.stop()

    def _swap_to(self, version: int) -> None:
        begin_ns = self._clock.now_ns()
        export = self._trainer.export(version)
        self._exports.append(export)
        self._wait_for_swap(version)
        unloaded_ns = self._clock.now_ns()
        self._say(
            f"{self._kind}: version {version}, {export.own_bytes / 1e6:,.1f} MB, exported in "
            f"{(export.renamed_ns - export.started_ns) / NS_PER_SECOND:.2f} s"
        )
        self._pause_until(unloaded_ns, 1 + _STEADY_SECONDS_MIN)
        self._pause_until(begin_ns, self._setup.every_seconds)
        self._remove(version - 2)

    def _wait_for_swap(self, version: int) -> None:
        """Waits until `version` serves alone. Raises Unavailable if it does not load."""

        def is_over(event: LogEvent) -> bool:
            has_failed = event["event"] == "load_failed" and not event["will_retry"]
            return has_failed or is_unloaded(event, version - 1)

        event = self._server.wait_for_event(is_over, _LOAD_SECONDS_MAX)
        if event["event"] == "load_failed":
            raise Unavailable(f"version {event['version']} did not load: {event['reason']}")

    def _remove(self, version: int) -> None:
        """Removes a version that is not served. The base of deltas stays, and the version before for a rollback."""
        first = 2 if self._kind == DELTA else 1
        if version >= first:
            shutil.rmtree(self._trainer.base_path / str(version))

    def _pause_until(self, from_ns: int, seconds: float) -> None:
        left_seconds = seconds - seconds_since(self._clock, from_ns)
        if left_seconds > 0:
            pause(self._clock, left_seconds)

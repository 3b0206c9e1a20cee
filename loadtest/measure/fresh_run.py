"""Runs a trainer and a server side by side: versions are written each few seconds, under load."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.drive.generator import Generator
from loadtest.drive.trained_model import DELTA, MODEL_NAME
from loadtest.drive.trainer import Export, Trainer
from loadtest.measure.freshness import FirstAnswer, first_answers
from loadtest.measure.process_memory import resident
from loadtest.measure.processor_time import CoreShares, with_core_shares
from loadtest.measure.rollbacks import measure_rollbacks
from loadtest.measure.server_pages import ServerPages
from loadtest.measure.swaps import is_unloaded
from loadtest.measure.timeline import LogClock, SwapSpans, swaps_of
from loadtest.measure.version_loads import VersionLoad, load_of
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.plan import Outcome, Plan
from loadtest.plan.row_load import RowLoad
from loadtest.plan.row_values import RowValues
from serving.base.clock import NS_PER_SECOND, Clock, pause, seconds_since
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2
from serving.client import Client
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

Say = Callable[[str], None]

# For a first version of 32 GB on a slow disk.
_LOAD_SECONDS_MAX = 600.0
# Left out after the first request, because connections, caches and the processor's clock are not steady yet.
_SETTLE_SECONDS = 2.0
# The least time between a swap's window and the next export.
_STEADY_SECONDS_MIN = 2.0
# The plan is drawn for exports and swaps of this length, and stopped after the last one.
_PLANNED_SECONDS = 60.0
# The server looks for versions and settings so often.
_POLL_SECONDS = 0.1
_SETTINGS_SECONDS_MAX = 30.0


@dataclass(frozen=True, kw_only=True)
class FreshSetup:
    """The parameters of a run: `version_count` versions after the first, one each `every_seconds`.

    The first export begins `rest_seconds` after the first requests. `rollback_count` rollbacks follow a run of
    deltas. `templates` are for a trainer without TensorFlow, and `server_flags` further flags of the server, which
    runs on `server_cores` ("" for all), as taskset has them.
    """

    values: RowValues
    version_count: int
    every_seconds: float
    rest_seconds: float
    rate_per_second: float
    rows: int
    arrivals: str
    seed: int
    rollback_count: int = 0
    templates: Path | None = None
    server_cores: str = ""
    server_flags: Mapping[str, str] = field(default_factory=dict)

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
        duration_seconds = _SETTLE_SECONDS + self.rest_seconds + self.version_count * each_seconds
        offsets_ns = ARRIVALS[self.arrivals](self.rate_per_second, duration_seconds, self.seed)
        return load.plan(offsets_ns, self.seed)


@dataclass(frozen=True, kw_only=True)
class FreshRun:
    """The results of a run. `versions` has the version of each request's answer, as `RowLoad.versions` has it.

    `loads` are those of the exports, and `first_load` that of the version before them. `resident_bytes` are the
    server's before the first export, and after each swap. `rollbacks` are as `measure_rollbacks` has them. Instants
    are of `Clock.now_ns`.
    """

    outcome: Outcome
    versions: npt.NDArray[np.int64]
    exports: Sequence[Export]
    answers: Sequence[FirstAnswer]
    spans: Sequence[SwapSpans]
    steady_from_ns: int
    first_load: VersionLoad
    loads: Sequence[VersionLoad]
    resident_bytes: Sequence[int]
    cores: CoreShares
    rollbacks: Mapping[str, Sequence[float]]

    @property
    def wrong_count(self) -> int:
        return int((self.versions < 0).sum())


def run_fresh(setup: FreshSetup, kind: str, directory: Path, clock: Clock, say: Say) -> FreshRun:
    """Starts a trainer of `kind` and a server, and stops both at the end; files stay in `directory`.

    Raises MillpondError.
    """
    with ExitStack() as stack:
        say(f"{kind}: writing {setup.values.table_bytes / 1e6:,.0f} MB of tables")
        begin_ns = clock.now_ns()
        trainer = stack.enter_context(Trainer(directory, kind, setup.values, setup.templates))
        written_seconds = seconds_since(clock, begin_ns)
        settings = directory / "settings.toml"
        settings.write_text("")
        server = stack.enter_context(_server(setup, trainer.base_path, settings))
        server.wait_until_available(MODEL_NAME, 1, _LOAD_SECONDS_MAX)
        say(
            f"{kind}: written in {written_seconds:.1f} s, loaded in "
            f"{seconds_since(clock, begin_ns) - written_seconds:.1f} s; {server.target}, "
            f"{setup.rate_per_second:g} requests/s"
        )
        return _Loaded(setup, kind, trainer, server, settings, clock, say).run()


def _server(setup: FreshSetup, base_path: Path, settings: Path) -> ModelServer:
    pinned = ["taskset", "-c", setup.server_cores] if setup.server_cores else []
    flags: dict[str, Any] = {
        "file_system_poll_wait_seconds": _POLL_SECONDS,
        "model_config_file_poll_wait_seconds": _POLL_SECONDS,
        **setup.server_flags,
    }
    return ModelServer(
        model_name=MODEL_NAME,
        base_path=base_path,
        command=[*pinned, sys.executable, "-m", "serving"],
        start_timeout_seconds=_LOAD_SECONDS_MAX,
        model_settings_file=settings,
        **flags,
    )


class _Loaded:
    """The part of a run in which the server is under load, and the rollbacks after it."""

    def __init__(
        self,
        setup: FreshSetup,
        kind: str,
        trainer: Trainer,
        server: ModelServer,
        settings: Path,
        clock: Clock,
        say: Say,
    ) -> None:
        self._setup = setup
        self._kind = kind
        self._trainer = trainer
        self._server = server
        self._settings = settings
        self._clock = clock
        self._say = say
        self._exports: list[Export] = []
        self._loads: list[VersionLoad] = []
        self._resident_bytes: list[int] = []

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
        first_load, *loads = self._loads
        return FreshRun(
            outcome=outcome,
            versions=versions,
            exports=self._exports,
            answers=first_answers(self._exports, outcome, versions),
            spans=spans,
            steady_from_ns=outcome.started_ns + round(_SETTLE_SECONDS * NS_PER_SECOND),
            first_load=first_load,
            loads=loads,
            resident_bytes=self._resident_bytes,
            cores=cores,
            rollbacks=self._roll_back(load) if self._kind == DELTA else {},
        )

    def _note_load(self, version: int) -> VersionLoad:
        """Keeps what the load to `version` was, and the server's memory after it."""
        swaps = ServerPages(self._server.url).swaps(MODEL_NAME)
        (swap,) = (swap for swap in swaps if swap["version"] == version and swap["published_at"])
        self._loads.append(load_of(swap))
        memory = resident(self._server.process_id, self._clock)
        self._resident_bytes.append(0 if memory is None else memory.anonymous_bytes)
        return self._loads[-1]

    def _roll_back(self, load: RowLoad) -> Mapping[str, Sequence[float]]:
        """Measures rollbacks from one more version to the last one, which is kept for that."""
        count = self._setup.rollback_count
        if not count:
            return {}
        self._settings.write_text(f"[models.{MODEL_NAME}]\nkeep_previous_seconds = 3600\n")
        self._wait_for_settings()
        old, new = self._exports[-1].version, self._exports[-1].version + 1
        self._trainer.export(new)
        self._server.wait_until_available(MODEL_NAME, new, _LOAD_SECONDS_MAX)
        self._say(f"{count} rollbacks")
        request = predict_pb2.PredictRequest.FromString(load.payloads[0])
        target = self._server.admin_target
        return measure_rollbacks(target, request, count, self._clock, old=old, new=new)

    def _wait_for_settings(self) -> None:
        begin_ns = self._clock.now_ns()
        with Client(self._server.admin_target) as client:
            while not client.config()[0][0].settings.keep_previous_seconds:
                if seconds_since(self._clock, begin_ns) > _SETTINGS_SECONDS_MAX:
                    raise Unavailable("the server has not taken the file of its settings")
                pause(self._clock, _POLL_SECONDS)

    def _put_load(self, plan: Plan) -> Outcome:
        with Generator(plan, self._server.target) as generator:
            pause(self._clock, _SETTLE_SECONDS + self._setup.rest_seconds)
            self._note_load(1)
            for version in range(2, self._setup.version_count + 2):
                self._swap_to(version)
            return generator.stop()

    def _swap_to(self, version: int) -> None:
        begin_ns = self._clock.now_ns()
        export = self._trainer.export(version)
        self._exports.append(export)
        self._wait_for_swap(version)
        unloaded_ns = self._clock.now_ns()
        load = self._note_load(version)
        stages = (f"{name} {seconds:.3f}" for name, seconds in load.stage_seconds.items())
        self._say(
            f"{self._kind}: version {version}, {export.own_bytes / 1e6:,.1f} MB, exported in "
            f"{(export.renamed_ns - export.started_ns) / NS_PER_SECOND:.2f} s, loaded in "
            f"{load.load_seconds:.3f} s ({', '.join(stages)}), {load.restored_bytes / 1e6:,.1f} MB read, "
            f"{load.copied_bytes / 1e6:,.1f} copied; {self._resident_bytes[-1] / 1e6:,.0f} MB resident"
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

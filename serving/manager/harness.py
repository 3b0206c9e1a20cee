"""LoaderHarness: guards the state machine of one version."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Cancelled, InternalError, MillpondError
from serving.core.cancellation import Cancellation
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LOADING,
    START,
    TRANSITIONS,
    UNLOADING,
    AspiredVersion,
    GateVerdict,
    Health,
    ServableId,
    ServableSnapshot,
    ServableState,
    ServableStatus,
    Stage,
)
from serving.data_plane.servables import Servable


class IllegalMove(InternalError):
    """A move that TRANSITIONS does not have. Nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The number of retries of a failed load, and the waits before them.

    The first wait is `first_interval_ns`, and each further wait is twice as long, up to
    `interval_ns`. Each wait is shortened by up to half, drawn from `random` (0 to 1), so that servers
    whose shared disk failed do not read from it again at the same moment.
    """

    retry_count_max: int
    interval_ns: int
    # None: always `interval_ns`.
    first_interval_ns: int | None = None
    random: Callable[[], float] = lambda: 0.0

    def delay_ns(self, error: MillpondError, failed_count: int) -> int | None:
        """Returns the nanoseconds to wait after the `failed_count`-th failure in a row; None: give up.

        Gives up at once if the error is permanent, because the same files would fail again.
        """
        if not error.is_transient or failed_count > self.retry_count_max:
            return None
        longest_ns = max(0, self.interval_ns)
        if self.first_interval_ns is not None:
            # The bound keeps the shifted number small after thousands of failures.
            doublings = min(failed_count - 1, 62)
            longest_ns = min(longest_ns, self.first_interval_ns << doublings)
        return round(longest_ns * (1 - self.random() / 2))


class LoaderHarness:
    """One life of one version, from START to END.

    A harness does no work. The control thread starts a load or an unload on another thread, and
    reports its progress and its outcome to the harness. The harness keeps the status of the version,
    allows only the moves of TRANSITIONS, and passes the status to `record` at every change.

    Threads: all methods run on the control thread, so the harness needs no lock. Only `cancellation`,
    `is_cancelled` and the immutable `id` may be used by any thread.

    Retry, cancel and discard. Three decisions can meet in one life:

    - Retry. A failed load leaves the version LOADING, with `retry_at_ns` set. No thread works on the
      version until then. `begin_retry` clears the time and starts the next attempt. So LOADING with
      `retry_at_ns` is waiting, and LOADING without it is a load under way. `retry_now` only moves the
      time of a waiting retry, and does nothing to a load under way.
    - Cancel. The version is omitted from the aspired list before it was AVAILABLE. If no load is
      under way (START, or waiting for a retry), the life ends at once. Otherwise only the loader
      thread can free what it has loaded. `cancel` then sets `cancellation`, which stops the load at
      its next stage, and the life ends with the outcome of the load: `load_failed` ends it without a
      retry, whatever the error. `loaded` wins over a cancel that arrived too late: the version is
      published already, and so it is unloaded by the policy like any other version.
    - Discard. `is_discarded` is True once the life ends by decision: it was cancelled, or its unload
      has begun. The version may be aspired again before that end. A harness never returns to an
      earlier state. So the manager waits for END, drops the harness and makes a new one, which loads
      the files again. A life that ended by a failure is not discarded: its harness stays in END with
      the error. The version is loaded again only if it is found with other files, omitted and aspired
      again, or if settings that it failed under change.

    Invariants: at most one thread works on a version at a time; every life reaches END; and nothing
    follows END. A cancel can be undone only by `loaded`.
    """

    def __init__(
        self,
        servable_id: ServableId,
        aspired: AspiredVersion,
        *,
        retry: RetryPolicy,
        clock: Clock,
        record: Callable[[ServableStatus], None],
    ) -> None:
        self.aspired = aspired
        # The time when this life began (monotonic).
        self.began_at_ns = clock.now_ns()
        self._retry = retry
        self._clock = clock
        self._record = record
        self._servable: Servable | None = None
        self.cancellation = Cancellation()
        self._is_leaving = False
        self._retry_at_ns: int | None = None
        self._status = ServableStatus(
            id=servable_id,
            state=START,
            state_changed_wall_ns=clock.wall_ns(),
            detected_at_ns=aspired.detected_at_ns,
            found_at_ns=aspired.found_at_ns,
        )
        record(self._status)

    @property
    def id(self) -> ServableId:
        return self._status.id

    @property
    def log_fields(self) -> Mapping[str, str | int]:
        """The fields that name the version in a log line."""
        return {"model": self.id.name, "version": self.id.version}

    @property
    def status(self) -> ServableStatus:
        return self._status

    @property
    def is_cancelled(self) -> bool:
        """True if the load should stop at its next stage. Any thread."""
        return self.cancellation.is_cancelled

    @property
    def is_discarded(self) -> bool:
        """True if this life was cancelled or its unload has begun.

        If the version is aspired again, it needs a new harness.
        """
        return self.is_cancelled or self._is_leaving

    @property
    def retry_at_ns(self) -> int | None:
        """The time of the next retry (monotonic); None if no retry is waiting."""
        return self._retry_at_ns

    @property
    def servable(self) -> Servable:
        """The loaded version. Raises InternalError before AVAILABLE and after END."""
        if self._servable is None:
            raise InternalError(f"{self.id} is {self._status.state.name} and has no servable")
        return self._servable

    @property
    def is_ready(self) -> bool:
        return self._status.state is AVAILABLE

    def snapshot(
        self,
        *,
        is_aspired: bool,
        is_kept: bool = False,
        is_blocked: bool = False,
        is_given_up: bool = False,
        is_pressing: bool = False,
    ) -> ServableSnapshot:
        """Returns the version as a policy sees it."""
        return ServableSnapshot(
            id=self.id,
            state=self._status.state,
            is_aspired=is_aspired,
            is_kept=is_kept,
            is_blocked=is_blocked,
            is_given_up=is_given_up,
            is_pressing=is_pressing,
        )

    def begin_load(self) -> None:
        """Moves from START to LOADING."""
        self._move(LOADING)

    def begin_retry(self) -> None:
        """Notes that the next attempt of a failed load starts. The version stays LOADING."""
        self._retry_at_ns = None

    def retry_now(self) -> None:
        """Makes a waiting retry due now, because its cause may be gone. Otherwise does nothing."""
        if self._retry_at_ns is not None:
            self._retry_at_ns = self._clock.now_ns()

    def stage_began(self, stage: Stage) -> None:
        """Notes that the load or unload has entered `stage`."""
        self._change(replace(self._status, stage=stage))

    def stage_ended(self, stage: Stage, seconds: float, ended_at_ns: int) -> None:
        """Notes that `stage` took `seconds`, until `ended_at_ns` (monotonic).

        The figures of a retry replace the figures of the attempt before.
        """
        old = self._status
        stage_seconds = {**old.stage_seconds, stage: seconds}
        ended = {**old.stage_ended_at_ns, stage: ended_at_ns}
        began_at_ns = ended_at_ns - round(seconds * NS_PER_SECOND)
        self._change(
            replace(
                old,
                stage=None,
                stage_seconds=stage_seconds,
                stage_ended_at_ns=ended,
                work_began_at_ns=old.work_began_at_ns or began_at_ns,
            )
        )

    def measured(self, figures: Mapping[str, float]) -> None:
        """Adds figures of the load or unload, by name with unit. A retry replaces earlier figures."""
        self._change(replace(self._status, figures={**self._status.figures, **figures}))

    def gate_ended(self, verdict: GateVerdict) -> None:
        """Adds the verdict of a gate. It replaces an earlier verdict of the same gate."""
        others = tuple(item for item in self._status.verdicts if item.gate != verdict.gate)
        self._change(replace(self._status, verdicts=(*others, verdict)))

    def loaded(self, servable: Servable) -> None:
        """Moves from LOADING to AVAILABLE.

        Resets a late cancel, because `servable` is published already. The policy unloads it if it is
        not aspired.
        """
        self._move(AVAILABLE, health=HEALTHY)
        self._servable = servable
        self.cancellation.reset()

    def load_failed(self, error: MillpondError, *, is_retried: bool = False) -> None:
        """Sets the time of a retry, or moves to END if no retry follows.

        `is_retried` allows a retry beyond the retry policy, because memory for it is being freed.
        """
        if self.is_cancelled:
            self._move(END, health=Health.of(_cancelled(self.id, error)))
            return
        failed_count = self._status.failed_load_count + 1
        delay_ns = self._retry.delay_ns(error, failed_count)
        if delay_ns is None and is_retried:
            delay_ns = max(0, self._retry.interval_ns)
        if delay_ns is None:
            self._move(END, health=Health.of(error), failed_load_count=failed_count)
            return
        health = Health(error.code, _retry_message(error, failed_count, self._retry, delay_ns))
        self._change(replace(self._status, health=health, failed_load_count=failed_count))
        self._retry_at_ns = self._clock.now_ns() + delay_ns

    def cancel(self) -> None:
        """Ends a life that is not AVAILABLE yet.

        Moves to END at once if no load is under way. Otherwise stops the load, and `load_failed` or
        `loaded` follows.
        """
        is_idle = self._status.state is START or self._retry_at_ns is not None
        if is_idle:
            self._move(END, health=Health.of(_cancelled(self.id)))
        self.cancellation.cancel()
        self._retry_at_ns = None

    def begin_unload(self) -> None:
        """Moves from AVAILABLE to UNLOADING. Call it before the version is retired from the serving map."""
        self._move(UNLOADING)
        self._is_leaving = True

    def unloaded(self, error: MillpondError | None = None) -> None:
        """Moves from UNLOADING to END. If `error` is given, some memory was possibly not freed."""
        self._move(END, health=Health.of(error) if error else HEALTHY)
        self._servable = None

    def _move(self, state: ServableState, **changes: Any) -> None:
        """Changes the state; no other method does. Raises IllegalMove with nothing changed."""
        old = self._status.state
        if state not in TRANSITIONS[old]:
            raise IllegalMove(f"{self.id}: {old.name} to {state.name} is not in TRANSITIONS")
        wall_ns = self._clock.wall_ns()
        changes = {"state": state, "stage": None, "state_changed_wall_ns": wall_ns, **changes}
        self._change(replace(self._status, **changes))

    def _change(self, status: ServableStatus) -> None:
        self._status = status
        self._record(status)


def _cancelled(servable_id: ServableId, error: MillpondError | None = None) -> Cancelled:
    if error is None or isinstance(error, Cancelled):
        return Cancelled(f"{servable_id}: cancelled before it was loaded; it is no longer aspired")
    return Cancelled(
        f"{servable_id}: no longer aspired; its last load attempt failed: {error.message}"
    )


def _retry_message(
    error: MillpondError, failed_count: int, retry: RetryPolicy, delay_ns: int
) -> str:
    return (
        f"load attempt {failed_count} of {retry.retry_count_max + 1} failed, "
        f"next attempt in {delay_ns / NS_PER_SECOND:g} s: {error.message}"
    )

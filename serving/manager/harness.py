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
    """A move that TRANSITIONS does not have; nothing changed."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a failed load is tried again.

    The first time after `first_interval_ns`, then after twice as long each time, up to
    `interval_ns`. Each wait is shortened by up to half, drawn from `random` (0 to 1): servers whose
    disk went away together should not come back to it together.
    """

    retry_count_max: int
    interval_ns: int
    # None: always `interval_ns`.
    first_interval_ns: int | None = None
    random: Callable[[], float] = lambda: 0.0

    def delay_ns(self, error: MillpondError, failed_count: int) -> int | None:
        """Nanoseconds to wait after the `failed_count`-th failure in a row; None: give up.

        Gives up at once where the error is permanent: the same files would fail again.
        """
        if not error.is_transient or failed_count > self.retry_count_max:
            return None
        longest_ns = max(0, self.interval_ns)
        if self.first_interval_ns is not None:
            # Bounded before it is shifted: a count of thousands must not make a number of as many bits.
            doublings = min(failed_count - 1, 62)
            longest_ns = min(longest_ns, self.first_interval_ns << doublings)
        return round(longest_ns * (1 - self.random() / 2))


class LoaderHarness:
    """One life of one version, from START to END.

    Confined to the manager's control thread: it needs no lock, and each move is seen by `record`
    before the next can happen. One exception: `cancellation` is for any thread. It does
    no work itself; who does it tells it here how it went. `record` gets a status at every change.
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
        # When it was first aspired (monotonic).
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
        """The version whose life this is."""
        return self._status.id

    @property
    def log_fields(self) -> Mapping[str, str | int]:
        """The fields that name the version in a log line."""
        return {"model": self.id.name, "version": self.id.version}

    @property
    def status(self) -> ServableStatus:
        """All there is to say about it, as a value."""
        return self._status

    @property
    def is_cancelled(self) -> bool:
        """Whether the load should stop at the next occasion. Any thread."""
        return self.cancellation.is_cancelled

    @property
    def is_discarded(self) -> bool:
        """Whether this life is over or ending, however it goes: aspired again, it takes a new one."""
        return self.is_cancelled or self._is_leaving

    @property
    def retry_at_ns(self) -> int | None:
        """When a load that failed is due again (monotonic); None while one runs or none will."""
        return self._retry_at_ns

    @property
    def servable(self) -> Servable:
        """The loaded version; from AVAILABLE to END."""
        if self._servable is None:
            raise InternalError(f"{self.id} is {self._status.state.name} and has no servable")
        return self._servable

    @property
    def is_ready(self) -> bool:
        """Whether it is AVAILABLE."""
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
        """START to LOADING."""
        self._move(LOADING)

    def begin_retry(self) -> None:
        """A load that failed is being tried again; stays LOADING."""
        self._retry_at_ns = None

    def retry_now(self) -> None:
        """What a failed load waits for has happened: its retry is due."""
        if self._retry_at_ns is not None:
            self._retry_at_ns = self._clock.now_ns()

    def stage_began(self, stage: Stage) -> None:
        """The load or unload is in `stage` now."""
        self._change(replace(self._status, stage=stage))

    def stage_ended(self, stage: Stage, seconds: float, ended_at_ns: int) -> None:
        """`stage` took `seconds`, until `ended_at_ns` (monotonic); a retry's figures replace those of
        the attempt before.
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
        """What a load or unload measured of itself, by name with unit; a retry's replace earlier ones."""
        self._change(replace(self._status, figures={**self._status.figures, **figures}))

    def gate_ended(self, verdict: GateVerdict) -> None:
        """What a gate found; a retry's verdict replaces that of the attempt before."""
        others = tuple(item for item in self._status.verdicts if item.gate != verdict.gate)
        self._change(replace(self._status, verdicts=(*others, verdict)))

    def loaded(self, servable: Servable) -> None:
        """LOADING to AVAILABLE. `servable` is published already, so a late `cancel` is forgotten:
        whether it stays is the policy's to say.
        """
        self._move(AVAILABLE, health=HEALTHY)
        self._servable = servable
        self.cancellation.reset()

    def load_failed(self, error: MillpondError, *, is_retried: bool = False) -> None:
        """Stays LOADING with a retry due, or goes to END where there will be none.

        `is_retried`: once more, whatever the policy says, because what was in the way is going.
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
        """The version is omitted before it was AVAILABLE.

        To END at once where nothing runs for it; else the load under way is told to stop, and
        `load_failed` or `loaded` follows.
        """
        is_idle = self._status.state is START or self._retry_at_ns is not None
        if is_idle:
            self._move(END, health=Health.of(_cancelled(self.id)))
        self.cancellation.cancel()
        self._retry_at_ns = None

    def begin_unload(self) -> None:
        """AVAILABLE to UNLOADING. Before the version is retired from the serving map."""
        self._move(UNLOADING)
        self._is_leaving = True

    def unloaded(self, error: MillpondError | None = None) -> None:
        """UNLOADING to END; `error` where something went wrong and memory may not be freed."""
        self._move(END, health=Health.of(error) if error else HEALTHY)
        self._servable = None

    def _move(self, state: ServableState, **changes: Any) -> None:
        """The one place where a state changes. IllegalMove, with nothing changed."""
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
        return Cancelled(f"{servable_id}: no longer aspired before it was loaded")
    return Cancelled(f"{servable_id}: no longer aspired; its load had failed: {error.message}")


def _retry_message(
    error: MillpondError, failed_count: int, retry: RetryPolicy, delay_ns: int
) -> str:
    return (
        f"load {failed_count} of {retry.retry_count_max + 1} failed, "
        f"next in {delay_ns / NS_PER_SECOND:g} s: {error.message}"
    )

"""LoaderHarness: guards the state machine of one version. A value without a thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serving.base.clock import NS_PER_SECOND, Now
from serving.base.errors import Cancelled, InternalError, MillpondError
from serving.core.model_settings import ModelSettings
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
    ServableState,
    ServableStatus,
    Stage,
)
from serving.data_plane.servables import Servable

NO_LONGER_ASPIRED = "it is no longer aspired"
"""The reason of most cancelled lives, and of canaries that end."""


class IllegalMove(InternalError):
    """A move that TRANSITIONS does not have, or that the life's state forbids. Nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The number of retries of a failed load, and the waits before them.

    The first wait is `first_interval_ns`, and each further wait is twice as long, up to
    `interval_ns`. Each wait is shortened by up to half, by a number that is drawn (0 to 1), so that servers
    whose shared disk failed do not read from it again at the same moment.
    """

    retry_count_max: int = 0
    interval_ns: int = 0
    # None: always `interval_ns`.
    first_interval_ns: int | None = None

    def delay_ns(self, error: MillpondError, failed_count: int, drawn: float = 0.0) -> int | None:
        """The nanoseconds to wait after the `failed_count`-th failure in a row; None: give up.

        Gives up at once if the error is permanent, because the same files would fail again.
        """
        if not error.is_transient or failed_count > self.retry_count_max:
            return None
        longest_ns = max(0, self.interval_ns)
        if self.first_interval_ns is not None:
            # The bound keeps the shifted number small after thousands of failures.
            doublings = min(failed_count - 1, 62)
            longest_ns = min(longest_ns, self.first_interval_ns << doublings)
        return round(longest_ns * (1 - drawn / 2))


@dataclass(frozen=True, kw_only=True)
class LoaderHarness:
    """One life of one version, from START to END.

    A harness does no work and never changes. Each method returns the harness that follows from an
    event or a decision. It allows only the moves of TRANSITIONS, and an attempt of a load begins or fails only
    in LOADING. A thread of an executor loads or unloads the version meanwhile.

    Retry, cancel and discard. Three decisions can meet in one life:

    - Retry. A failed load leaves the version LOADING, with `retry_at_ns` set. No thread works on the
      version until then. `begin_retry` clears the time and starts the next attempt. So LOADING with
      `retry_at_ns` is waiting, and LOADING without it is a load under way. `retry_now` only moves the
      time of a waiting retry, and does nothing to a load under way.
    - Cancel. The version is omitted from the aspired list before it was AVAILABLE. If no load is
      under way (START, or waiting for a retry), the life ends at once. Otherwise only the loader
      thread can free what it has loaded. The load is told to stop at its next stage, and the life ends
      with its outcome: `load_failed` ends it without a retry, whatever the error. A load that ends all
      the same is freed, and never serves.
    - Discard. `is_discarded` is True once the life ends by decision: it was cancelled, or its unload
      has begun. The version may be aspired again before that end. A harness never returns to an
      earlier state. So the stream waits for END, drops the harness and makes a new one, which loads
      the files again. A life that ended by a failure is not discarded: its harness stays in END with
      the error. The version is loaded again only if it is found with other files, omitted and aspired
      again, or if settings that it failed under change.

    Invariants: at most one thread works on a version at a time; every life reaches END; nothing follows
    END; and no version becomes AVAILABLE after a cancel.
    """

    status: ServableStatus
    aspired: AspiredVersion
    # The time when this life began (monotonic).
    began_at_ns: int
    # The versions that were first aspired together with this one.
    aspired_with: frozenset[int] = frozenset()
    # The settings that the last attempt of the load began with; None before the first one.
    begun_with: ModelSettings | None = None
    # The time of the next retry (monotonic); None if no retry is waiting.
    retry_at_ns: int | None = None
    # Why the life was cancelled; "" if it was not.
    cancelled_because: str = ""
    is_leaving: bool = False
    # True if it serves, and was found again with other files than it has loaded.
    has_other_files: bool = False
    # True if it is unloaded so that a load of its model has its memory, which no other model may have then.
    makes_room: bool = False
    # The loaded version while it is AVAILABLE or UNLOADING. No decision reads it.
    held: Servable | None = field(default=None, compare=False, repr=False)

    @classmethod
    def begin(
        cls,
        servable_id: ServableId,
        aspired: AspiredVersion,
        now: Now,
        aspired_with: frozenset[int] = frozenset(),
    ) -> "LoaderHarness":
        """Begins a life."""
        status = ServableStatus(
            id=servable_id,
            state=START,
            state_changed_ns=now.ns,
            state_changed_wall_ns=now.wall_ns,
            detected_at_ns=aspired.detected_at_ns,
            found_at_ns=aspired.found_at_ns,
        )
        return cls(status=status, aspired=aspired, began_at_ns=now.ns, aspired_with=aspired_with)

    @property
    def id(self) -> ServableId:
        return self.status.id

    @property
    def state(self) -> ServableState:
        return self.status.state

    @property
    def is_cancelled(self) -> bool:
        """True if the life was cancelled: a load under way should stop at its next stage."""
        return bool(self.cancelled_because)

    @property
    def is_discarded(self) -> bool:
        """True if this life was cancelled or its unload has begun.

        If the version is aspired again, it needs a new harness.
        """
        return self.is_cancelled or self.is_leaving

    @property
    def servable(self) -> Servable:
        """The loaded version. Raises InternalError before AVAILABLE and after END."""
        if self.held is None:
            raise InternalError(f"{self.id} is {self.state.name} and has no servable")
        return self.held

    @property
    def is_ready(self) -> bool:
        return self.status.state is AVAILABLE

    @property
    def is_load_under_way(self) -> bool:
        """True if a thread of an executor loads this version."""
        return self.status.state is LOADING and self.retry_at_ns is None

    def begin_load(self, settings: ModelSettings, now: Now) -> "LoaderHarness":
        """Moves from START to LOADING. The load goes by these settings."""
        return replace(self._move(LOADING, now), begun_with=settings)

    def begin_retry(self, settings: ModelSettings) -> "LoaderHarness":
        """Starts the next attempt of a failed load, by these settings.

        The version stays LOADING, as before. Raises IllegalMove in any other state.
        """
        self._require(LOADING, to="begin a retry")
        return replace(self, retry_at_ns=None, begun_with=settings)

    def retry_now(self, now: Now) -> "LoaderHarness":
        """Makes a waiting retry due now, because its cause may be gone. Otherwise changes nothing."""
        return self if self.retry_at_ns is None else replace(self, retry_at_ns=now.ns)

    def stage_began(self, stage: Stage) -> "LoaderHarness":
        """The load or unload has entered `stage`."""
        return replace(self, status=replace(self.status, stage=stage))

    def stage_ended(self, stage: Stage, seconds: float, ended_at_ns: int) -> "LoaderHarness":
        """`stage` has ended at `ended_at_ns` (monotonic), after `seconds`.

        The figures of a retry replace the figures of the attempt before.
        """
        old = self.status
        began_at_ns = ended_at_ns - round(seconds * NS_PER_SECOND)
        status = replace(
            old,
            stage=None,
            stage_seconds={**old.stage_seconds, stage: seconds},
            stage_ended_at_ns={**old.stage_ended_at_ns, stage: ended_at_ns},
            work_began_at_ns=old.work_began_at_ns or began_at_ns,
        )
        return replace(self, status=status)

    def measured(self, figures: Mapping[str, float]) -> "LoaderHarness":
        """Adds figures of the load or unload, by name with unit. A retry replaces earlier figures."""
        return replace(
            self, status=replace(self.status, figures={**self.status.figures, **figures})
        )

    def noted(self, notes: Mapping[str, str]) -> "LoaderHarness":
        """Adds notes of the load, by name. A retry replaces earlier notes."""
        return replace(self, status=replace(self.status, notes={**self.status.notes, **notes}))

    def gate_ended(self, verdict: GateVerdict) -> "LoaderHarness":
        """Adds the verdict of a gate. It replaces an earlier verdict of the same gate."""
        others = tuple(item for item in self.status.verdicts if item.gate != verdict.gate)
        return replace(self, status=replace(self.status, verdicts=(*others, verdict)))

    def loaded(self, servable: Servable | None, now: Now) -> "LoaderHarness":
        """Moves from LOADING to AVAILABLE. Raises IllegalMove for a load that was cancelled."""
        moved = self._move(AVAILABLE, now, health=HEALTHY, is_given_room=False)
        if self.is_cancelled:
            raise IllegalMove(f"{self.id}: it was cancelled, so it never serves")
        return replace(moved, held=servable)

    def load_failed(
        self,
        error: MillpondError,
        retry: RetryPolicy,
        now: Now,
        *,
        drawn: float = 0.0,
        is_given_room: bool = False,
    ) -> "LoaderHarness":
        """Sets the time of a retry, or moves to END if no retry follows.

        `is_given_room` allows a retry beyond the retry policy, because memory for it is being freed. The
        end of the unload brings the retry forward (`retry_now`); without that end it comes at its time. Raises
        IllegalMove unless the version is LOADING.
        """
        self._require(LOADING, to="fail to load")
        if self.is_cancelled:
            cancelled = _cancelled(self.id, self.cancelled_because, error)
            return self._move(END, now, health=Health.of(cancelled))
        failed_count = self.status.failed_load_count + 1
        delay_ns = retry.delay_ns(error, failed_count, drawn)
        if delay_ns is None and is_given_room:
            delay_ns = max(0, retry.interval_ns)
        if delay_ns is None:
            return self._move(END, now, health=Health.of(error), failed_load_count=failed_count)
        message = _retry_message(error, failed_count, retry, delay_ns)
        if is_given_room:
            message = f"waits for the memory of a version that is unloaded: {error.message}"
        status = replace(
            self.status,
            health=Health(error.code, message),
            failed_load_count=failed_count,
            is_given_room=is_given_room,
        )
        return replace(self, status=status, retry_at_ns=now.ns + delay_ns)

    def cancel(self, now: Now, because: str = NO_LONGER_ASPIRED) -> "LoaderHarness":
        """Ends a life that is not AVAILABLE yet, for a reason. Raises IllegalMove for any other life.

        Moves to END at once if no load is under way. Otherwise the load has to be stopped, and
        `load_failed` follows.
        """
        self._require(START, LOADING, to="be cancelled")
        ended = self
        if not self.is_load_under_way:
            ended = self._move(END, now, health=Health.of(_cancelled(self.id, because)))
        return replace(ended, cancelled_because=because, retry_at_ns=None)

    def found_again(self, aspired: AspiredVersion) -> "LoaderHarness":
        """Takes what the source has found for a version that serves already.

        Remembers if these are other files than it has loaded, also those of another base path. The fingerprint
        stays that of the loaded files, so that a directory that was moved away and back is no change.
        """
        loaded, found = self.aspired.fingerprint, aspired.fingerprint
        is_same = loaded is not None and found is not None and found.has_the_files_of(loaded)
        return replace(
            self, aspired=replace(aspired, fingerprint=loaded), has_other_files=not is_same
        )

    def begin_unload(self, now: Now, *, makes_room: bool = False) -> "LoaderHarness":
        """Moves from AVAILABLE to UNLOADING."""
        return replace(self._move(UNLOADING, now), is_leaving=True, makes_room=makes_room)

    def unloaded(self, now: Now, error: MillpondError | None = None) -> "LoaderHarness":
        """Moves from UNLOADING to END. If `error` is given, some memory was possibly not freed."""
        moved = self._move(END, now, health=Health.of(error) if error else HEALTHY)
        return replace(moved, held=None)

    def _require(self, *states: ServableState, to: str) -> None:
        """Raises IllegalMove in any state but these. `to` says what a version in another state cannot do."""
        if self.state not in states:
            raise IllegalMove(f"{self.id}: it is {self.state.name}, so it cannot {to}")

    def _move(self, state: ServableState, now: Now, **changes: Any) -> "LoaderHarness":
        """Changes the state; no other method does. Raises IllegalMove if the move is not in the table."""
        old = self.status.state
        if state not in TRANSITIONS[old]:
            raise IllegalMove(f"{self.id}: {old.name} to {state.name} is not in TRANSITIONS")
        changes = {
            "state": state,
            "stage": None,
            "state_changed_ns": now.ns,
            "state_changed_wall_ns": now.wall_ns,
            **changes,
        }
        return replace(self, status=replace(self.status, **changes))


def _cancelled(
    servable_id: ServableId, because: str, error: MillpondError | None = None
) -> Cancelled:
    if error is None or isinstance(error, Cancelled):
        return Cancelled(f"{servable_id}: cancelled before it was loaded; {because}")
    return Cancelled(f"{servable_id}: {because}; its last load attempt failed: {error.message}")


def _retry_message(
    error: MillpondError, failed_count: int, retry: RetryPolicy, delay_ns: int
) -> str:
    return (
        f"load attempt {failed_count} of {retry.retry_count_max + 1} failed, "
        f"next attempt in {delay_ns / NS_PER_SECOND:g} s: {error.message}"
    )

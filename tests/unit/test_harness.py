from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND, Now
from serving.base.errors import InternalError, MillpondError, StatusCode
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
    LoadStage,
    ServableId,
    ServableState,
    ServableStatus,
    Stage,
    UnloadStage,
)
from serving.manager.harness import IllegalMove, LoaderHarness, RetryPolicy
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.errors import permanent, transient
from tests.unit.fakes.servables import FakeServable

ID = ServableId("m", 7)
RETRY = RetryPolicy(retry_count_max=2, interval_ns=60 * NS_PER_SECOND)


class Life:
    """The harnesses of one life, the present one last."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        files = AspiredVersion(version=7, directory="/m/7")
        self.harness = LoaderHarness.begin(ID, files, self.now)
        self.recorded: list[ServableStatus] = [self.harness.status]

    @property
    def now(self) -> Now:
        return Now.of(self.clock)

    def _set(self, harness: LoaderHarness) -> None:
        self.harness = harness
        self.recorded.append(harness.status)

    def begin_load(self) -> None:
        self._set(self.harness.begin_load(ModelSettings(), self.now))

    def begin_retry(self) -> None:
        self._set(self.harness.begin_retry(ModelSettings()))

    def fail(self, error: MillpondError) -> None:
        self._set(self.harness.load_failed(error, RETRY, self.now))

    def retry_now(self) -> None:
        self._set(self.harness.retry_now(self.now))

    def cancel(self) -> None:
        self._set(self.harness.cancel(self.now))

    def begin_unload(self) -> None:
        self._set(self.harness.begin_unload(self.now))

    def unloaded(self, error: MillpondError | None = None) -> None:
        self._set(self.harness.unloaded(self.now, error))

    def stage_ended(self, stage: Stage, seconds: float, ended_at_ns: int) -> None:
        self._set(self.harness.stage_ended(stage, seconds, ended_at_ns))

    @property
    def states(self) -> list[ServableState]:
        return [status.state for status in self.recorded]

    def go_to(self, state: ServableState) -> None:
        for enter in {
            START: [],
            LOADING: [self.begin_load],
            AVAILABLE: [self.begin_load, self.load],
            UNLOADING: [self.begin_load, self.load, self.begin_unload],
            END: [self.cancel],
        }[state]:
            enter()

    def load(self) -> None:
        self._set(self.harness.loaded(FakeServable(ID), self.now))

    def moves(self) -> dict[ServableState, Callable[[], None]]:
        """Returns, for each state, the call that moves there."""
        return {
            LOADING: self.begin_load,
            AVAILABLE: self.load,
            UNLOADING: self.begin_unload,
            END: self.unloaded,
        }


def test_harness_begins_in_start_and_records_it() -> None:
    life = Life()
    assert life.states == [START]
    assert life.harness.status.health == HEALTHY


def test_harness_whole_life_is_recorded_in_order() -> None:
    life = Life()
    life.go_to(UNLOADING)
    life.unloaded()
    assert life.states == [START, LOADING, AVAILABLE, UNLOADING, END]


@pytest.mark.parametrize(
    ("old", "new"),
    [(old, new) for old in ServableState for new in [LOADING, AVAILABLE, UNLOADING, END]],
)
def test_harness_allows_exactly_moves_of_table(old: ServableState, new: ServableState) -> None:
    life = Life()
    life.go_to(old)
    before, recorded = life.harness.status, list(life.recorded)
    if new in TRANSITIONS[old]:
        life.moves()[new]()
        assert life.harness.status.state is new
        return
    with pytest.raises(IllegalMove, match=f"{old.name} to {new.name}"):
        life.moves()[new]()
    assert life.harness.status is before
    assert life.recorded == recorded


def test_harness_state_change_has_its_time() -> None:
    life = Life()
    life.clock.advance(5)
    life.begin_load()
    assert life.harness.status.state_changed_wall_ns == life.clock.wall_ns()
    assert life.harness.status.state_changed_ns == life.clock.now_ns()


def test_harness_stages_are_kept_with_their_seconds() -> None:
    life = Life()
    life.go_to(LOADING)
    assert life.harness.stage_began(LoadStage.RESTORE).status.stage is LoadStage.RESTORE
    life.stage_ended(LoadStage.RESTORE, 1.5, 40)
    life.load()
    life.begin_unload()
    life.stage_ended(UnloadStage.QUIESCE, 0.25, 90)
    assert life.harness.status.stage is None
    assert life.harness.status.stage_seconds == {LoadStage.RESTORE: 1.5, UnloadStage.QUIESCE: 0.25}
    assert life.harness.status.stage_ended_at_ns == {LoadStage.RESTORE: 40, UnloadStage.QUIESCE: 90}


def test_harness_merges_figures_of_load_and_unload() -> None:
    life = Life()
    life.go_to(LOADING)
    loading = life.harness.measured({"slab_bytes": 4.0, "load_cpu_seconds": 1.0})
    retried = loading.measured({"load_cpu_seconds": 2.0})
    assert retried.status.figures == {"slab_bytes": 4.0, "load_cpu_seconds": 2.0}


def test_harness_replaces_notes_of_an_earlier_load() -> None:
    life = Life()
    life.go_to(LOADING)
    loading = life.harness.noted({"unrepeatable_reason": "node 'n' fills a table"})
    retried = loading.noted({"unrepeatable_reason": ""})
    assert retried.status.notes == {"unrepeatable_reason": ""}


def test_harness_permanent_failure_ends_at_once() -> None:
    life = Life()
    life.go_to(LOADING)
    life.fail(permanent("bad checksum"))
    status = life.harness.status
    assert (status.state, status.health.code) == (END, StatusCode.DATA_LOSS)
    assert status.health.message == "bad checksum"
    assert status.failed_load_count == 1
    assert life.harness.retry_at_ns is None


def test_harness_transient_failure_waits_for_a_retry() -> None:
    life = Life()
    life.go_to(LOADING)
    life.fail(transient("disk is away"))
    assert life.harness.status.state is LOADING
    assert life.harness.retry_at_ns == life.clock.now_ns() + RETRY.interval_ns
    assert life.harness.status.health.message == (
        "load attempt 1 of 3 failed, next attempt in 60 s: disk is away"
    )


def test_harness_last_transient_failure_ends() -> None:
    life = Life()
    life.go_to(LOADING)
    for _ in range(RETRY.retry_count_max):
        life.fail(transient())
        life.begin_retry()
    life.fail(transient("still away"))
    assert life.harness.status.state is END
    assert life.harness.status.health.message == "still away"


def test_harness_success_after_a_failure_is_healthy() -> None:
    life = Life()
    life.go_to(LOADING)
    life.fail(transient())
    life.begin_retry()
    life.load()
    assert life.harness.status.health == HEALTHY
    assert life.harness.status.failed_load_count == 1


def test_harness_cancelled_before_its_load_ends() -> None:
    life = Life()
    life.cancel()
    assert life.harness.status.state is END
    assert life.harness.status.health.code is StatusCode.CANCELLED
    assert life.harness.is_discarded


@pytest.mark.parametrize("state", [AVAILABLE, UNLOADING, END])
def test_harness_cancelled_after_its_load_raises(state: ServableState) -> None:
    life = Life()
    life.go_to(state)
    before = life.harness
    with pytest.raises(IllegalMove, match=f"it is {state.name}, so it cannot be cancelled"):
        life.cancel()
    assert life.harness is before


@pytest.mark.parametrize("state", [START, AVAILABLE, UNLOADING, END])
def test_harness_without_load_has_no_attempts(state: ServableState) -> None:
    life = Life()
    life.go_to(state)
    before = life.harness
    with pytest.raises(IllegalMove, match=f"it is {state.name}, so it cannot fail to load"):
        life.fail(transient())
    with pytest.raises(IllegalMove, match=f"it is {state.name}, so it cannot begin a retry"):
        life.begin_retry()
    assert life.harness is before


def test_harness_cancelled_between_retries_ends() -> None:
    life = Life()
    life.go_to(LOADING)
    life.fail(transient())
    life.cancel()
    assert life.harness.status.state is END
    assert life.harness.retry_at_ns is None


def test_harness_cancelled_load_is_awaited() -> None:
    life = Life()
    life.go_to(LOADING)
    life.cancel()
    assert (life.harness.status.state, life.harness.is_cancelled) == (LOADING, True)
    life.fail(transient("disk is away"))
    assert life.harness.status.state is END
    assert life.harness.status.health.code is StatusCode.CANCELLED
    assert "disk is away" in life.harness.status.health.message


def test_harness_cancelled_too_late_never_serves() -> None:
    life = Life()
    life.go_to(LOADING)
    life.cancel()
    with pytest.raises(IllegalMove, match="cancelled"):
        life.load()
    assert (life.harness.status.state, life.harness.is_discarded) == (LOADING, True)


def test_harness_unload_error_is_the_health_at_the_end() -> None:
    life = Life()
    life.go_to(UNLOADING)
    life.unloaded(InternalError("destroy failed"))
    assert life.harness.status.health.code is StatusCode.INTERNAL


def test_harness_without_servable_refuses_to_give_one() -> None:
    with pytest.raises(InternalError, match="m/7 is START and has no servable"):
        _ = Life().harness.servable


@pytest.mark.parametrize(
    ("error", "failed_count", "interval_ns", "expected"),
    [
        (transient(), 1, 5, 5),
        (transient(), 2, 5, 5),
        (transient(), 3, 5, None),
        (transient(), 1, -1, 0),
        (permanent(), 1, 5, None),
    ],
)
def test_retry_policy_delay(
    error: MillpondError, failed_count: int, interval_ns: int, expected: int | None
) -> None:
    policy = RetryPolicy(retry_count_max=2, interval_ns=interval_ns)
    assert policy.delay_ns(error, failed_count) == expected


def test_retry_policy_doubles_waits_up_to_limit() -> None:
    policy = RetryPolicy(retry_count_max=99, interval_ns=60, first_interval_ns=10)
    waits = [policy.delay_ns(transient(), count) for count in (1, 2, 3, 4, 5, 99)]
    assert waits == [10, 20, 40, 60, 60, 60]


@given(st.floats(0, 1), st.integers(1, 40))
def test_retry_policy_shortens_a_wait_by_at_most_half(drawn: float, failed_count: int) -> None:
    whole = RetryPolicy(retry_count_max=99, interval_ns=10**12, first_interval_ns=10**9)
    longest_ns = whole.delay_ns(transient(), failed_count) or 0
    delay_ns = whole.delay_ns(transient(), failed_count, drawn) or 0
    assert longest_ns / 2 <= delay_ns <= longest_ns


def test_retry_now_wakes_only_waiting_version() -> None:
    life = Life()
    life.begin_load()
    life.retry_now()
    assert life.harness.retry_at_ns is None
    life.fail(transient())
    life.retry_now()
    assert life.harness.retry_at_ns == life.clock.now_ns()


@given(st.lists(st.sampled_from(["load", "retry", "loaded", "fail", "cancel", "unload", "end"])))
def test_harness_any_calls_leave_only_legal_moves(calls: list[str]) -> None:
    life = Life()
    actions: dict[str, Callable[[], None]] = {
        "load": life.begin_load,
        "retry": life.begin_retry,
        "loaded": life.load,
        "fail": lambda: life.fail(transient()),
        "cancel": life.cancel,
        "unload": life.begin_unload,
        "end": life.unloaded,
    }
    for call in calls:
        before = life.harness.status
        try:
            actions[call]()
        except IllegalMove:
            assert life.harness.status is before
    for old, new in pairwise(life.states):
        assert old is new or new in TRANSITIONS[old]


def test_harness_keeps_first_stage_start_over_attempts() -> None:
    life = Life()
    life.go_to(LOADING)
    life.stage_ended(LoadStage.CHECK, 2, 5 * NS_PER_SECOND)
    life.stage_ended(LoadStage.CHECK, 1, 9 * NS_PER_SECOND)
    assert life.recorded[-1].work_began_at_ns == 3 * NS_PER_SECOND

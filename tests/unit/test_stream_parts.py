"""The parts of a stream, each by its own rule."""

from dataclasses import replace
from typing import Any

import pytest

from serving.base.clock import NS_PER_SECOND, Now
from serving.base.errors import DoesNotFitBeside
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.model_settings import ModelSettings, PolicyName
from serving.core.servable import END, AspiredVersion, Health, ServableId, ServableStatus
from serving.manager.blocked_state import BlockedState
from serving.manager.canary_state import CanaryState
from serving.manager.failed_loads import without_changed_files
from serving.manager.harness import LoaderHarness
from serving.manager.kept_previous import KeptPrevious
from serving.manager.pressure_state import PressureState
from serving.manager.stream import StreamState
from tests.unit.fakes.requests import FakeStatistics

OPERATOR, FAILURE = BlockedVersion(by=BlockedBy.OPERATOR), BlockedVersion(by=BlockedBy.FAILURE)

# --- The stream -----------------------------------------------------------------------------------


def test_changed_state_of_unknown_field_raises():
    with pytest.raises(TypeError, match="has no field aspird"):
        StreamState(name="m").changed(aspird={})


# --- Blocked versions -----------------------------------------------------------------------------


def test_block_by_person_replaces_block_by_failure():
    blocks = BlockedState({1: FAILURE, 2: OPERATOR})
    assert blocks.with_block([1, 3], OPERATOR).by_version == {1: OPERATOR, 2: OPERATOR, 3: OPERATOR}


def test_block_by_failure_leaves_block_by_person():
    blocks = BlockedState({2: OPERATOR})
    assert blocks.with_block([2, 3], FAILURE).by_version == {2: OPERATOR, 3: FAILURE}


def test_unblocked_version_leaves_other_blocks():
    assert BlockedState({1: OPERATOR, 2: FAILURE}).without(1).by_version == {2: FAILURE}


def test_fallback_is_not_left_out():
    blocks = BlockedState({1: OPERATOR, 2: OPERATOR}).with_fallback(2)
    assert blocks.with_fallback(2) is blocks
    assert blocks.left_out == {1}
    assert blocks.versions == {1, 2}


@pytest.mark.parametrize(
    ("found", "ready", "failed", "expected"),
    [
        ({1, 2}, (), (), 1),
        ({1, 2}, (), {1}, 2),
        ({1, 2}, {9}, (), None),
        ({1, 2, 9}, (), (), None),
        ({1, 2, 9}, (), {9}, 1),
        ({1, 2, 9}, {9}, {9}, None),
        ({1, 2, 3}, (), (), 3),
        ((), (), (), None),
    ],
    ids=[
        "lowest",
        "lowest_that_loads",
        "other_in_memory",
        "other_on_disk",
        "other_has_failed",
        "other_failed_and_is_back",
        "blocked_last",
        "nothing_on_disk",
    ],
)
def test_find_fallback(found: Any, ready: Any, failed: Any, expected: int | None):
    late = BlockedVersion(by=BlockedBy.CANARY, since_wall_ns=NS_PER_SECOND)
    blocks = BlockedState({1: OPERATOR, 2: OPERATOR, 3: late})
    assert blocks.find_fallback(found, ready, failed) == expected


def test_version_blocked_by_failure_stays_out():
    assert BlockedState({1: FAILURE}).find_fallback({1}, (), ()) is None


def test_blocked_and_unblocked_keep_their_order():
    blocks = BlockedState({2: OPERATOR, 4: FAILURE})
    assert blocks.blocked_of([4, 3, 2]) == [4, 2]
    assert blocks.unblocked_of([5, 4, 3]) == [5, 3]


# --- Memory pressure ------------------------------------------------------------------------------


def test_first_load_that_presses_keeps_its_reason():
    pressure = PressureState().begun(2, "too large")
    assert pressure.begun(3, "larger") is pressure
    assert (pressure.pressing_version, pressure.reason) == (2, "too large")


def test_pressure_ends_when_version_is_withdrawn():
    pressure = PressureState().begun(2, "too large")
    seen = []
    for aspired in ({2, 3}, {3}):
        pressure = pressure.unless_aspired(aspired)
        seen.append((pressure.is_on, pressure.reason))
    assert seen == [(True, "too large"), (False, "")]


def test_lack_of_memory_is_kept_per_version():
    pressure = PressureState()
    for version in (2, 3, 4):
        pressure = pressure.with_lack(version, is_lacking=True)
    pressure = pressure.with_lack(3, is_lacking=False).only({2, 3})
    assert pressure.lacking == {2}


# --- The previous version -------------------------------------------------------------------------


def kept(*previous: int | None) -> KeptPrevious:
    """Returns the state after each of `previous` was noted, a second apart, from 0 on."""
    state = KeptPrevious()
    for second, version in enumerate(previous):
        state = state.after(version, is_named=False, now_ns=second * NS_PER_SECOND)
    return state


def test_previous_version_is_kept_from_its_first_note():
    state = kept(1, 1, 1)
    assert state.version == 1
    assert state.until_ns(10) == 10 * NS_PER_SECOND


def test_time_begins_anew_for_another_version():
    assert kept(1, 1, 2).until_ns(10) == 12 * NS_PER_SECOND


@pytest.mark.parametrize(
    "state", [kept(), kept(1, None), kept(None)], ids=["new", "gone", "without"]
)
def test_no_previous_version_is_kept(state: KeptPrevious):
    assert state.version is None
    assert state.until_ns(10) is None


def test_keep_time_of_zero_keeps_nothing():
    assert kept(1).until_ns(0) is None


def test_named_previous_version_has_no_keep_time():
    assert kept(1).after(1, is_named=True, now_ns=9).version is None


def test_given_up_lasts_until_another_version_follows():
    state = kept(1).without(1)
    seen = []
    for previous in (1, 2):
        state = state.after(previous, is_named=False, now_ns=0)
        seen.append((state.given_up, state.until_ns(10)))
    assert seen == [(1, None), (None, 10 * NS_PER_SECOND)]


# --- The canary -----------------------------------------------------------------------------------


def counts(state: CanaryState, pair: tuple[int, int], *totals: int) -> tuple[CanaryState, Any]:
    """Compares two versions that have answered `totals`.

    Returns the state after, and the requests of both since they serve side by side.
    """
    after, canary, stable = state.compared(pair, *map(FakeStatistics, totals))
    return after, (canary.request_count, stable.request_count)


def test_stable_requests_before_canary_do_not_count():
    state, seen = counts(CanaryState(), (2, 1), 0, 500)
    assert seen == (0, 0)
    state, seen = counts(state, (2, 1), 3, 530)
    assert seen == (3, 30)
    assert state.answered_count == 3


def test_other_pair_begins_anew():
    state, _ = counts(CanaryState(), (2, 1), 0, 500)
    assert counts(state, (3, 1), 1, 530)[1] == (1, 0)


def test_resumed_canary_is_judged_by_later_requests():
    state = CanaryState(resumed=(2, FakeStatistics(40)))
    assert counts(state, (2, 1), 43, 500)[1] == (3, 0)


def test_doubt_is_of_one_canary():
    state = CanaryState().doubt(2, FakeStatistics(40))
    state, seen = counts(state, (2, 1), 40, 500)
    assert seen == (0, 0)
    # Another version may take its place at any time.
    assert state.doubted == 2


# --- Loads ----------------------------------------------------------------------------------------

AUTO = ModelSettings(aspired_version_policy=PolicyName.AUTO)
RESOURCE = ModelSettings(aspired_version_policy=PolicyName.RESOURCE)
TOO_LARGE = ServableStatus(
    id=ServableId("m", 2),
    state=END,
    health=Health.of(DoesNotFitBeside("too large", missing_bytes=1)),
)


def files_of(version: int, found_at_ns: int = 0) -> AspiredVersion:
    return AspiredVersion(version=version, directory=f"/m/{version}", found_at_ns=found_at_ns)


def state_of_a_failure(*versions: int, begun_with: ModelSettings | None = None) -> StreamState:
    """Returns a stream with AUTO whose loads of `versions` have failed."""
    state = StreamState(name="m", settings=AUTO)
    for version in versions:
        harness = LoaderHarness.begin(ServableId("m", version), files_of(version), Now(0))
        status = replace(TOO_LARGE, id=ServableId("m", version))
        failed = replace(harness, status=status, begun_with=begun_with)
        state = state.with_failed_load(failed)
    return state


def test_failure_ends_with_its_files():
    found = [files_of(1), files_of(2, found_at_ns=1), files_of(3)]
    assert set(without_changed_files(state_of_a_failure(1, 2).failed, found)) == {1}


def test_failure_keeps_settings_of_its_begin():
    # The settings changed during the load, which could not see them.
    state = replace(state_of_a_failure(2, begun_with=AUTO), settings=RESOURCE)
    assert state.worth_another_try() == {2: "aspired_version_policy has changed"}
    assert replace(state, settings=AUTO).worth_another_try() == {}


def test_failures_without_life_or_block_are_forgotten():
    state = state_of_a_failure(1, 2, 3)
    blocks = BlockedState({2: FAILURE})
    assert set(replace(state, blocks=blocks).without_past_failures().failed) == {2}

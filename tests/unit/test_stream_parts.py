"""The parts of a stream, each by its own rule."""

from dataclasses import dataclass
from typing import Any

import pytest

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DoesNotFitBeside
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.model_settings import ModelSettings, PolicyName
from serving.core.servable import END, AspiredVersion, Health, ServableId, ServableStatus
from serving.manager.blocked_state import BlockedState
from serving.manager.canary_state import CanaryState
from serving.manager.failed_loads import LoadHistory
from serving.manager.kept_previous import KeptPrevious
from serving.manager.pressure_state import PressureState
from tests.unit.fakes.requests import FakeStatistics
from tests.unit.fakes.servables import FakeServable

OPERATOR, FAILURE = BlockedVersion(by=BlockedBy.OPERATOR), BlockedVersion(by=BlockedBy.FAILURE)

# --- Blocked versions -----------------------------------------------------------------------------


def test_block_by_person_replaces_block_by_failure():
    blocks = BlockedState({1: FAILURE, 2: OPERATOR})
    assert blocks.with_block([1, 3], OPERATOR) == {1: OPERATOR, 2: OPERATOR, 3: OPERATOR}


def test_block_by_failure_leaves_block_by_person():
    blocks = BlockedState({2: OPERATOR})
    assert blocks.with_block([2, 3], FAILURE) == {2: OPERATOR, 3: FAILURE}


def test_unblocked_version_leaves_other_blocks():
    assert BlockedState({1: OPERATOR, 2: FAILURE}).without(1) == {2: FAILURE}


def test_last_resort_is_not_left_out():
    blocks = BlockedState({1: OPERATOR, 2: OPERATOR})
    assert blocks.set_last_resort(2)
    assert not blocks.set_last_resort(2)
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
def test_find_last_resort(found: Any, ready: Any, failed: Any, expected: int | None):
    late = BlockedVersion(by=BlockedBy.CANARY, since_wall_ns=NS_PER_SECOND)
    blocks = BlockedState({1: OPERATOR, 2: OPERATOR, 3: late})
    assert blocks.find_last_resort(found, ready, failed) == expected


def test_version_blocked_by_failure_stays_out():
    assert BlockedState({1: FAILURE}).find_last_resort({1}, (), ()) is None


def test_blocked_and_unblocked_keep_their_order():
    blocks = BlockedState({2: OPERATOR, 4: FAILURE})
    assert blocks.blocked_of([4, 3, 2]) == [4, 2]
    assert blocks.unblocked_of([5, 4, 3]) == [5, 3]


# --- Memory pressure ------------------------------------------------------------------------------


def test_first_load_that_presses_keeps_its_reason():
    pressure = PressureState()
    assert pressure.begin(2, "too large")
    assert not pressure.begin(3, "larger")
    assert (pressure.pressing_version, pressure.reason) == (2, "too large")


def test_pressure_ends_when_version_is_withdrawn():
    pressure = PressureState()
    pressure.begin(2, "too large")
    seen = []
    for aspired in ({2, 3}, {3}):
        pressure.end_unless_aspired(aspired)
        seen.append((pressure.is_on, pressure.reason))
    assert seen == [(True, "too large"), (False, "")]


def test_lack_of_memory_is_kept_per_version():
    pressure = PressureState()
    for version in (2, 3, 4):
        pressure.note_lack(version, is_lacking=True)
    pressure.note_lack(3, is_lacking=False)
    pressure.keep_only({2, 3})
    assert [pressure.lacks_memory(version) for version in (2, 3, 4)] == [True, False, False]


# --- The previous version -------------------------------------------------------------------------


def kept(*previous: int | None) -> KeptPrevious:
    """Returns the state after each of `previous` was noted, a second apart, from 0 on."""
    state = KeptPrevious()
    for second, version in enumerate(previous):
        state.note(version, is_named=False, now_ns=second * NS_PER_SECOND)
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
    state = kept(1)
    state.note(1, is_named=True, now_ns=9)
    assert state.version is None


def test_given_up_lasts_until_another_version_follows():
    state = kept(1)
    state.give_up(1)
    seen = []
    for previous in (1, 2):
        state.note(previous, is_named=False, now_ns=0)
        seen.append((state.given_up, state.until_ns(10)))
    assert seen == [(1, None), (None, 10 * NS_PER_SECOND)]


# --- The canary -----------------------------------------------------------------------------------


@dataclass
class FakeHarness:
    """The life of a version, which has answered `servable.figures.request_count` requests."""

    id: ServableId
    servable: FakeServable


def harness(version: int, request_count: int) -> Any:
    servable_id = ServableId("m", version)
    servable = FakeServable(servable_id)
    servable.figures = FakeStatistics(request_count)
    return FakeHarness(servable_id, servable)


def answered(version: Any, request_count: int) -> None:
    """Adds requests that `version` has answered."""
    version.servable.figures = FakeStatistics(
        version.servable.figures.request_count + request_count
    )


def test_stable_requests_before_canary_do_not_count():
    state, canary, stable = CanaryState(), harness(2, 0), harness(1, 500)
    assert counts(state, canary, stable) == (0, 0)
    answered(canary, 3)
    answered(stable, 30)
    assert counts(state, canary, stable) == (3, 30)


def test_other_pair_begins_anew():
    state, canary, stable = CanaryState(), harness(2, 0), harness(1, 500)
    counts(state, canary, stable)
    answered(stable, 30)
    assert counts(state, harness(3, 1), stable) == (1, 0)


def test_resumed_canary_is_judged_by_later_requests():
    state, canary, stable = CanaryState(), harness(2, 40), harness(1, 500)
    state.resume(canary)
    answered(canary, 3)
    assert counts(state, canary, stable) == (3, 0)


def test_doubt_is_of_one_canary():
    state, canary = CanaryState(), harness(2, 40)
    state.doubt(canary)
    assert counts(state, canary, harness(1, 500)) == (0, 0)
    assert state.is_doubted(canary.id.version)
    # Another one may take its place at any time.
    assert not state.is_doubted(3)
    state.forget()
    assert not state.is_doubted(canary.id.version)


def test_forgotten_canary_counts_from_its_load():
    state, canary, stable = CanaryState(), harness(2, 40), harness(1, 500)
    state.resume(canary)
    state.forget()
    assert counts(state, canary, stable) == (40, 0)


def counts(state: CanaryState, canary: Any, stable: Any) -> tuple[int, int]:
    """Returns the requests of both versions since they serve side by side."""
    since_canary, since_stable = state.since_began(canary, stable)
    return since_canary.request_count, since_stable.request_count


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


def test_failure_ends_with_its_files():
    loads = LoadHistory()
    for version in (1, 2):
        loads.note_failure(files_of(version), TOO_LARGE, now=AUTO)
    loads.found([files_of(1), files_of(2, found_at_ns=1), files_of(3)])
    assert set(loads.failed) == {1}


def test_failure_keeps_settings_of_its_begin():
    loads = LoadHistory()
    loads.note_begin(2, AUTO)
    # The settings changed during the load, which could not see them.
    loads.note_failure(files_of(2), TOO_LARGE, now=RESOURCE)
    assert loads.why_try_again(2, RESOURCE) == "aspired_version_policy has changed"
    assert loads.why_try_again(2, AUTO) == ""


def test_failures_of_other_versions_are_forgotten():
    loads = LoadHistory()
    for version in (1, 2, 3):
        loads.note_failure(files_of(version), TOO_LARGE, now=AUTO)
    loads.forget_failure(3)
    loads.keep_only(begun=(), failed={2, 3})
    assert set(loads.failed) == {2}

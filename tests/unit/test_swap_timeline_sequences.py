"""SwapTimeline over lives of versions in any order: each swap ends, and is compared with a calm
time.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from serving.base.errors import StatusCode
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LOADING,
    START,
    TRANSITIONS,
    UNLOADING,
    Health,
    ServableState,
)
from serving.manager.listener import ROLLED_BACK
from serving.monitoring.swap_record import SwapRecord, SwapResult
from tests.unit.worlds.swaps import World

CALM_MS, BUSY_MS = 1.0, 9.0

# The version, the time before its move, the choice of the move, and True if memory is on its way
# back from then on.
Steps = list[tuple[int, float, int, bool]]
STEPS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from((0.0, 0.25, 1.0, 3.0, 12.0)),
        st.integers(0, 1),
        st.booleans(),
    ),
    max_size=30,
)

NOT_PUBLISHED = (SwapResult.LOAD_FAILED, SwapResult.CANCELLED, SwapResult.UNLOADED)

LONG_SECONDS = 90
"""Longer than the wait for a slab, the effect of an unload, and the time of a comparison."""


class Lives:
    """Versions of one model that move as TRANSITIONS allows, and requests that slow down with them."""

    def __init__(self) -> None:
        self.world = World()
        self.states: dict[int, ServableState] = {}
        self.received: list[SwapRecord] = []
        self.world.timeline.add_listener(self.received.append)

    def pass_time(self, seconds: float) -> None:
        """Ends a request after each quarter of a second: a slow one while a version comes or
        leaves.
        """
        is_busy = not {LOADING, UNLOADING}.isdisjoint(self.states.values())
        for _ in range(round(seconds * 4)):
            self.world.pass_time(0.25)
            self.world.requests.answer(BUSY_MS if is_busy else CALM_MS)

    def step(self, version: int, choice: int) -> None:
        """Makes one of the version's moves; an AVAILABLE version may also become the answering one."""
        state = self.states.get(version, END)
        if state is AVAILABLE and choice:
            previous_version = self.world.answering.get("m")
            self.world.answering["m"] = version
            self.world.timeline.default_version_changed("m", version, previous_version, ROLLED_BACK)
            return
        moves = sorted(TRANSITIONS[state]) or [START]
        self.move(version, moves[min(choice, len(moves) - 1)])

    def move(self, version: int, state: ServableState) -> None:
        """Also updates the answering version: the one that was published last."""
        is_failure = state is END and self.states[version] is LOADING
        if state is AVAILABLE:
            self.world.answering["m"] = version
        failed = Health(StatusCode.DATA_LOSS, "bad checksum")
        self.states[version] = state
        self.world.report(version, state, health=failed if is_failure else HEALTHY)

    def end(self) -> None:
        """Ends all that is under way, and the effects of it."""
        for version, state in list(self.states.items()):
            if state not in (AVAILABLE, END):
                self.move(version, END)
        self.pass_time(LONG_SECONDS)


def lives_of(steps: Steps) -> Lives:
    lives = Lives()
    with capture_logs():
        for version, seconds, choice, is_slab_due in steps:
            lives.world.slab_pool.is_due = is_slab_due
            lives.pass_time(seconds)
            lives.step(version, choice)
        lives.end()
    return lives


@settings(deadline=None)
@given(STEPS)
def test_timeline_each_swap_ends_and_is_logged_once(steps: Steps) -> None:
    lives = lives_of(steps)
    timeline = lives.world.timeline
    assert sorted(record.id for record in lives.received) == sorted(
        record.id for record in timeline.records()
    )
    assert sum(timeline.counts().values()) == len(lives.received)


@settings(deadline=None)
@given(STEPS)
def test_timeline_instants_of_a_swap_are_in_order(
    steps: Steps,
) -> None:
    for record in lives_of(steps).received:
        instants = [
            instant
            for instant in (record.began_at_ns, record.load_started_at_ns, record.published_at_ns)
            if instant is not None
        ]
        assert record.ended_at_ns is not None
        assert instants == sorted(instants)
        assert instants[-1] <= record.ended_at_ns
        assert all(stage.seconds >= 0 for stage in record.stages)
        assert (record.published_at_ns is None) == (record.result in NOT_PUBLISHED)


@settings(deadline=None)
@given(STEPS)
def test_swap_comparison_excludes_other_swaps(
    steps: Steps,
) -> None:
    for record in lives_of(steps).received:
        for calm in (record.before, record.after):
            assert calm is None or calm.max_seconds <= CALM_MS / 1_000

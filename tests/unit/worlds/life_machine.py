"""Any sequence of drops, failures, rollbacks and settings in the life of one model."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from serving.base.errors import MillpondError
from serving.core.model_settings import CanarySettings, ModelSettings, PolicyName
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    TRANSITIONS,
    UNLOADING,
    Routing,
)
from serving.core.version_selection import All, Latest, Specific, VersionSelection
from tests.unit.fakes.errors import permanent, transient
from tests.unit.fakes.requests import FakeStatistics
from tests.unit.worlds.lives import DiskAndPolicy, Judge
from tests.unit.worlds.manager import RETRY_SECONDS, World

VERSIONS = st.integers(1, 4)
LABELS = st.dictionaries(st.sampled_from(["stable", "next"]), VERSIONS, max_size=2)
SELECTIONS: st.SearchStrategy[VersionSelection] = st.one_of(
    st.just(Latest(1)),
    st.just(Latest(2)),
    st.just(All()),
    st.builds(Specific, st.frozensets(VERSIONS, max_size=2)),
)
SETTINGS = st.builds(
    ModelSettings,
    aspired_version_policy=st.sampled_from(PolicyName),
    keep_previous_seconds=st.sampled_from([0.0, 30.0]),
    canary=st.builds(
        CanarySettings,
        weight=st.sampled_from([0.0, 0.1]),
        request_count=st.sampled_from([0, 100]),
    ),
)
Failures = list[Callable[[], MillpondError]]
# Failures of the first loads after a drop: mostly none, or more transient ones than there are
# retries.
FAILURES: st.SearchStrategy[Failures] = st.one_of(
    st.just([]),
    st.just([permanent]),
    st.lists(st.sampled_from([transient, permanent]), max_size=4),
)
JITTER_SECONDS = 60
# Numbers of versions that fit beside each other; the last exceeds all versions.
CAPACITIES = st.sampled_from([1, 2, 9])
# More than all loads of all versions in sequence, retries included.
REST_ROUND_COUNT = 15


class LifeMachine(RuleBasedStateMachine):
    """One model. Each rule is a possible next step of a person, a disk, a thread or the clock."""

    @initialize(
        is_brisk=st.booleans(),
        is_jittered=st.booleans(),
        capacity=CAPACITIES,
        model_settings=SETTINGS,
    )
    def begin(
        self, is_brisk: bool, is_jittered: bool, capacity: int, model_settings: ModelSettings
    ) -> None:
        """Starts a model. If `is_brisk`, the server does all it can after each event, so that a
        sequence leads far.

        Otherwise its threads take their steps at any time between.
        """
        self.is_brisk = is_brisk
        jitter_seconds = JITTER_SECONDS if is_jittered else 0
        self.world = self.make_world(jitter_seconds)
        # The server logs and survives a bug in the control thread; here it fails the test.
        self.world.manager._guarded = lambda call: call()  # type: ignore[method-assign]
        self.disk = DiskAndPolicy(self.world)
        self.judge = Judge(self.disk, jitter_seconds)
        self.disk.capacity = capacity
        self.labels: Mapping[str, int] = {}
        self.effective_labels: Mapping[str, int] = {}
        self.answers: list[Future[Any]] = []
        self.change_settings(model_settings)
        # Interesting sequences begin with a version that serves.
        self.drop(2, [])
        self.work()

    def make_world(self, jitter_seconds: int) -> World:
        """Makes the manager and its surroundings."""
        return World(load_jitter_seconds=jitter_seconds)

    # --- The disk and people ----------------------------------------------------------------------

    @rule(version=VERSIONS, failures=FAILURES)
    def drop(self, version: int, failures: Failures) -> None:
        """Adds a version, or replaces its files; its first loads fail with `failures`."""
        # Two drops never have the same instant: otherwise new files would look like the old ones.
        self.world.clock.ns += 1
        self.disk.found_at_ns[version] = self.world.clock.now_ns()
        self.judge.failed.discard(version)
        self.world.fail(version, *[make() for make in failures])
        if version in self.disk.blocked:
            self.world.manager.found_anew("m", version)
        self.disk.aspire()
        self.go_on()

    @rule(version=VERSIONS)
    def drop_good(self, version: int) -> None:
        """Most versions load without a failure."""
        self.drop(version, [])

    @rule(failures=FAILURES)
    def drop_soon_after_a_swap(self, failures: Failures) -> None:
        """Adds a further version while the one before may still be kept for a rollback."""
        self.drop_good(3)
        self.work()
        self.drop(4, failures)

    @rule(version=VERSIONS)
    def remove(self, version: int) -> None:
        """Removes versions, even the last one."""
        self.disk.found_at_ns.pop(version, None)
        self.disk.aspire()
        self.go_on()

    @rule(selection=SELECTIONS)
    def select(self, selection: VersionSelection) -> None:
        self.disk.selection = selection
        self.disk.aspire()
        self.go_on()

    @rule()
    def stop_and_start(self) -> None:
        """Aspires nothing for a while, so that nothing serves when the versions come back."""
        selection = self.disk.selection
        self.select(Specific(frozenset()))
        self.work()
        # Only here may a label disappear with its version.
        self.no_label_is_lost()
        self.select(selection)

    @rule(version=VERSIONS)
    def start_with_a_version_that_fails(self, version: int) -> None:
        """Nothing serves when the load of a version fails for good."""
        self.select(Specific(frozenset()))
        self.work()
        self.no_label_is_lost()
        self.drop(version, [permanent])
        self.select(Latest(1))
        self.work()

    @rule(model_settings=SETTINGS)
    def change_settings(self, model_settings: ModelSettings) -> None:
        self.disk.settings = model_settings
        self.world.manager.set_settings("m", model_settings)
        self.go_on()

    @rule(labels=LABELS)
    def move_labels(self, labels: dict[str, int]) -> None:
        self.labels = labels
        self.world.manager.set_labels("m", labels)
        self.take_turn()
        self.go_on()

    @rule(is_cold_allowed=st.booleans())
    def roll_back(self, is_cold_allowed: bool) -> None:
        self.answers.append(self.world.manager.rollback("m", is_cold_allowed=is_cold_allowed))
        self.go_on()

    @rule()
    def roll_back_as_the_others_turn_out_broken(self) -> None:
        """A cold rollback finds out which of the older versions on disk still load."""
        for version in self.disk.found_at_ns.keys() - self.judge.in_state(AVAILABLE):
            self.drop(version, [permanent] * 4)
        self.roll_back(is_cold_allowed=True)
        self.work()

    @rule(version=VERSIONS)
    def select_one_as_the_retry_of_another_is_due(self, version: int) -> None:
        """Memory for both would be requested while the old one is still there."""
        self.select(Latest(2))
        self.drop(version, [transient])
        self.work()
        self.world.clock.advance(RETRY_SECONDS)
        self.select(Latest(1))

    @rule()
    def promote(self) -> None:
        self.answers.append(self.world.manager.promote("m"))
        self.go_on()

    @rule(version=VERSIONS)
    def allow(self, version: int) -> None:
        self.answers.append(self.world.manager.allow("m", version))
        self.go_on()

    # --- Failures and requests --------------------------------------------------------------------

    @rule(capacity=CAPACITIES)
    def change_memory(self, capacity: int) -> None:
        self.disk.capacity = capacity
        self.disk.blocked_by_memory.clear()

    @rule(version=VERSIONS)
    def hold(self, version: int) -> None:
        """A slow request: its version cannot be freed."""
        for servable in self.world.serving_map.published.values():
            if servable.id.version == version:
                servable.handle_count = 1

    @rule()
    def let_go(self) -> None:
        for servable in self.world.loading.servables:
            servable.handle_count = 0

    @rule(version=VERSIONS, failed_count=st.sampled_from([0, 150]))
    def answer_requests(self, version: int, failed_count: int) -> None:
        """Adds requests, by which a canary is judged."""
        for servable in self.world.serving_map.published.values():
            if servable.id.version == version:
                servable.figures = FakeStatistics(request_count=200, failed_count=failed_count)

    # --- The server's threads and the clock -------------------------------------------------------

    @precondition(lambda self: not self.is_brisk)
    @rule()
    def tick(self) -> None:
        self.take_turn()

    def take_turn(self) -> None:
        """Runs a turn of the control thread."""
        self.world.manager.tick()
        self.judge.turn_ended()
        self.no_more_are_ready_than_the_policy_allows()
        # The disk leaves out the versions that were blocked meanwhile.
        self.disk.aspire()

    @precondition(lambda self: not self.is_brisk)
    @rule()
    def load(self) -> None:
        self.world.loaders.run_one()

    @precondition(lambda self: not self.is_brisk)
    @rule()
    def unload(self) -> None:
        self.world.unloaders.run_one()

    @rule(seconds=st.sampled_from([1, 30, RETRY_SECONDS]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds)
        self.go_on()

    @rule()
    def work(self) -> None:
        """Does everything that can be done now: most interesting states come afterwards."""
        for _ in range(3):
            self.take_turn()
            self.world.loaders.run_all()
            for _ in range(len(self.world.unloaders.tasks)):
                self.world.unloaders.run_one()
        self.take_turn()

    def go_on(self) -> None:
        """Works on after an event, if the server is brisk."""
        if self.is_brisk:
            self.work()

    @rule()
    def rest(self) -> None:
        """Ends all failures, after which all aspired versions serve."""
        self.world.loading.failures.clear()
        self.let_go()
        for _ in range(REST_ROUND_COUNT):
            self.work()
            self.world.clock.advance(RETRY_SECONDS)
        self.work()
        assert not self.world.loaders.tasks
        assert not self.world.unloaders.tasks
        self.what_is_wanted_serves()

    def what_is_wanted_serves(self) -> None:
        states, aspired = self.world.states(), self.judge.aspired
        # Failed versions wait for other files, and so do versions that never fitted.
        waiting = {version for version in aspired if states[version] is not AVAILABLE}
        assert all(states[version] is END for version in waiting), (
            f"{waiting} of {aspired} neither serve nor have failed: {states}"
        )
        blocked = waiting & self.judge.blocked
        assert not (blocked and self.judge.room()), (
            f"{blocked} were not tried again though {self.judge.room()} may go: {states}"
        )
        # Ended versions wait for other files, even if memory was the reason.
        blocked_by_memory = {
            item for item in waiting & self.disk.blocked_by_memory if states[item] is not END
        }
        if blocked_by_memory:
            is_full = len(self.disk.resident()) >= self.disk.capacity
            assert is_full, f"{blocked_by_memory} would fit: {states}, {self.disk.capacity} do"
        if aspired and not self.judge.in_state(AVAILABLE):
            assert not (loadable := self.loadable()), f"{loadable}: {states}"

    def loadable(self) -> set[int]:
        """Returns the versions that could serve while all others have failed.

        Not those that did not fit: they wait for other files, even if memory was the reason.
        """
        sound = self.disk.found_at_ns.keys() - self.judge.failed
        return set(self.disk.selection.select(sound).versions)

    # --- Invariants -------------------------------------------------------------------------------

    def no_more_are_ready_than_the_policy_allows(self) -> None:
        """After a tick there are, beside named versions, at most one cover and one kept version;
        none with `resource`.
        """
        surplus = self.judge.surplus(AVAILABLE)
        policy = self.disk.settings.aspired_version_policy
        is_cover = not self.judge.in_state(AVAILABLE) & self.judge.aspired
        cover_count = int(is_cover and policy is not PolicyName.RESOURCE)
        count_max = cover_count + self.judge.kept_count_max()
        is_to_serve = self.judge.in_state(START, LOADING) & self.judge.aspired
        # All versions that could free memory stay until its instant; `rest` checks that this comes.
        is_waiting = (
            policy is not PolicyName.AVAILABILITY and self.judge.jitter_seconds and is_cover
        )
        if not (is_waiting and is_to_serve):
            assert len(surplus) <= max(count_max, 0 if is_to_serve else 1), surplus
        if not self.judge.aspired:
            assert not self.judge.in_state(AVAILABLE)

    @invariant()
    def every_move_is_in_the_table(self) -> None:
        for states in self.world.history.values():
            for old, new in pairwise(states):
                assert new in TRANSITIONS[old] or (old, new) == (END, START)

    @invariant()
    def every_move_is_allowed_by_the_policy(self) -> None:
        assert not self.judge.faults, self.judge.faults[0]

    @invariant()
    def answers_are_for_whoever_asked(self) -> None:
        for answer in self.answers:
            if answer.done() and (error := answer.exception()) is not None:
                assert isinstance(error, MillpondError), error

    @invariant()
    def routing_leads_to_published_versions(self) -> None:
        published = set(self.world.serving_map.versions("m"))
        seen = self.world.serving_map.routings.get("m", Routing())
        assert set(seen.labels.values()) <= published
        assert seen.default_version is None or seen.default_version in published
        if seen.canary_version is not None:
            assert seen.canary_version in published - self.disk.blocked
            assert seen.default_version not in (None, seen.canary_version)

    @invariant()
    def what_was_rolled_back_does_not_answer(self) -> None:
        published = set(self.world.serving_map.versions("m"))
        if published - self.disk.blocked:
            assert self.world.streams.answering("m") in published - self.disk.blocked

    @invariant()
    def no_label_is_lost(self) -> None:
        """A label leads to its version as soon as that serves, and to the former version until
        then.

        It is only removed from a serving version if an operator wants no version at all.
        """
        serving = set(self.world.serving_map.versions("m")) - self.judge.in_state(UNLOADING)
        now = dict(self.world.streams.labels("m"))
        for label, version in self.labels.items():
            if version in serving:
                assert now[label] == version
            elif label in self.effective_labels and self.judge.aspired:
                assert label in now, f"{label} led to {self.effective_labels[label]}"
        self.effective_labels = now

    def teardown(self) -> None:
        """Everything ends, and nothing is left."""
        if not hasattr(self, "world"):
            return
        self.rest()
        self.every_move_is_allowed_by_the_policy()
        self.world.set_labels({})
        self.world.manager.set_aspired("m", ())
        self.world.manager.tick()
        self.world.run_all()
        assert set(self.world.states().values()) <= {END}
        assert not self.world.serving_map.published
        assert all(servable.is_destroyed for servable in self.world.loading.servables)

"""Any sequence of drops, failures, rollbacks and changes: what holds of a model's versions after each."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DoesNotFitBeside, MillpondError, StatusCode
from serving.base.executor import Task
from serving.core.model_settings import CanarySettings, ModelSettings, PolicyName
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    TRANSITIONS,
    UNLOADING,
    AspiredVersion,
    Routing,
    ServableState,
    ServableStatus,
)
from serving.core.version_selection import All, Latest, Specific, VersionSelection, select_unblocked
from tests.unit.fakes import FakeServable, FakeStatistics, permanent, transient
from tests.unit.test_manager import RETRY_SECONDS, World

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
# Of the first loads after a drop: none most often, transient ones up to more than there are retries.
FAILURES: st.SearchStrategy[Failures] = st.one_of(
    st.just([]),
    st.just([permanent]),
    st.lists(st.sampled_from([transient, permanent]), max_size=4),
)
JITTER_SECONDS = 60
# Versions that fit beside each other; the last is more than there are.
CAPACITIES = st.sampled_from([1, 2, 9])
# More than all loads of all versions can want one after another, retries included.
REST_ROUND_COUNT = 15


class DiskAndPolicy:
    """A model's disk, its selection and its memory, as the server's other parts stand for them.

    Aspires as a `FileSystemSource` does: what is selected of what is found and not blocked; an empty
    disk or a version that is missing empties nothing, only a selection of nothing does.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.found_at_ns: dict[int, int] = {}
        self.selection: VersionSelection = Latest(1)
        self.settings = ModelSettings()
        self.capacity = 9
        # Since they were aspired: versions that did not fit beside the others.
        self.refused: set[int] = set()
        # Of those, since the memory was last another one.
        self.blocked_by_memory: set[int] = set()
        # Hears of each load that gets memory, or is refused it.
        self.memory_asked: Callable[[int, bool], None] = lambda version, is_refused: None
        self._aspired: tuple[AspiredVersion, ...] = ()
        world.loading.during = self._take_memory

    @property
    def blocked(self) -> frozenset[int]:
        """The versions that the source was told to leave out."""
        return self.world.blocked_versions.get("m", frozenset())

    def found(self, version: int) -> AspiredVersion:
        return AspiredVersion(
            version=version, directory=f"/m/{version}", found_at_ns=self.found_at_ns[version]
        )

    def aspire(self) -> None:
        """As after a poll, or where selection or blocked_versions are other ones: only a change is told."""
        # As `selectable_versions` of a source: without versions that the selection never takes.
        self.world.on_disk = {
            version for version in self.found_at_ns if self.selection.select([version]).versions
        }
        selected = select_unblocked(self.selection, self.found_at_ns, self.blocked).versions
        aspired = tuple(self.found(version) for version in selected)
        is_kept = not aspired and self.selection != Specific(frozenset())
        if aspired == self._aspired or is_kept:
            return
        self._aspired = aspired
        self.refused.intersection_update(selected)
        self.blocked_by_memory.intersection_update(selected)
        self.world.manager.set_aspired("m", aspired)

    def resident(self) -> list[FakeServable]:
        return [item for item in self.world.loading.servables if not item.is_destroyed]

    def _take_memory(self) -> None:
        version = self.world.loading.loads[-1].version
        is_refused = len(self.resident()) >= self.capacity
        self.memory_asked(version, is_refused)
        if is_refused:
            self.refused.add(version)
            self.blocked_by_memory.add(version)
            raise DoesNotFitBeside(f"m/{version} beside {[item.id for item in self.resident()]}")


class Judge:
    """Looks at every move as it is made. `faults`: those that no policy allows.

    A listener that raises is only logged, so that what it finds is kept here for an invariant.
    """

    def __init__(self, disk: DiskAndPolicy, jitter_seconds: float) -> None:
        self.faults: list[str] = []
        self._disk = disk
        self._world = disk.world
        self.jitter_seconds = jitter_seconds
        self._states: dict[int, ServableState] = {}
        self._started_at_ns: dict[int, int] = {}
        # Refused for want of memory the last time, when nothing could go for them.
        self.blocked: set[int] = set()
        # With the files that are there now.
        self.failed: set[int] = set()
        # The version that answered at the end of the last turn, and when each one ceased to.
        self.answered: int | None = None
        self.ceased_at_ns: dict[int, int] = {}
        self._world.monitor.add_listener(self._moved)
        self._submit = self._world.loaders.submit
        self._world.loaders.submit = self._submitted  # type: ignore[method-assign]
        disk.memory_asked = self._memory_asked

    @property
    def aspired(self) -> set[int]:
        """What is aspired after blocked_versions, as the manager has it by now."""
        stream = self._world.manager._streams.get("m")
        return set(stream.aspired) if stream else set()

    def named(self) -> set[int]:
        """Those that stay because a label leads to them, or for a canary."""
        seen = self._world.router.routing("m")
        pair = (seen.canary_version, seen.default_version) if seen.canary_version else ()
        return {version for version in (*seen.labels.values(), *pair) if version is not None}

    def in_state(self, *states: ServableState) -> set[int]:
        return {version for version, state in self._states.items() if state in states}

    def surplus(self, *states: ServableState) -> set[int]:
        """Versions in one of `states` that are there for nobody's sake."""
        return self.in_state(*states) - self.aspired - self.named()

    def room(self) -> set[int]:
        """What may go for another version; nothing while a label or a canary keeps an old one."""
        return set() if self.named() - self.aspired else self.surplus(AVAILABLE)

    def kept_count_max(self) -> int:
        """Returns how many versions may stay for a rollback alone."""
        settings = self._disk.settings
        is_resource = settings.aspired_version_policy is PolicyName.RESOURCE
        return 1 if settings.keep_previous_seconds > 0 and not is_resource else 0

    def turn_ended(self) -> None:
        """Notes which version answers now, as the manager has seen it."""
        answering = self._world.router.answering("m")
        if self.answered not in (None, answering):
            self.ceased_at_ns[self.answered] = self._world.clock.now_ns()
        self.answered = answering

    def is_put_off(self) -> bool:
        """Whether the swap to come may have to wait, to keep a fleet out of step."""
        coming = self.in_state(START, LOADING) & self.aspired
        return bool(coming) and not any(map(self._is_due, coming))

    def _is_due(self, version: int) -> bool:
        # `World` draws a half of it.
        return self._waited_ns(version) >= self.jitter_seconds / 2 * NS_PER_SECOND

    def _waited_ns(self, version: int) -> int:
        return self._world.clock.now_ns() - self._started_at_ns[version]

    def _memory_asked(self, version: int, is_refused: bool) -> None:
        self.blocked.discard(version)
        if is_refused and not self.room():
            self.blocked.add(version)

    def _submitted(self, task: Task, owner: str = "") -> None:
        """A load is handed to the loaders: the first one of a life, or one more."""
        assert isinstance(task, partial)
        version = task.args[0].id.version
        is_resource = self._disk.settings.aspired_version_policy is PolicyName.RESOURCE
        if is_resource and (surplus := self.surplus(AVAILABLE, UNLOADING)):
            self._fault(f"memory for {version} is asked for beside {surplus}")
        self._submit(task, owner)

    def _moved(self, status: ServableStatus) -> None:
        version, before = status.id.version, self._states.get(status.id.version)
        self._states[version] = status.state
        if status.state is START:
            self._started_at_ns[version] = self._world.clock.now_ns()
        elif status.state is UNLOADING:
            self._judge_unload(version)
        elif (before, status.state) == (START, LOADING):
            self._judge_load(version)
        elif status.state is END and status.health.code not in (
            StatusCode.OK,
            StatusCode.CANCELLED,
        ):
            self.failed.add(version)

    def _fault(self, what: str) -> None:
        policy = self._disk.settings.aspired_version_policy.value
        self.faults.append(
            f"{what} (policy {policy}, aspired {self.aspired}, {dict(self._states)})"
        )

    def _judge_unload(self, version: int) -> None:
        """The last version that serves goes only for one that will serve, by a policy that says so."""
        if version in self.aspired:
            self._fault(f"{version} is unloaded though it is aspired")
        if self._is_way_back(version) and not self._is_kept_long_enough(version):
            self._fault(f"{version} is unloaded before its time though a rollback leads to it")
        if self.in_state(AVAILABLE) or not self.aspired:
            return
        policy = self._disk.settings.aspired_version_policy
        if policy is PolicyName.AVAILABILITY:
            self._fault(f"{version} is unloaded and nothing else serves")
        if policy is PolicyName.AUTO and not self._disk.refused & self.aspired:
            self._fault(f"{version} is unloaded for one that was never refused")
        if self.is_put_off():
            self._fault(f"{version} is unloaded in step with others")
        if not self.in_state(START, LOADING) & self.aspired:
            self._fault(f"{version} is unloaded for nothing that could serve")

    def _is_way_back(self, version: int) -> bool:
        """Whether a rollback of the version that answers leads to `version`, which answered before."""
        answering = self._world.router.answering("m")
        if answering is None or version > answering or version in self._disk.blocked:
            return False
        between = {item for item in self.in_state(AVAILABLE) if version < item < answering}
        is_withdrawn = answering not in self.aspired and bool(
            {item for item in self.in_state(AVAILABLE) & self.aspired if item < answering}
        )
        has_answered = version == self.answered or version in self.ceased_at_ns
        return has_answered and not between - self._disk.blocked and not is_withdrawn

    def _is_kept_long_enough(self, version: int) -> bool:
        """Whether its time is over, or it goes because nothing keeps it or a load needs its memory."""
        is_needed = bool(self._disk.refused & self.aspired)
        if not self.kept_count_max() or not self.aspired or is_needed:
            return True
        now_ns = self._world.clock.now_ns()
        ceased_at_ns = now_ns if version == self.answered else self.ceased_at_ns[version]
        kept_seconds = (now_ns - ceased_at_ns) / NS_PER_SECOND
        return kept_seconds >= self._disk.settings.keep_previous_seconds

    def _judge_load(self, version: int) -> None:
        """A load begins only where the policy has memory for it beside what is there."""
        is_covered = bool(self.in_state(AVAILABLE) & self.aspired)
        count_max = self.kept_count_max() + (0 if is_covered else 1)
        if len(surplus := self.surplus(AVAILABLE)) > count_max:
            self._fault(f"{version} is loaded beside more than {count_max} covers: {surplus}")
        if version in self._disk.blocked and not self.aspired <= self._disk.blocked:
            self._fault(f"{version} is loaded though it was rolled back")
        self._judge_jitter(version)

    def _judge_jitter(self, version: int) -> None:
        if self.in_state(AVAILABLE) and not self._is_due(version):
            waited_ns = self._waited_ns(version)
            self._fault(
                f"{version} is loaded {waited_ns} ns after it was found, in step with others"
            )


class LifeMachine(RuleBasedStateMachine):
    """One model. Each rule is what a person, a disk, a thread or the clock may do next."""

    @initialize(
        is_brisk=st.booleans(),
        is_jittered=st.booleans(),
        capacity=CAPACITIES,
        model_settings=SETTINGS,
    )
    def begin(
        self, is_brisk: bool, is_jittered: bool, capacity: int, model_settings: ModelSettings
    ) -> None:
        """`is_brisk`: the server does all it can after each event, so that a sequence leads far.

        Else its threads take their steps at any time between.
        """
        self.is_brisk = is_brisk
        jitter_seconds = JITTER_SECONDS if is_jittered else 0
        self.world = self.make_world(jitter_seconds)
        # A bug in the control thread is logged and survived; here it should be seen.
        self.world.manager._guarded = lambda call: call()  # type: ignore[method-assign]
        self.disk = DiskAndPolicy(self.world)
        self.judge = Judge(self.disk, jitter_seconds)
        self.disk.capacity = capacity
        self.labels: Mapping[str, int] = {}
        self.effective_labels: Mapping[str, int] = {}
        self.answers: list[Future[Any]] = []
        self.change_settings(model_settings)
        # What is worth seeing begins with a version that serves.
        self.drop(2, [])
        self.work()

    def make_world(self, jitter_seconds: int) -> World:
        """Makes the manager and what it acts on."""
        return World(load_jitter_seconds=jitter_seconds)

    # --- The disk and people ----------------------------------------------------------------------

    @rule(version=VERSIONS, failures=FAILURES)
    def drop(self, version: int, failures: Failures) -> None:
        """A version comes, or its files are replaced; its first loads fail with `failures`."""
        # No two drops are found at the same instant: other files would look like the same.
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
        """As most are."""
        self.drop(version, [])

    @rule(failures=FAILURES)
    def drop_soon_after_a_swap(self, failures: Failures) -> None:
        """A further version comes while the one before may still be kept for a rollback."""
        self.drop_good(3)
        self.work()
        self.drop(4, failures)

    @rule(version=VERSIONS)
    def remove(self, version: int) -> None:
        """The last one too."""
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
        """Nothing is wanted for a while, and nothing serves when the versions come back."""
        selection = self.disk.selection
        self.select(Specific(frozenset()))
        self.work()
        # A label may go with its version here, and only here.
        self.no_label_is_lost()
        self.select(selection)

    @rule(model_settings=SETTINGS)
    def change_settings(self, model_settings: ModelSettings) -> None:
        self.disk.settings = model_settings
        self.world.manager.set_settings("m", model_settings)
        self.go_on()

    @rule(labels=LABELS)
    def move_labels(self, labels: dict[str, int]) -> None:
        self.labels = labels
        self.world.router.set_labels("m", labels)
        self.go_on()

    @rule(is_cold_allowed=st.booleans())
    def roll_back(self, is_cold_allowed: bool) -> None:
        self.answers.append(self.world.manager.rollback("m", is_cold_allowed=is_cold_allowed))
        self.go_on()

    @rule()
    def roll_back_as_the_others_turn_out_broken(self) -> None:
        """Who rolls back cold finds out what the older versions on disk are worth."""
        for version in self.disk.found_at_ns.keys() - self.judge.in_state(AVAILABLE):
            self.drop(version, [permanent] * 4)
        self.roll_back(is_cold_allowed=True)
        self.work()

    @rule(version=VERSIONS)
    def select_one_as_the_retry_of_another_is_due(self, version: int) -> None:
        """Memory for both would be asked for where the one that goes is still there."""
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

    # --- What goes wrong, and what requests do ----------------------------------------------------

    @rule(capacity=CAPACITIES)
    def change_memory(self, capacity: int) -> None:
        self.disk.capacity = capacity
        self.disk.blocked_by_memory.clear()

    @rule(version=VERSIONS)
    def hold(self, version: int) -> None:
        """A request that is slow: its version cannot be freed."""
        for servable in self.world.serving_map.published.values():
            if servable.id.version == version:
                servable.handle_count = 1

    @rule()
    def let_go(self) -> None:
        for servable in self.world.loading.servables:
            servable.handle_count = 0

    @rule(version=VERSIONS, failed_count=st.sampled_from([0, 150]))
    def answer_requests(self, version: int, failed_count: int) -> None:
        """By which a canary is judged."""
        for servable in self.world.serving_map.published.values():
            if servable.id.version == version:
                servable.figures = FakeStatistics(request_count=200, failed_count=failed_count)

    # --- The server's threads and the clock -------------------------------------------------------

    @precondition(lambda self: not self.is_brisk)
    @rule()
    def tick(self) -> None:
        self.take_turn()

    def take_turn(self) -> None:
        """A turn of the control thread."""
        self.world.manager.tick()
        self.judge.turn_ended()
        self.no_more_are_ready_than_the_policy_allows()
        # What was blocked meanwhile is left out.
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
        """Everything that can be done now: most of what is worth seeing comes after it."""
        for _ in range(3):
            self.take_turn()
            self.world.loaders.run_all()
            for _ in range(len(self.world.unloaders.tasks)):
                self.world.unloaders.run_one()
        self.take_turn()

    def go_on(self) -> None:
        """After an event."""
        if self.is_brisk:
            self.work()

    @rule()
    def rest(self) -> None:
        """Whatever has happened: once nothing fails any more, what is wanted serves."""
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
        # Those that have failed wait for other files, and those that never fitted too.
        waiting = {version for version in aspired if states[version] is not AVAILABLE}
        assert all(states[version] is END for version in waiting), (
            f"{waiting} of {aspired} neither serve nor have failed: {states}"
        )
        blocked = waiting & self.judge.blocked
        assert not (blocked and self.judge.room()), (
            f"{blocked} were not tried again though {self.judge.room()} may go: {states}"
        )
        # Those that have ended, for want of memory too, wait for other files.
        blocked_by_memory = {
            item for item in waiting & self.disk.blocked_by_memory if states[item] is not END
        }
        if blocked_by_memory:
            is_full = len(self.disk.resident()) >= self.disk.capacity
            assert is_full, f"{blocked_by_memory} would fit: {states}, {self.disk.capacity} do"
        if aspired and not self.judge.in_state(AVAILABLE):
            assert not (loadable := self.loadable_though_blocked()), f"{loadable}: {states}"

    def loadable_though_blocked(self) -> set[int]:
        """Versions that would serve if nobody had rolled them back, where all others have failed."""
        blocked_versions = self.world.manager._streams["m"].blocked_versions
        rolled_back = {
            version for version, block in blocked_versions.items() if block.is_until_told
        }
        sound = self.disk.found_at_ns.keys() - self.judge.failed
        return set(self.disk.selection.select(sound).versions) if sound <= rolled_back else set()

    # --- What always holds ------------------------------------------------------------------------

    def no_more_are_ready_than_the_policy_allows(self) -> None:
        """After a tick: beside named versions one as cover and one kept, and none by `resource`."""
        surplus = self.judge.surplus(AVAILABLE)
        policy = self.disk.settings.aspired_version_policy
        is_cover = not self.judge.in_state(AVAILABLE) & self.judge.aspired
        cover_count = int(is_cover and policy is not PolicyName.RESOURCE)
        count_max = cover_count + self.judge.kept_count_max()
        has_hope = self.judge.in_state(START, LOADING) & self.judge.aspired
        # All that would make room stays until its instant; `rest` sees that this comes.
        is_waiting = (
            policy is not PolicyName.AVAILABILITY and self.judge.jitter_seconds and is_cover
        )
        if not (is_waiting and has_hope):
            assert len(surplus) <= max(count_max, 0 if has_hope else 1), surplus
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
            assert self.world.router.answering("m") in published - self.disk.blocked

    @invariant()
    def no_label_is_lost(self) -> None:
        """A label leads to its version as soon as that serves, and always to the one before till then.

        Only an operator who wants no version at all takes it from one that serves.
        """
        serving = set(self.world.serving_map.versions("m")) - self.judge.in_state(UNLOADING)
        now = dict(self.world.router.labels("m"))
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
        self.world.router.set_labels("m", {})
        self.world.manager.set_aspired("m", ())
        self.world.manager.tick()
        self.world.run_all()
        assert set(self.world.states().values()) <= {END}
        assert not self.world.serving_map.published
        assert all(servable.is_destroyed for servable in self.world.loading.servables)


TestLifeMachine = LifeMachine.TestCase
TestLifeMachine.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)

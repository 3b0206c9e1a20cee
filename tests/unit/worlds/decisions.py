"""One stream under `decide` alone: no manager, no threads, no map. A sequence of events is drawn from a seed.

After each decision the promises are checked by code that shares nothing with the product's rules.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from serving.base.clock import NS_PER_SECOND, Now
from serving.base.errors import DoesNotFitBeside, FailedPrecondition, MillpondError, StatusCode
from serving.core.blocked_versions import BlockedBy, BlockedVersion, BlockedVersions
from serving.core.model_settings import CanarySettings, GateMode, ModelSettings, PolicyName
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
)
from serving.core.version_selection import All, Latest, Specific, VersionSelection, select_unblocked
from serving.gates.gates import Gate, verdict_of
from serving.manager import blocking, canary_turns, events
from serving.manager.blocked_state import BlockedState
from serving.manager.decision import decide
from serving.manager.harness import RetryPolicy
from serving.manager.rollback import roll_back
from serving.manager.stream import Rules, StreamState
from serving.manager.turn import (
    BlocksChanged,
    Decision,
    DefaultChanged,
    Effect,
    Figures,
    Found,
    LogLine,
    Notice,
    StartLoad,
    StartUnload,
    StopLoad,
    Turn,
)
from tests.unit.fakes.errors import permanent, refused_by_a_gate, transient
from tests.unit.fakes.requests import FakeStatistics

Failures = list[Callable[[], MillpondError]]

VERSIONS = (1, 2, 3, 4)
# The failures of the first loads of a version: mostly none, or more than there are retries.
FAILURES: tuple[Failures, ...] = (
    [],
    [],
    [],
    [],
    [permanent],
    [transient],
    [transient] * 4,
    [refused_by_a_gate],
)
RETRY_SECONDS = 60
KEEP_SECONDS = 30
CRASH_SECONDS = 8
# Far more than the longest way to rest: each version is unloaded, begun and loaded once.
DECISION_COUNT_MAX = 40
# More than all loads of all versions in sequence, retries included.
REST_ROUND_COUNT = 25

SELECTIONS: tuple[VersionSelection, ...] = (
    Latest(1),
    Latest(1),
    Latest(2),
    All(),
    Specific(frozenset({1, 3})),
    Specific(frozenset()),
)
SETTINGS = tuple(
    ModelSettings(
        aspired_version_policy=policy,
        keep_previous_seconds=keep_seconds,
        canary=CanarySettings(weight=weight, request_count=request_count),
    )
    for policy in PolicyName
    for keep_seconds in (0.0, KEEP_SECONDS)
    for weight, request_count in ((0.0, 0), (0.1, 0), (0.1, 100))
)
LABELS: tuple[Mapping[str, int], ...] = (
    {},
    {},
    {"stable": 1},
    {"stable": 2},
    {"stable": 3, "next": 4},
)
RULES = tuple(
    Rules(
        retry=RetryPolicy(retry_count_max=2, interval_ns=RETRY_SECONDS * NS_PER_SECOND),
        swap_jitter_seconds=seconds,
    )
    for seconds in (0.0, 0.0, 60.0)
)


@dataclass
class WhoMayAnswer:
    """The model: which versions may answer, from the blocked, unverified and ready ones."""

    unverified: set[int] = field(default_factory=set)
    answered_before: int | None = None
    # The versions of each label so far, the latest last.
    led_to: dict[str, list[int]] = field(default_factory=dict)

    def fault(
        self, ready: set[int], blocked: set[int], aspired: set[int], wanted: set[int], now: Routing
    ) -> str:
        """Returns why the default is wrong; "" if it is right.

        `wanted` are the versions that are aspired now, and `aspired` those that may be a fallback.
        """
        answering, before = now.default_version, self.answered_before
        self.answered_before = answering
        sound = ready - blocked
        verified = sound - self.unverified
        if verified:
            right = max(verified & wanted or verified)
            return "" if answering == right else f"not {right} of {verified}, aspired {wanted}"
        if sound:
            return "" if answering in sound else f"none of {sound}, which are only unverified"
        may = (ready & aspired) | (ready & {before} if before is not None else set())
        if not may:
            return "" if answering is None else "every version here is blocked"
        return "" if answering in may else f"none of the fallbacks {may}"

    def label_fault(self, label: str, asked: int, ready: set[int], now: Routing) -> str:
        """Returns why the label leads to the wrong version; "" if it leads to the right one."""
        led_to = self.led_to.setdefault(label, [])
        right = next((item for item in (asked, *led_to[:-3:-1]) if item in ready), None)
        if right is None:
            # A label that led nowhere once cannot go back.
            led_to.clear()
        elif right not in led_to[-1:]:
            led_to.append(right)
        seen = now.labels.get(label)
        return "" if seen == right else f"label {label} leads to {seen} and not to {right}"


_CONTAINERS = (
    *("states", "found_at_ns", "loading", "stopped", "unloading"),
    *("has_lacked_memory", "had_room", "requests", "ceased_at_ns", "story"),
    "refused_at_ns",
)


class DecidedStream:
    """A model's disk, threads and clock around `decide`. Each public method is a possible next event."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        # Asks again at each rest, in a part of the sequences: a question takes as long as all checks.
        self.is_asked_twice = seed % 4 == 1
        # The threads end all of their work after each event, so that a sequence leads far.
        self.is_brisk = random.random() < 0.3
        self.now_ns = NS_PER_SECOND
        self.state = StreamState(
            name="m", rules=random.choice(RULES), settings=random.choice(SETTINGS)
        )
        self.due_ns: int | None = None
        self.model = WhoMayAnswer()
        self.states: dict[int, ServableState] = {}
        # The disk: when each version was found, what is selected, what the source was told to leave out.
        self.found_at_ns: dict[int, int] = {}
        self.selection: VersionSelection = random.choice(SELECTIONS[:4])
        self.left_out: frozenset[int] = frozenset()
        self.kept: BlockedVersions = {}
        self.sent: tuple[AspiredVersion, ...] = ()
        # The threads: loads under way, those that were told to stop, and unloads under way.
        self.loading: set[int] = set()
        self.stopped: set[int] = set()
        self.unloading: set[int] = set()
        # Versions whose loads fail, so many times; and the versions that fit beside each other.
        self.broken: dict[int, Failures] = {}
        # When the files were found that gates have refused: a later load might have no predecessor, and pass.
        self.refused_at_ns: dict[int, int] = {}
        self.capacity = random.choice((1, 2, 9, 9))
        self.has_lacked_memory: set[int] = set()
        # Was there a version that could be unloaded for the load of this version, which did not fit?
        self.had_room: dict[int, bool] = {}
        self.requests: dict[int, FakeStatistics] = {}
        # The version that answered at the last rest, and when each one ceased to answer.
        self.answered: int | None = None
        self.ceased_at_ns: dict[int, int] = {}
        # The names of the events so far.
        self.story: list[str] = []
        # Interesting sequences begin with a version that serves.
        self.drop(2, [])
        self.finish()

    def fork(self) -> "DecidedStream":
        """Returns a copy that goes its own way from here."""
        other = copy(self)
        other.random = Random(self.random.getrandbits(64))
        other.model = WhoMayAnswer(
            unverified=set(self.model.unverified),
            answered_before=self.model.answered_before,
            led_to={label: [*led_to] for label, led_to in self.model.led_to.items()},
        )
        other.broken = {version: [*failures] for version, failures in self.broken.items()}
        for name in _CONTAINERS:
            setattr(other, name, getattr(self, name).copy())
        return other

    # --- Events -----------------------------------------------------------------------------------

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        """Draws the next event."""
        draw = self.random.random()
        for share, event in _EVENTS:
            draw -= share
            if draw < 0:
                self.story.append(event.__name__)
                event(self)
                if self.is_brisk:
                    self.finish()
                return
        raise AssertionError("the shares of the events add up to 1")

    def drop(self, version: int, failures: Failures) -> None:
        """Adds a version, or replaces its files."""
        self.now_ns += 1
        self.found_at_ns[version] = self.now_ns
        self.broken[version] = failures
        if version in self.left_out or self.random.random() < 0.5:
            self.event(lambda turn: events.found_anew(turn, version))
        self.poll()

    def poll(self) -> None:
        """Aspires like a source: the selected of the found versions, without the blocked ones."""
        selected = select_unblocked(self.selection, self.found_at_ns, self.left_out).versions
        found = tuple(
            AspiredVersion(version=item, directory="d", found_at_ns=self.found_at_ns[item])
            for item in selected
        )
        is_kept = not found and self.selection != Specific(frozenset())
        if found != self.sent and not is_kept:
            self.sent = found
            self.event(lambda turn: events.aspire(turn, found))

    def draw_drop(self) -> None:
        self.drop(self.random.choice(VERSIONS), [*self.random.choice(FAILURES)])

    def swap_twice(self) -> None:
        """Adds a further version while the one before may still be kept for a rollback."""
        self.drop(3, [])
        self.finish()
        self.drop(4, [*self.random.choice(FAILURES)])

    def roll_back_as_the_others_are_broken(self) -> None:
        """A cold rollback finds out which of the older versions on disk still load."""
        for version in sorted(self.found_at_ns.keys() - self.in_state(AVAILABLE)):
            self.drop(version, [permanent] * 4)
        self.operate(lambda turn: roll_back(turn, is_cold_allowed=True))
        self.finish()

    def roll_back_past_a_refused_version(self) -> None:
        """A cold rollback may find the version before on disk, which gates have refused."""
        self.drop(3, [refused_by_a_gate])
        self.finish()
        self.drop(4, [])
        self.finish()
        self.operate(lambda turn: roll_back(turn, is_cold_allowed=True))
        self.finish()

    def move_label(self) -> None:
        """Moves a label from one ready version to another."""
        for version in self.state.ready_versions[-2:]:
            labels = {"stable": version}
            self.event(lambda turn, labels=labels: events.set_labels(turn, labels))  # type: ignore[misc]

    def draw_removal(self) -> None:
        self.found_at_ns.pop(self.random.choice(VERSIONS), None)
        self.poll()

    def draw_selection(self) -> None:
        self.selection = self.random.choice(SELECTIONS)
        self.poll()

    def draw_settings(self) -> None:
        settings = self.random.choice(SETTINGS)
        self.event(lambda turn: events.set_settings(turn, settings))

    def draw_labels(self) -> None:
        labels = self.random.choice(LABELS)
        led_to = self.model.led_to
        self.model.led_to = {key: item for key, item in led_to.items() if key in labels}
        self.event(lambda turn: events.set_labels(turn, labels))

    def draw_rollback(self) -> None:
        is_cold = self.random.random() < 0.6
        self.operate(lambda turn: roll_back(turn, is_cold_allowed=is_cold))

    def draw_promotion(self) -> None:
        self.operate(canary_turns.promote)

    def draw_allowance(self) -> None:
        version = self.random.choice(VERSIONS)
        if version in self.state.blocks:
            self.refused_at_ns.pop(version, None)
        self.operate(lambda turn: blocking.allow(turn, version))

    def draw_requests(self) -> None:
        """Adds requests, by which a canary is judged."""
        version = self.random.choice(VERSIONS)
        before = self.requests.get(version, FakeStatistics(0, 0))
        self.requests[version] = replace(
            before,
            request_count=before.request_count + 200,
            failed_count=before.failed_count + self.random.choice((0, 0, 150)),
            latency_ns_p999=self.random.choice((1_000_000, 1_000_000, 9_000_000)),
        )

    def draw_capacity(self) -> None:
        self.capacity = self.random.choice((1, 2, 9))

    def draw_time(self) -> None:
        self.pass_time(self.random.choice((1, KEEP_SECONDS, RETRY_SECONDS)) * NS_PER_SECOND)

    def draw_due_time(self) -> None:
        if self.due_ns is not None:
            self.pass_time(max(0, self.due_ns - self.now_ns))

    def pass_time(self, ns: int) -> None:
        self.now_ns += ns
        if self.due_ns is not None and self.due_ns <= self.now_ns:
            self.turn()

    def draw_load_end(self) -> None:
        if self.loading:
            self.end_load(self.random.choice(sorted(self.loading)))

    def draw_unload_end(self) -> None:
        if self.unloading:
            version = self.random.choice(sorted(self.unloading))
            self.unloading.remove(version)
            self.event(lambda turn: events.unloaded(turn, version))
            for harness in self.state.harnesses.values():
                if harness.status.health.code is StatusCode.RESOURCE_EXHAUSTED:
                    is_waiting = (harness.retry_at_ns or 0) > self.now_ns
                    assert not is_waiting, f"{harness.id} waits though memory was freed"

    def finish(self) -> None:
        """Ends all loads and unloads that are under way, and those that follow."""
        for _ in range(DECISION_COUNT_MAX):
            if not (self.loading or self.unloading):
                return
            self.draw_load_end()
            self.draw_unload_end()
        raise AssertionError("loads and unloads follow one another without end")

    def restart(self) -> None:
        """The process ends. The next one has the blocks that were kept, and perhaps one of a crash."""
        blocks = dict(self.kept)
        answered = self.state.routing.default_version
        if answered is not None and self.random.random() < 0.5:
            wall_ns = self.now_ns + CRASH_SECONDS * NS_PER_SECOND
            blocks[answered] = BlockedVersion(by=BlockedBy.CRASH, not_before_wall_ns=wall_ns)
        self.state = StreamState(
            name="m",
            rules=self.state.rules,
            settings=self.state.settings,
            labels=self.state.labels,
            blocks=BlockedState(blocks),
        )
        self.model, self.states, self.sent = WhoMayAnswer(), {}, ()
        self.refused_at_ns = {}
        self.loading, self.stopped, self.unloading = set(), set(), set()
        self.requests, self.due_ns = {}, None
        self.answered, self.ceased_at_ns = None, {}
        self.kept, self.left_out = blocks, frozenset(blocks)
        for version in sorted(self.found_at_ns):
            self.event(lambda turn, version=version: events.found_anew(turn, version))  # type: ignore[misc]
        self.poll()

    def rest(self) -> None:
        """Ends all failures, after which all aspired versions serve that may."""
        self.broken.clear()
        for _ in range(REST_ROUND_COUNT):
            self.finish()
            self.poll()
            self.pass_time(RETRY_SECONDS * NS_PER_SECOND)
        self.finish()
        self.what_is_aspired_serves()

    # --- Applying ---------------------------------------------------------------------------------

    def event(self, change: Callable[[Turn], Any], found: Found | None = None) -> None:
        """Applies an event and brings the stream to rest."""
        turn = self.make_turn(found)
        change(turn)
        self.apply(turn.decision())
        self.turn()

    def operate(self, change: Callable[[Turn], Any]) -> None:
        """Applies an operator's request, which may be refused: then nothing has changed."""
        if self.state.exists:
            turn = self.make_turn(self.on_disk())
            try:
                change(turn)
            except FailedPrecondition:
                return
            self.apply(turn.decision())
            self.turn()
            self.poll()

    def make_turn(self, found: Found | None) -> Turn:
        figures = Figures(drawn=self.random.random())
        return Turn(self.state, Now(self.now_ns, self.now_ns), found or self.found(), figures)

    def found(self) -> Found:
        """Returns what the manager asks a source for: nothing without blocks."""
        return self.on_disk() if self.state.blocks else Found()

    def on_disk(self) -> Found:
        """Returns the versions on disk that the selection could take."""
        found = frozenset(self.found_at_ns)
        if isinstance(self.selection, Specific):
            found &= self.selection.versions
        return Found(found)

    def figures(self) -> Figures:
        ready = self.state.ready_versions if self.state.unverified else ()
        none = FakeStatistics(0, 0)
        return Figures({key: self.requests.get(key, none) for key in ready}, self.random.random())

    def turn(self) -> None:
        """Decides until the stream is at rest, which comes soon and stays."""
        found, figures, now = self.found(), self.figures(), Now(self.now_ns, self.now_ns)
        for _ in range(DECISION_COUNT_MAX):
            decision = decide(self.state, found, figures, now)
            self.apply(decision)
            if decision.is_rest:
                again = decide(self.state, found, figures, now) if self.is_asked_twice else decision
                self.check_rest(decision, again)
                return
        raise AssertionError(f"no rest after {DECISION_COUNT_MAX} decisions")

    def check_rest(self, decision: Decision, again: Decision) -> None:
        """A stream at rest stays at rest, until an event or a later time."""
        self.due_ns = decision.due_ns
        assert self.due_ns is None or self.due_ns > self.now_ns, "due again at once"
        assert not again.statuses, again.statuses
        assert not again.effects, again.effects
        assert again is decision or not again.notices, again.notices
        assert again.state == self.state
        assert again.due_ns == self.due_ns
        answering = self.state.routing.default_version
        if self.answered not in (None, answering):
            self.ceased_at_ns[self.answered] = self.now_ns
        self.answered = answering
        self.parts_are_in_order()
        self.no_more_are_ready_than_the_policy_allows()

    def apply(self, decision: Decision) -> None:
        before, self.state = self.state, decision.state
        for notice in decision.notices:
            self.notice(notice)
        unloaded = decision.unloaded_version
        retired = [status.id.version for status in decision.statuses_before]
        assert retired == ([] if unloaded is None else [unloaded])
        if unloaded is not None:
            assert [status.id.version for status in decision.statuses] == [unloaded]
            assert decision.effects == (StartUnload(unloaded),)
            self.judge_unload(before, unloaded)
            coming = self.state.aspired.keys() & self.in_state(START, LOADING)
            if coming and not self.state.ready_versions:
                # Its model has no version until that load is done, so no other model may have the memory.
                assert self.state.harnesses[unloaded].makes_room, f"{unloaded} makes no room"
        for status in decision.statuses:
            self.record(status.id.version, status.state)
        for effect in decision.effects:
            self.act(effect)
        self.who_may_answer(before)
        if self.state.blocks is not before.blocks:
            self.blocks_are_kept()

    def notice(self, notice: Notice) -> None:
        match notice:
            case BlocksChanged(blocks):
                self.left_out, self.kept = blocks.left_out, blocks.rolled_back
            case DefaultChanged(version, _, how):
                assert self.state.routing.default_version == version, how
            case LogLine(_, "canary_promoted", fields):
                self.model.unverified.discard(fields["version"])

    def act(self, effect: Effect) -> None:
        match effect:
            case StartLoad(version):
                self.start_load(version)
            case StopLoad(version):
                assert version in self.loading
                self.stopped.add(version)
            case StartUnload(version):
                assert self.states[version] is UNLOADING
                self.unloading.add(version)

    def record(self, version: int, state: ServableState) -> None:
        old = self.states.get(version, END)
        is_legal = state is START if old is END else old is state or state in TRANSITIONS[old]
        assert is_legal, f"{version}: {old.name} to {state.name}"
        self.states[version] = state
        if state is START:
            self.has_lacked_memory.discard(version)
            self.had_room.pop(version, None)

    def start_load(self, version: int) -> None:
        assert version not in self.loading | self.unloading, f"{version} is loaded twice"
        assert self.states[version] is LOADING
        aspired = set(self.state.aspired)
        blocked = self.state.blocks.versions
        assert version in aspired, f"{version} is loaded though it is not aspired"
        others = aspired - blocked - self.in_state(END)
        assert version not in blocked or not others, f"{version} is loaded though blocked"
        is_refused = self.refused_at_ns.get(version, 0) == self.found_at_ns.get(version)
        assert not is_refused, f"{version} is loaded again though gates refused it"
        if self.state.settings.aspired_version_policy is PolicyName.RESOURCE:
            beside = self.surplus(AVAILABLE, UNLOADING)
            assert not beside, f"memory for {version} is asked for beside {beside}"
        self.loading.add(version)
        self.stopped.discard(version)

    def end_load(self, version: int) -> None:
        """The outcome of a load: it was stopped, does not fit, fails, or serves."""
        self.loading.remove(version)
        self.had_room.pop(version, None)
        resident = self.in_state(AVAILABLE, UNLOADING) | self.loading
        error: MillpondError | None = None
        if version not in self.stopped and len(resident) >= self.capacity:
            error = DoesNotFitBeside(f"{version} beside {resident}")
            self.has_lacked_memory.add(version)
            self.had_room[version] = bool(self.room())
        elif failures := self.broken.get(version):
            error = failures.pop()()
        elif version in self.stopped:
            # The manager frees it, even if it was stopped too late.
            error = transient("it was stopped")
        if error is not None:
            self.event(lambda turn: self.fail(version, error, turn))
        else:
            self.requests.pop(version, None)
            self.event(partial(self.publish, version))
        self.poll()

    def fail(self, version: int, error: MillpondError, turn: Turn) -> None:
        """The load of a version has failed, perhaps because an enforced gate refused the version."""
        harness = turn.state.harnesses[version]
        if isinstance(error, FailedPrecondition):
            verdict = verdict_of(Gate.FINITE, GateMode.ENFORCE, ["NaN"])
            turn.state = turn.state.with_harness(harness.gate_ended(verdict))
            if not harness.is_cancelled:
                self.refused_at_ns[version] = harness.aspired.found_at_ns
        events.load_failed(turn, version, error)

    def publish(self, version: int, turn: Turn) -> None:
        """The load of a version has ended, and the serving map takes the version."""
        events.loaded(turn, version, None)
        events.published(turn, version, 0.0, self.now_ns)

    # --- Promises ---------------------------------------------------------------------------------

    def who_may_answer(self, before: StreamState) -> None:
        state, routing, ready = self.state, self.state.routing, self.in_state(AVAILABLE)
        is_same = routing is before.routing and state.harnesses is before.harnesses
        is_same = is_same and state.aspired is before.aspired
        if is_same and state.blocks is before.blocks and state.labels is before.labels:
            return
        assert ready == set(state.ready_versions)
        blocked, canary = set(state.blocks.versions), routing.canary_version
        # A version that is published as a canary is unverified until it is promoted or retired.
        new = ready - set(before.ready_versions)
        self.model.unverified = self.model.unverified & ready | state.unverified & new
        if canary is not None:
            assert canary in ready - blocked, f"canary {canary} of {ready}, blocked {blocked}"
            assert routing.default_version not in (None, canary)
        assert self.model.unverified == state.unverified
        # A version that was the fallback as its load ended serves, though another one is awaited.
        aspired = state.aspired.keys() | before.aspired.keys() & new
        fault = self.model.fault(ready, blocked, aspired, {*state.aspired}, routing)
        assert not fault, f"{routing.default_version} answers: {fault}"
        for label, version in state.labels.items():
            fault = self.model.label_fault(label, version, ready, routing)
            assert not fault, fault
        assert routing.labels.keys() <= state.labels.keys()

    def blocks_are_kept(self) -> None:
        blocks = self.state.blocks
        assert blocks.rolled_back == self.kept
        if self.state.exists and blocks:
            assert blocks.left_out == self.left_out

    def parts_are_in_order(self) -> None:
        """No part of the state outlasts its reason."""
        state, ready = self.state, self.in_state(AVAILABLE)
        blocks = state.blocks
        assert state.canary is None or state.canary.version not in blocks, "a blocked canary"
        if ready - blocks.versions:
            assert blocks.fallback is None, f"a fallback beside {ready - blocks.versions}"
        pressing = state.pressure.pressing_version
        if pressing is not None:
            assert pressing in self.in_state(START, LOADING) & state.aspired.keys(), "past pressure"

    def judge_unload(self, before: StreamState, version: int) -> None:
        """The last version that serves leaves only for one that will serve, by a policy that allows it."""
        aspired = self.state.aspired
        assert version not in aspired, f"{version} is unloaded though it is aspired"
        if not aspired:
            return
        assert version not in before.routing.labels.values(), f"{version} has a label"
        if self.is_way_back(before, version):
            assert self.is_kept_long_enough(version), f"{version}, the way back, goes too early"
        if self.in_state(AVAILABLE) - {version}:
            return
        policy = before.settings.aspired_version_policy
        assert policy is not PolicyName.AVAILABILITY, f"{version} goes and nothing else serves"
        coming = self.in_state(START, LOADING) & aspired.keys()
        assert coming, f"{version} is unloaded for nothing that could serve"
        if policy is PolicyName.AUTO:
            assert self.has_lacked_memory & coming, f"{version} goes for one that was never refused"
            named = self.named() & self.in_state(AVAILABLE) - aspired.keys()
            assert not named - {version}, f"{version} goes though a label or a canary keeps {named}"

    def is_way_back(self, before: StreamState, version: int) -> bool:
        """Returns True if a rollback of the answering version leads to `version`, which answered before."""
        answering = before.routing.default_version
        if answering is None or version > answering or version in self.state.blocks:
            return False
        ready = self.in_state(AVAILABLE)
        between = {
            item for item in ready if version < item < answering
        } - self.state.blocks.versions
        aspired = self.state.aspired.keys()
        is_withdrawn = (
            answering not in aspired and min(ready & aspired, default=answering) < answering
        )
        has_answered = version == self.answered or version in self.ceased_at_ns
        return has_answered and not between and not is_withdrawn

    def is_kept_long_enough(self, version: int) -> bool:
        """Returns True if its time is over, or if nothing keeps it or a load needs its memory."""
        settings = self.state.settings
        is_resource = settings.aspired_version_policy is PolicyName.RESOURCE
        if is_resource or self.has_lacked_memory & self.state.aspired.keys():
            return True
        ceased_at_ns = self.now_ns if version == self.answered else self.ceased_at_ns[version]
        return self.now_ns - ceased_at_ns >= settings.keep_previous_seconds * NS_PER_SECOND

    def no_more_are_ready_than_the_policy_allows(self) -> None:
        """At rest there are, beside named versions, at most one cover and one kept version; none with
        `resource`.
        """
        surplus, aspired = self.surplus(AVAILABLE), self.state.aspired.keys()
        if not aspired:
            assert not self.in_state(AVAILABLE), "a version stays though none is aspired"
        if not surplus:
            return
        settings = self.state.settings
        is_resource = settings.aspired_version_policy is PolicyName.RESOURCE
        is_cover = not self.in_state(AVAILABLE) & aspired
        kept_count = int(settings.keep_previous_seconds > 0 and not is_resource)
        count_max = int(is_cover and not is_resource) + kept_count
        is_coming = self.in_state(START, LOADING) & aspired
        is_jittered = self.state.rules.swap_jitter_seconds > 0
        is_waiting = settings.aspired_version_policy is not PolicyName.AVAILABILITY and is_jittered
        if not (is_waiting and is_cover and is_coming):
            assert len(surplus) <= max(count_max, 0 if is_coming else 1), surplus

    def what_is_aspired_serves(self) -> None:
        aspired = self.state.aspired.keys()
        waiting = {item for item in aspired if self.states[item] is not AVAILABLE}
        stuck = {item for item in waiting if self.states[item] is not END}
        may_wait = (
            stuck <= self.has_lacked_memory and len(self.in_state(AVAILABLE)) >= self.capacity
        )
        assert not stuck or may_wait, f"{stuck} of {[*aspired]} neither serve nor have failed"
        had_none = {item for item in waiting - stuck if not self.had_room.get(item, True)}
        assert not (had_none and self.room()), f"{had_none} have room: {self.room()} may go"

    def in_state(self, *states: ServableState) -> set[int]:
        return {version for version, state in self.states.items() if state in states}

    def room(self) -> set[int]:
        """Returns the versions that may leave for another one.

        None may leave while a label or a canary keeps an old one.
        """
        kept = self.named() & self.in_state(AVAILABLE) - self.state.aspired.keys()
        return set() if kept else self.surplus(AVAILABLE)

    def surplus(self, *states: ServableState) -> set[int]:
        """Returns the versions in one of `states` that are neither aspired nor named."""
        return self.in_state(*states) - self.state.aspired.keys() - self.named()

    def named(self) -> set[int]:
        """Returns the versions that a label leads to, and a canary with the version beside it."""
        routing = self.state.routing
        named = set(routing.labels.values())
        if routing.canary_version is not None:
            named |= {routing.canary_version, routing.default_version or 0}
        return named


_EVENTS: tuple[tuple[float, Callable[[DecidedStream], None]], ...] = (
    (0.12, DecidedStream.draw_drop),
    (0.03, DecidedStream.swap_twice),
    (0.02, DecidedStream.roll_back_as_the_others_are_broken),
    (0.03, DecidedStream.move_label),
    (0.03, DecidedStream.draw_removal),
    (0.05, DecidedStream.draw_selection),
    (0.05, DecidedStream.draw_settings),
    (0.05, DecidedStream.draw_labels),
    (0.06, DecidedStream.draw_rollback),
    (0.04, DecidedStream.draw_promotion),
    (0.05, DecidedStream.draw_allowance),
    (0.07, DecidedStream.draw_requests),
    (0.02, DecidedStream.draw_capacity),
    (0.06, DecidedStream.draw_time),
    (0.06, DecidedStream.draw_due_time),
    (0.10, DecidedStream.draw_load_end),
    (0.08, DecidedStream.draw_unload_end),
    (0.04, DecidedStream.finish),
    (0.02, DecidedStream.roll_back_past_a_refused_version),
    (0.02, DecidedStream.restart),
)


SEGMENTS = (7, 3, 3, 3, 3, 2, 2, 2, 2, 1)
"""The events between two forks. A sequence has all of them, one after another."""

SEQUENCE_COUNT = 2 ** (len(SEGMENTS) - 1)
"""The sequences of one tree."""


def run_tree(seed: int) -> None:
    """Runs SEQUENCE_COUNT sequences that begin alike: after each segment one fork goes two ways.

    A state is a value, so the beginning that sequences share is decided and checked once. Every eighth sequence
    comes to rest at its end. An error names the seed, which repeats it, and the events.
    """
    streams = [DecidedStream(seed)]
    for number, event_count in enumerate(SEGMENTS):
        if number > 0:
            streams = [way for stream in streams for way in (stream, stream.fork())]
        for stream in streams:
            _run(seed, stream, partial(DecidedStream.steps, count=event_count))
    for stream in streams[::8]:
        _run(seed, stream, DecidedStream.rest)


def _run(seed: int, stream: DecidedStream, run: Callable[[DecidedStream], object]) -> None:
    try:
        run(stream)
    except AssertionError as error:
        story = ", ".join(stream.story)
        raise AssertionError(f"tree {seed}: {error} (events: {story})") from error

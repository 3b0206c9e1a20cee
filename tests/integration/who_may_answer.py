"""Compares any sequence of events with a small model of the versions that may answer, on the native
serving map.

    python -m tests.integration.who_may_answer EXPORT CASE_COUNT

runs CASE_COUNT sequences. The manager and its decisions are the product's, the loads are fakes, and
each version is a real servable of EXPORT. After every snapshot of the map, the map itself is asked
which version answers. This runs in a process of its own: the data plane cannot share one with
TensorFlow's Python package.
"""

import os
import sys
from collections.abc import Callable, Mapping

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from serving.core.servable import UNLOADING, Routing
from serving.data_plane.plane import RuntimeOptions, native_module
from serving.data_plane.servables import Servable, ServingMap
from serving.manager.stream import StreamState
from serving.manager.turn import Decision, LogLine
from tests.unit.fakes.servables import FakeServable, FakeServingMap
from tests.unit.worlds.life_machine import LifeMachine
from tests.unit.worlds.manager import World

NAME = "m"
VERSIONS = range(1, 5)
STEP_COUNT = 30


class Servables:
    """One real servable for each version, published again and again: loads would take most of the
    time.
    """

    def __init__(self, export: str) -> None:
        self._plane = native_module()
        self._plane.initialize(RuntimeOptions(intra_op_thread_count=1, inter_op_thread_count=1))
        self.by_version = {version: self._load(export, version) for version in VERSIONS}
        self.new_map()

    def _load(self, export: str, version: int) -> Servable:
        load = self._plane.SavedModelLoad(NAME, version, export, ["serve"])
        load.read_graph()
        load.create_session()
        load.restore()
        load.run_init()
        load.make_callables()
        return load.finish()

    def new_map(self) -> None:
        """Begins with an empty map."""
        self.map = self._plane.ServingMap()

    def publish(self, version: int, routing: Routing) -> None:
        self.map.publish(self.by_version[version], routing)

    def retire(self, version: int, routing: Routing) -> None:
        self.map.retire(NAME, version, routing)
        assert self.by_version[version].quiesce(10)

    def clear(self) -> None:
        """Retires versions that a failed sequence left published."""
        for version in self.map.versions(NAME):
            self.retire(version, Routing())


class WhoMayAnswer:
    """The model: computes the versions that may answer from the blocked, unverified and published
    ones.

    It has no code in common with the product.
    """

    def __init__(self) -> None:
        self.unverified: set[int] = set()
        self.answered_before: int | None = None
        # The versions of each label so far, the latest last.
        self.led_to: dict[str, list[int]] = {}

    def fault(
        self, published: set[int], blocked: set[int], aspired: set[int], answering: int | None
    ) -> str:
        """Returns why `answering` is wrong for requests without a version; "" if it is right."""
        before, self.answered_before = self.answered_before, answering
        sound = published - blocked
        verified = sound - self.unverified
        if verified:
            # A version that is not aspired answers only until one that is can.
            may = verified & aspired or verified
            return "" if answering == max(may) else f"not the highest of {may}"
        if sound:
            return "" if answering in sound else f"none of {sound}, which are only unverified"
        # Documented fallbacks: a version that serves although it is blocked, and one that
        # answers already.
        may = (published & aspired) | (published & {before} if before is not None else set())
        if not may:
            return "" if answering is None else "every version here is blocked"
        return "" if answering in may else f"none of the fallbacks {may}"

    def label_fault(
        self, label: str, wanted: int, published: set[int], answering: int | None
    ) -> str:
        """Returns why `answering` is wrong for requests with `label`; "" if it is right."""
        led_to = self.led_to.setdefault(label, [])
        choices = [wanted, *led_to[:-3:-1]]
        right = next((version for version in choices if version in published), None)
        if right is None:
            # A label that led nowhere once cannot go back.
            led_to.clear()
        elif right not in led_to[-1:]:
            led_to.append(right)
        return "" if answering == right else f"label {label} should lead to {right} of {choices}"


class CheckedMap(FakeServingMap):
    """Records events in front of the native map."""

    def __init__(self, servables: Servables) -> None:
        super().__init__()
        self.model = WhoMayAnswer()
        self.snapshot_count = 0
        self.look: Callable[[Routing], None] = lambda routing: None
        self._servables = servables

    @property
    def native(self) -> ServingMap:
        return self._servables.map

    def publish(self, servable: FakeServable, routing: Routing) -> None:
        self._servables.publish(servable.id.version, routing)
        super().publish(servable, routing)
        if routing.canary_version == servable.id.version:
            self.model.unverified.add(servable.id.version)
        self.look(routing)

    def retire(self, name: str, version: int, routing: Routing) -> None:
        self._servables.retire(version, routing)
        super().retire(name, version, routing)
        self.model.unverified.discard(version)
        self.look(routing)

    def set_routing(self, name: str, routing: Routing) -> None:
        self.native.set_routing(name, routing)
        super().set_routing(name, routing)
        self.look(routing)


class Machine(LifeMachine):
    """The events of a model's life; see LifeMachine."""

    servables: Servables
    snapshot_count = 0

    def make_world(self, jitter_seconds: int) -> World:
        self.servables.clear()
        self.servables.new_map()
        self.checked = CheckedMap(self.servables)
        world = World(load_jitter_seconds=jitter_seconds, serving_map=self.checked)
        self.decided = world.streams.of(NAME)
        self._listen(world)
        self.checked.look = lambda routing: self.look(world, routing)
        return world

    def _listen(self, world: World) -> None:
        """Records promotions before the map shows them, and labels as they are requested."""
        manager, model = world.manager, self.checked.model
        show, publish = manager._show, manager._publish
        self.wanted_labels: Mapping[str, int] = {}

        def note(decision: Decision) -> None:
            for notice in decision.notices:
                if isinstance(notice, LogLine) and notice.event == "canary_promoted":
                    model.unverified.discard(notice.fields["version"])
            labels = decision.state.labels
            if labels != self.wanted_labels:
                self.wanted_labels = labels
                led_to = model.led_to.items()
                model.led_to = {key: item for key, item in led_to if key in labels}
            self.decided = decision.state

        def shown(before: StreamState, decision: Decision) -> None:
            note(decision)
            show(before, decision)

        def published(decision: Decision) -> None:
            # The decision on a loaded version is only published, because the map has the version already.
            note(decision)
            publish(decision)

        manager._show = shown  # type: ignore[method-assign]
        manager._publish = published  # type: ignore[method-assign]

    def look(self, world: World, routing: Routing) -> None:
        """Queries the native map right after it changed."""
        Machine.snapshot_count += 1
        # The state that the snapshot belongs to: a version is published before its state is.
        blocked, aspired = set(self.decided.blocks.versions), set(self.decided.aspired)
        published = set(self.checked.native.versions(NAME))
        self._check_retiring(world, published)
        model, native = self.checked.model, self.checked.native
        fault = model.fault(published, blocked, aspired, native.answering(NAME))
        facts = f"{published=} {blocked=} {aspired=} {model.unverified=} {routing}"
        assert not fault, f"{native.answering(NAME)} answers: {fault}; {facts}"
        self._check_canary(routing, published, blocked)
        for label, version in self.wanted_labels.items():
            fault = model.label_fault(label, version, published, native.answering(NAME, label))
            assert not fault, f"{fault}; {facts}"

    def _check_retiring(self, world: World, published: set[int]) -> None:
        leaving = {version for version, state in world.states().items() if state is UNLOADING}
        assert not leaving & published, f"{leaving & published} can be found while they unload"

    def _check_canary(self, routing: Routing, published: set[int], blocked: set[int]) -> None:
        canary = routing.canary_version
        if canary is not None:
            assert canary in published - blocked, f"{canary} of {routing}"
            assert routing.default_version not in (None, canary), routing


def main(export: str, case_count: int, *, is_long: bool) -> None:
    Machine.servables = Servables(export)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=case_count,
            stateful_step_count=STEP_COUNT,
            deadline=None,
            # The short form draws the same sequences each time, and the long form new ones.
            derandomize=not is_long,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{case_count} cases, {Machine.snapshot_count} snapshots")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), is_long=os.environ.get("MILLPOND_SOAK") == "1")

"""Coordinators that are cut off, stall, end and start: one leads at a time, and the fleet goes on."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.fleet.worlds.coordinators import NAME, CoordinatorWorld, Process

COORDINATOR_COUNT_MAX = 3
RATES = st.sampled_from([0.98, 1.0, 1.02])


class CoordinatorSequences(RuleBasedStateMachine):
    """`CoordinatorWorld` checks the promises at each grant and each write, and raises BrokenPromise."""

    @initialize(server_count=st.integers(1, 5), rates=st.lists(RATES, min_size=1, max_size=3))
    def begin(self, server_count: int, rates: list[float]) -> None:
        self.world = CoordinatorWorld(server_count)
        self.version = 1
        self.kept: Any = None
        for number, rate in enumerate(rates):
            self.world.add(rate, 1_000 * number)

    def process(self, number: int) -> Process:
        processes = [*self.world.processes.values()]
        return processes[number % len(processes)]

    def has_processes(self) -> bool:
        return bool(self.world.processes)

    @rule(seconds=st.integers(1, 25))
    def wait(self, seconds: int) -> None:
        self.world.run(seconds)

    @rule()
    def drop(self) -> None:
        self.version += 1
        self.world.drop(self.version)

    @precondition(has_processes)
    @rule(number=st.integers(0, 2), is_cut=st.booleans())
    def cut(self, number: int, is_cut: bool) -> None:
        self.process(number).link.is_cut = is_cut

    @precondition(has_processes)
    @rule(number=st.integers(0, 2), is_losing=st.booleans())
    def lose_answers(self, number: int, is_losing: bool) -> None:
        self.process(number).link.loses_answers = is_losing

    @precondition(has_processes)
    @rule(number=st.integers(0, 2))
    def hold_next_write(self, number: int) -> None:
        self.process(number).link.is_holding = True

    @precondition(has_processes)
    @rule(number=st.integers(0, 2))
    def let_held_writes_arrive(self, number: int) -> None:
        link = self.process(number).link
        for call in link.held:
            try:
                call()
            except OSError:
                continue
        link.held.clear()
        self.world.check_state()

    @precondition(has_processes)
    @rule(
        number=st.integers(0, 2),
        kind=st.sampled_from(["lease", "state", "grant"]),
        seconds=st.integers(1, 40),
    )
    def stall_before_next_call(self, number: int, kind: str, seconds: int) -> None:
        self.process(number).stalls[kind] = seconds

    @rule(kind=st.sampled_from(["lease", "state", "grant", "cut"]), seconds=st.integers(10, 30))
    def disturb_leaders_with_work(self, kind: str, seconds: int) -> None:
        """Gives each leader grants to repeat, and takes the cluster or the processor away from it."""
        self.world.is_deaf = True
        for name in self.world.leaders:
            process = self.world.processes[name]
            if kind == "cut":
                self.drop()
                self.world.run(2)
                process.link.is_cut = True
            else:
                process.stalls[kind] = seconds
        self.drop()
        self.world.run(seconds)

    @rule(is_deaf=st.booleans())
    def lose_grants(self, is_deaf: bool) -> None:
        self.world.is_deaf = is_deaf

    @precondition(has_processes)
    @rule(number=st.integers(0, 2))
    def kill(self, number: int) -> None:
        self.world.kill(self.process(number).identity)

    @precondition(has_processes)
    @rule(number=st.integers(0, 2))
    def stop(self, number: int) -> None:
        process = self.process(number)
        process.stop()
        self.world.kill(process.identity)

    @rule(rate=RATES, offset=st.integers(0, 5_000))
    def start(self, rate: float, offset: int) -> None:
        if len(self.world.processes) < COORDINATOR_COUNT_MAX:
            self.world.add(rate, offset)

    @rule()
    def delete_lease(self) -> None:
        if self.world.cluster.stored("leases", NAME) is not None:
            self.world.cluster.delete("leases", NAME)

    @rule()
    def keep_lease(self) -> None:
        self.kept = self.world.cluster.stored("leases", NAME) or self.kept

    @rule()
    def put_lease_back(self) -> None:
        """Makes the Lease anew from a copy, as a restore of a backup does."""
        if self.kept is None:
            return
        self.delete_lease()
        metadata = {
            key: value
            for key, value in self.kept["metadata"].items()
            if key not in ("resourceVersion", "uid")
        }
        self.world.cluster.create_lease({**self.kept, "metadata": metadata})

    @rule()
    def settle(self) -> None:
        self.world.settle()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


CoordinatorSequences.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestCoordinatorSequences = CoordinatorSequences.TestCase

FOUND: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "rests_after_a_lost_answer": [
        ("begin", {"server_count": 3, "rates": [0.98, 0.98, 0.98]}),
        ("hold_next_write", {"number": 0}),
        ("disturb_leaders_with_work", {"kind": "lease", "seconds": 20}),
        ("let_held_writes_arrive", {"number": 1}),
        ("stall_before_next_call", {"kind": "lease", "number": 1, "seconds": 27}),
        ("lose_grants", {"is_deaf": False}),
        ("disturb_leaders_with_work", {"kind": "state", "seconds": 24}),
        ("lose_grants", {"is_deaf": False}),
        ("delete_lease", {}),
        ("lose_answers", {"is_losing": False, "number": 0}),
        ("lose_grants", {"is_deaf": True}),
        ("disturb_leaders_with_work", {"kind": "state", "seconds": 29}),
        ("cut", {"is_cut": False, "number": 1}),
        ("lose_grants", {"is_deaf": False}),
        ("kill", {"number": 2}),
        ("delete_lease", {}),
        ("lose_grants", {"is_deaf": False}),
        ("stall_before_next_call", {"kind": "state", "number": 0, "seconds": 22}),
        ("stall_before_next_call", {"kind": "state", "number": 1, "seconds": 29}),
        ("hold_next_write", {"number": 0}),
        ("wait", {"seconds": 6}),
        ("stall_before_next_call", {"kind": "lease", "number": 0, "seconds": 6}),
        ("delete_lease", {}),
        ("lose_answers", {"is_losing": False, "number": 1}),
        ("let_held_writes_arrive", {"number": 2}),
        ("stop", {"number": 1}),
        ("stop", {"number": 0}),
        ("lose_grants", {"is_deaf": True}),
        ("lose_grants", {"is_deaf": False}),
        ("wait", {"seconds": 18}),
    ],
    "one_sender_after_a_late_write": [
        ("begin", {"server_count": 2, "rates": [0.98, 0.98, 0.98]}),
        ("hold_next_write", {"number": 0}),
        ("hold_next_write", {"number": 0}),
        ("disturb_leaders_with_work", {"kind": "lease", "seconds": 10}),
        ("stall_before_next_call", {"kind": "lease", "number": 1, "seconds": 14}),
        ("drop", {}),
        ("delete_lease", {}),
        ("delete_lease", {}),
        ("delete_lease", {}),
        ("delete_lease", {}),
        ("lose_answers", {"is_losing": True, "number": 1}),
        ("hold_next_write", {"number": 0}),
        ("stall_before_next_call", {"kind": "lease", "number": 0, "seconds": 5}),
        ("stall_before_next_call", {"kind": "state", "number": 2, "seconds": 20}),
        ("cut", {"is_cut": True, "number": 2}),
        ("drop", {}),
        ("lose_answers", {"is_losing": False, "number": 1}),
        ("lose_grants", {"is_deaf": True}),
        ("settle", {}),
        ("lose_grants", {"is_deaf": False}),
        ("delete_lease", {}),
        ("disturb_leaders_with_work", {"kind": "cut", "seconds": 13}),
        ("stall_before_next_call", {"kind": "lease", "number": 2, "seconds": 19}),
        ("kill", {"number": 2}),
        ("let_held_writes_arrive", {"number": 2}),
        ("lose_answers", {"is_losing": True, "number": 0}),
        ("start", {"offset": 999, "rate": 1.0}),
        ("cut", {"is_cut": True, "number": 0}),
        ("cut", {"is_cut": True, "number": 1}),
        ("stop", {"number": 0}),
    ],
    "rests_after_two_deletions": [
        ("begin", {"server_count": 2, "rates": [0.98, 0.98]}),
        ("hold_next_write", {"number": 0}),
        ("disturb_leaders_with_work", {"kind": "lease", "seconds": 10}),
        ("stall_before_next_call", {"kind": "lease", "number": 1, "seconds": 10}),
        ("wait", {"seconds": 4}),
        ("delete_lease", {}),
        ("hold_next_write", {"number": 0}),
        ("settle", {}),
        ("let_held_writes_arrive", {"number": 1}),
        ("lose_answers", {"is_losing": True, "number": 1}),
        ("stall_before_next_call", {"kind": "lease", "number": 1, "seconds": 6}),
        ("settle", {}),
        ("disturb_leaders_with_work", {"kind": "state", "seconds": 19}),
        ("cut", {"is_cut": True, "number": 1}),
        ("delete_lease", {}),
        ("cut", {"is_cut": False, "number": 1}),
        ("delete_lease", {}),
        ("settle", {}),
        ("settle", {}),
        ("wait", {"seconds": 16}),
        ("lose_answers", {"is_losing": False, "number": 1}),
        ("delete_lease", {}),
        ("let_held_writes_arrive", {"number": 2}),
        ("drop", {}),
        ("lose_grants", {"is_deaf": True}),
        ("settle", {}),
    ],
    "state_goes_on_with_three_coordinators": [
        ("begin", {"server_count": 1, "rates": [0.98, 0.98, 0.98]}),
        ("hold_next_write", {"number": 0}),
        ("hold_next_write", {"number": 0}),
        ("disturb_leaders_with_work", {"kind": "lease", "seconds": 10}),
        ("stall_before_next_call", {"kind": "lease", "number": 1, "seconds": 16}),
        ("stop", {"number": 1}),
        ("delete_lease", {}),
        ("let_held_writes_arrive", {"number": 0}),
        ("settle", {}),
    ],
    "one_sender_after_a_late_creation": [
        ("begin", {"server_count": 2, "rates": [0.98, 0.98]}),
        ("hold_next_write", {"number": 0}),
        ("disturb_leaders_with_work", {"kind": "lease", "seconds": 10}),
        ("stall_before_next_call", {"kind": "lease", "number": 1, "seconds": 10}),
        ("wait", {"seconds": 2}),
        ("delete_lease", {}),
        ("let_held_writes_arrive", {"number": 0}),
        ("settle", {}),
    ],
    "state_goes_on_after_a_late_creation": [
        ("begin", {"server_count": 1, "rates": [0.98, 0.98]}),
        ("hold_next_write", {"number": 0}),
        ("disturb_leaders_with_work", {"kind": "lease", "seconds": 10}),
        ("stall_before_next_call", {"kind": "lease", "number": 1, "seconds": 10}),
        ("wait", {"seconds": 4}),
        ("delete_lease", {}),
        ("let_held_writes_arrive", {"number": 0}),
        ("settle", {}),
    ],
    "no_grant_comes_into_a_later_term": [
        ("begin", {"server_count": 2, "rates": [0.98, 0.98]}),
        ("hold_next_write", {"number": 0}),
        ("disturb_leaders_with_work", {"kind": "lease", "seconds": 10}),
        ("drop", {}),
        ("wait", {"seconds": 4}),
        ("delete_lease", {}),
        ("let_held_writes_arrive", {"number": 0}),
        ("settle", {}),
    ],
}
"""Sequences that broke a promise while a Lease that was made anew began with a term of before."""


@pytest.mark.parametrize("steps", FOUND.values(), ids=FOUND)
def test_sequence_of_before_keeps_the_promises(
    steps: Sequence[tuple[str, Mapping[str, Any]]],
) -> None:
    state = CoordinatorSequences()
    for name, values in steps:
        getattr(state, name)(**values)
    state.teardown()

"""Coordinators that are cut off, stall, end and start: one leads at a time, and the fleet goes on."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.worlds.coordinators import NAME, CoordinatorWorld, Process

COORDINATOR_COUNT_MAX = 3
RATES = st.sampled_from([0.98, 1.0, 1.02])


class CoordinatorSequences(RuleBasedStateMachine):
    """`CoordinatorWorld` checks the promises at each grant and each write, and raises BrokenPromise."""

    @initialize(server_count=st.integers(1, 5), rates=st.lists(RATES, min_size=1, max_size=3))
    def begin(self, server_count: int, rates: list[float]) -> None:
        self.world = CoordinatorWorld(server_count)
        self.version = 1
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
    def settle(self) -> None:
        self.world.settle()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


CoordinatorSequences.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestCoordinatorSequences = CoordinatorSequences.TestCase

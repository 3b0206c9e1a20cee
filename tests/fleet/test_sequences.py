"""Random drops, crashes, partitions and dying coordinators: the promises of a fleet hold at each step."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fleet.rollout.operations import aborted, allowed, paused, promoted, resumed, rolled_back
from fleet.rollout.state import ModelState
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from loadtest.measure.fleet_simulation import MODEL, FleetSimulation, Kind, Return
from serving.base.errors import FailedPrecondition

SETTLED_SECONDS_MAX = 3_000


class FleetSequences(RuleBasedStateMachine):
    """`FleetSimulation` checks the promises in each of its steps, and raises BrokenPromise."""

    @initialize(
        server_count=st.integers(1, 12),
        load_count_max=st.integers(1, 4),
        sizes=st.sampled_from(
            [(), (WaveSize(1),), (WaveSize(1), WaveSize(share=0.4)), (WaveSize(2),)]
        ),
        # A first version is not watched for long: one that ends its servers may become stable.
        first=st.sampled_from([Kind.GOOD, *(kind for kind in Kind if kind is not Kind.CRASHING)]),
        seed=st.integers(0, 1_000),
    )
    def begin(
        self,
        server_count: int,
        load_count_max: int,
        sizes: tuple[WaveSize, ...],
        first: Kind,
        seed: int,
    ) -> None:
        self.fleet = FleetSimulation(
            server_count,
            WaveSettings(
                sizes=sizes,
                load_count_max=load_count_max,
                judged_seconds=25,
                lost_seconds=6,
                load_seconds_max=60,
            ),
            seed=seed,
            load_seconds=6,
        )
        self.names = list(self.fleet.servers)
        self.version = 1
        self.fleet.drop(1, first)
        if first.is_good:
            self.fleet.run_until_settled(SETTLED_SECONDS_MAX)
        else:
            self.fleet.step(20)

    def server(self, number: int) -> str:
        return self.names[number % len(self.names)]

    @rule(kind=st.sampled_from(Kind))
    def drop(self, kind: Kind) -> None:
        self.version += 1
        self.fleet.drop(self.version, self.possible(kind))

    def possible(self, kind: Kind) -> Kind:
        """Returns a good kind for a first version that ends its servers: see `begin`."""
        has_stable = self.fleet.state.models.get(MODEL, ModelState()).stable is not None
        return kind if has_stable or kind is not Kind.CRASHING else Kind.GOOD

    @rule(kind=st.sampled_from(Kind), numbers=st.sets(st.integers(0, 11)))
    def drop_on_some(self, kind: Kind, numbers: set[int]) -> None:
        self.version += 1
        names = {self.server(number) for number in numbers}
        self.fleet.drop(self.version, self.possible(kind), names)

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.fleet.step(seconds)

    @rule(numbers=st.sets(st.integers(0, 11), min_size=1))
    def cut(self, numbers: set[int]) -> None:
        self.fleet.cut({self.server(number) for number in numbers})

    @rule(numbers=st.sets(st.integers(0, 11), min_size=1))
    def deafen(self, numbers: set[int]) -> None:
        self.fleet.deafen({self.server(number) for number in numbers})

    @rule(numbers=st.sets(st.integers(0, 11), min_size=1))
    def end(self, numbers: set[int]) -> None:
        self.fleet.end({self.server(number) for number in numbers})

    @rule()
    def reconnect(self) -> None:
        self.fleet.heal()

    @rule(loss=st.sampled_from([0.0, 0.3, 0.9]), delay=st.integers(0, 15))
    def disturb(self, loss: float, delay: int) -> None:
        self.fleet.message_loss, self.fleet.message_seconds_max = loss, delay

    @rule(number=st.integers(0, 11), seconds=st.integers(1, 12), returns=st.sampled_from(Return))
    def restart(self, number: int, seconds: int, returns: Return) -> None:
        self.fleet.restart(self.server(number), seconds, returns)

    @rule(is_quiet=st.booleans())
    def be_quiet(self, is_quiet: bool) -> None:
        self.fleet.is_quiet = is_quiet

    @rule(are_bad=st.booleans())
    def change_clients(self, are_bad: bool) -> None:
        self.fleet.has_bad_clients = are_bad

    @rule(number=st.integers(0, 11), is_draining=st.booleans())
    def drain(self, number: int, is_draining: bool) -> None:
        self.fleet.servers[self.server(number)].is_draining = is_draining

    @rule(seconds=st.integers(1, 12))
    def kill_coordinator(self, seconds: int) -> None:
        self.fleet.kill_coordinator(seconds)

    @rule(when=st.sampled_from(["before", "after", 0, 1, 2]))
    def kill_coordinator_in_a_step(self, when: str | int) -> None:
        if isinstance(when, str):
            self.fleet.store.dies = when
        else:
            self.fleet.dies_after_sends = when

    @rule(
        change=st.sampled_from(["pause", "resume", "promote", "abort", "rollback", "allow"]),
    )
    def operate(self, change: str) -> None:
        coordinator = self.fleet.coordinator
        if coordinator is None or MODEL not in coordinator.state.models or self.fleet.store.dies:
            return
        model = coordinator.state.models[MODEL]
        newest_blocked = max(model.blocked, default=0)
        if change == "promote" and model.rollout is not None:
            self.fleet.promoted.add(model.rollout.version)
        changes = {
            "pause": lambda state: paused(state, MODEL),
            "resume": lambda state: resumed(state, MODEL),
            "promote": lambda state: promoted(state, MODEL, self.fleet.settings),
            "abort": lambda state: aborted(state, MODEL, "by the test", 0),
            "rollback": lambda state: rolled_back(state, MODEL, "by the test", 0),
            "allow": lambda state: allowed(state, MODEL, newest_blocked),
        }
        try:
            coordinator.operate(changes[change])
        except FailedPrecondition:
            return

    @rule()
    def settle(self) -> None:
        """Without further faults the fleet comes to rest with one version on every server."""
        fleet = self.fleet
        fleet.heal()
        fleet.has_bad_clients = False
        fleet.is_held_aborted = True
        for server in fleet.servers.values():
            server.is_draining = False
        for version, kind in list(fleet.kinds.items()):
            fleet.drop(version, kind)
        # Until ended servers are up again, and a coordinator.
        fleet.step(15)
        if fleet.coordinator is not None and fleet.coordinator.state.models[MODEL].is_paused:
            fleet.coordinator.operate(lambda state: resumed(state, MODEL))
        # All versions may be blocked, a good one too if the version before it ended its servers.
        for _ in range(10):
            if fleet.state.models.get(MODEL, ModelState()).stable is not None:
                break
            self.drop(Kind.GOOD)
            fleet.step(300)
        fleet.run_until_settled(SETTLED_SECONDS_MAX)
        fleet.is_held_aborted = False

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.settle()


# Without shrinking, which takes minutes: each step is many seconds of a fleet.
FleetSequences.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestFleetSequences = FleetSequences.TestCase

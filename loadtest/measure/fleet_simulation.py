"""A fleet of simulated servers that a real coordinator drives, with faults from a seed.

Time goes in steps of a second. Servers report at their turn, load for a time, restart, are cut off and
come back; grants are delayed, lost and reordered; the coordinator dies at any of its steps. The promises
of `fleet/rollout/decision.py` are checked after each step, on the servers themselves.
"""

import random
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from fleet.lead.coordinator import Coordinator
from fleet.rollout.decision import Decision
from fleet.rollout.figures import EDGES_NS, VersionFigures
from fleet.rollout.operations import aborted
from fleet.rollout.reports import Grant, ModelReport, ServerReport, VersionReport
from fleet.rollout.state import FleetRollout, FleetState, ModelState
from fleet.rollout.wave_settings import WaveSettings
from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.errors import StatusCode
from serving.core.servable import AVAILABLE, END, LOADING, GateVerdict, Health
from serving.manager.canary import LATENCY_REQUEST_COUNT_MIN

MODEL = "m"
REQUESTS_PER_SECOND = 50
"""The requests of each server. Two seconds of them are enough for a judgement of p90."""

NEVER_SECONDS = 10**9

REFUSAL = Health(StatusCode.FAILED_PRECONDITION, "gate signature: output 'y' is gone")
OUT_OF_MEMORY = Health(StatusCode.RESOURCE_EXHAUSTED, "no memory for it")
WARNING = {"drift": "output 'y': the mean differs by 3"}


class Kind(Enum):
    """The behaviour of a version."""

    GOOD = "good"
    REFUSED = "refused"  # its gates refuse it on every server
    SLOW = "slow"  # each request takes three times as long
    FAILING = "failing"  # one request in five fails
    CRASHING = "crashing"  # its server ends some seconds after it serves
    FRAGILE = "fragile"  # its load fails on three servers in ten
    HANGING = "hanging"  # its load does not end
    WARNED = "warned"  # a gate warns about it on each server that has a version to compare it with

    @property
    def is_good(self) -> bool:
        return self is Kind.GOOD


class Return(Enum):
    """The state in which a server that has ended comes back."""

    WITH_GRANT = "with its grant"  # from its state directory
    WITHOUT_GRANT = "without its grant"
    REPLACED = "replaced"  # its place starts another one under its name, as Ray and Kubernetes do


class CoordinatorDied(Exception):
    """Ends the coordinator at one of its steps."""


class BrokenPromise(AssertionError):
    """A promise of the fleet did not hold."""


# An edge of EDGES_NS, and the number of requests, of 1,000, that took at most that.
_SHAPE = ((24, 900), (30, 985), (36, 997), (40, 1_000))
_SLOWER_EDGES = 10


@lru_cache(maxsize=4096)
def figures_of(kind: Kind, seconds: int, bad_seconds: int = 0) -> VersionFigures:
    """The requests of a version of this kind after it has served for so many seconds.

    In `bad_seconds` of this time clients send requests that fail with every version.
    """
    count = seconds * REQUESTS_PER_SECOND
    counts = [0] * (len(EDGES_NS) + 1)
    before = 0
    for edge, share in _SHAPE:
        upto = count * share // 1_000
        counts[edge + (_SLOWER_EDGES if kind is Kind.SLOW else 0)] = upto - before
        before = upto
    failed = count // 5 if kind is Kind.FAILING else count // 10_000
    failed += bad_seconds * REQUESTS_PER_SECOND * 3 // 10
    return VersionFigures(count, failed, tuple(counts))


class StepClock:
    """A clock that the simulation sets."""

    def __init__(self) -> None:
        self.second = 0

    def now_ns(self) -> int:
        return self.second * NS_PER_SECOND

    def wall_ns(self) -> int:
        return self.second * NS_PER_SECOND

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        """Does not wait, because this is a simulation."""
        del condition, timeout_seconds
        return False


class MemoryStore:
    """A state that outlives coordinators of a simulation. `dies` ends one before or after a write."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.length_max = 0
        self.write_count = 0
        self.dies: str = ""

    def read(self) -> str | None:
        return self.text

    def write(self, text: str) -> None:
        """Keeps `text`. Raises CoordinatorDied if that is due."""
        dies, self.dies = self.dies, ""
        if dies == "before":
            raise CoordinatorDied
        self.text = text
        self.write_count += 1
        self.length_max = max(self.length_max, len(text))
        if dies == "after":
            raise CoordinatorDied


@dataclass(slots=True)
class Load:
    """A load under way. It is `unseen` if its server was lost at a time during it."""

    version: int
    ends_at: int
    is_unseen: bool = False


@dataclass(slots=True)
class SimulatedServer:
    """One server: it obeys grants, and its versions behave by their kinds."""

    name: str
    number: int
    found: frozenset[int] = frozenset()
    incarnation: int = 1
    granted: int | None = None
    order: int = 0
    serving: int | None = None
    # The versions in memory, each with the seconds of traffic, and of bad requests, before it served.
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    failed: dict[int, Health] = field(default_factory=dict)
    warned: set[int] = field(default_factory=set)
    load: Load | None = None
    starts_at: int | None = None
    crashes_at: int | None = None
    # The number of times that its place has started another server under its name.
    place_count: int = 1
    is_cut: bool = False
    # True if it reports, but grants do not reach it.
    is_deaf: bool = False
    is_draining: bool = False
    reported_at: int = 0

    @property
    def is_up(self) -> bool:
        return self.starts_at is None

    @property
    def swaps_forward(self) -> bool:
        """True if it loads a newer version while one serves."""
        return (
            self.load is not None and self.serving is not None and self.load.version > self.serving
        )


@dataclass(kw_only=True)
class Tally:
    """The figures of a simulation."""

    steps: int = 0
    decision_seconds: list[float] = field(default_factory=list)
    grant_count: int = 0
    swapping_max: int = 0
    touched: dict[int, set[str]] = field(default_factory=dict)
    # For each blocked version, the wave in which it was stopped, from 0 on.
    blocked_in_wave: dict[int, int] = field(default_factory=dict)
    coordinator_count: int = 0


class FleetSimulation:
    """Servers, messages and coordinators. `random` draws every time and every choice."""

    def __init__(
        self,
        server_count: int,
        settings: WaveSettings,
        *,
        seed: int = 0,
        load_seconds: int = 20,
        poll_seconds: int = 2,
    ) -> None:
        self.random = random.Random(seed)
        self.settings = settings
        self.load_seconds = load_seconds
        self.poll_seconds = poll_seconds
        self.clock = StepClock()
        self.store = MemoryStore()
        self.kinds: dict[int, Kind] = {}
        self.servers = {
            f"server-{number:05}": SimulatedServer(f"server-{number:05}", number)
            for number in range(server_count)
        }
        self.tally = Tally()
        self.message_loss = 0.0
        self.message_seconds_max = 0
        self._messages: dict[int, list[Grant]] = {}
        self.dies_after_sends: int | None = None
        self.coordinator: Coordinator | None = None
        # Measures the decisions themselves. With None, they are not measured.
        self.decision_clock: Clock | None = None
        self._starts_at = 0
        # The seconds of the last fault, of the last drain, and of the beginning of the rollout.
        self._faulted_at = self._drained_at = self._began_at = 0
        # While it is quiet, no client sends a request. With bad clients, three requests in ten fail.
        self.is_quiet = self.has_bad_clients = False
        # The seconds of traffic that the versions' figures count.
        self._traffic_seconds = self._bad_seconds = 0
        self._had_traffic, self._was_bad = bytearray(1), bytearray(1)
        # Versions that an operator has promoted, so that they are not judged any more.
        self.promoted: set[int] = set()
        # True if an operator aborts each version about which a gate has warned.
        self.is_held_aborted = False

    # --- What happens to the fleet ---

    def drop(self, version: int, kind: Kind, servers: Iterable[str] | None = None) -> None:
        """Puts a version on the disks of all servers, or of some of them."""
        self.kinds[version] = kind
        for name in self.servers if servers is None else servers:
            server = self.servers[name]
            server.found |= {version}
            self._select(server)

    def cut(self, names: Iterable[str]) -> None:
        """Cuts servers off from the coordinator. Their clients still reach them."""
        for name in names:
            self.servers[name].is_cut = True

    def deafen(self, names: Iterable[str]) -> None:
        """Lets no grant reach the servers, which report as before."""
        for name in names:
            self.servers[name].is_deaf = True

    def end(self, names: Iterable[str]) -> None:
        """Ends servers, which come back when the fleet is healed."""
        for name in names:
            self.restart(name, NEVER_SECONDS)

    def heal(self) -> None:
        """Reconnects all servers, starts ended ones, and loses and delays no message any more."""
        for server in self.servers.values():
            server.is_cut = server.is_deaf = False
            if server.starts_at is not None:
                server.starts_at = min(server.starts_at, self.clock.second + 12)
        self.message_loss, self.message_seconds_max = 0.0, 0
        self.store.dies, self.dies_after_sends = "", None

    def restart(self, name: str, seconds: int = 3, returns: Return = Return.WITH_GRANT) -> None:
        """Ends a server, which comes back after these seconds."""
        server = self.servers[name]
        server.starts_at = self.clock.second + seconds
        server.serving, server.load, server.crashes_at = None, None, None
        server.memory.clear()
        server.failed.clear()
        server.warned.clear()
        if returns is not Return.WITH_GRANT:
            server.granted, server.order = None, 0
        if returns is Return.REPLACED:
            server.place_count += 1
            if self.coordinator is not None:
                self._set_servers(self.coordinator)

    def kill_coordinator(self, seconds: int = 5) -> None:
        """Ends the coordinator. Another one takes over its state after these seconds."""
        self.coordinator = None
        self._starts_at = self.clock.second + seconds

    # --- A second ---

    def step(self, count: int = 1) -> None:
        """Lets seconds pass. Raises BrokenPromise."""
        for _ in range(count):
            self.clock.second += 1
            self.tally.steps += 1
            is_bad = self.has_bad_clients and not self.is_quiet
            self._traffic_seconds += not self.is_quiet
            self._bad_seconds += is_bad
            self._had_traffic.append(not self.is_quiet)
            self._was_bad.append(is_bad)
            self._advance_servers()
            self._deliver()
            self._run_coordinator()
            self._check_swapping()

    def run_until_settled(self, seconds_max: int) -> int:
        """Lets seconds pass until all servers serve the stable version and no rollout runs.

        Returns how many seconds passed. Raises BrokenPromise if there were more than `seconds_max`.
        """
        for passed in range(seconds_max):
            if self.is_settled():
                return passed
            self.step()
        raise BrokenPromise(f"not settled after {seconds_max} s: {self.describe()}")

    def is_settled(self) -> bool:
        state = self.state.models.get(MODEL)
        if state is None or state.rollout is not None or state.stable is None or state.loading:
            return False
        good = self._best_found()
        if good is not None and good not in state.blocked and state.stable < good:
            return False
        return all(self._is_at_rest(server, state) for server in self.servers.values())

    def _is_at_rest(self, server: SimulatedServer, state: ModelState) -> bool:
        """True if a server serves the stable version, or cannot load it and serves another."""
        if server.serving is not None and server.serving == server.granted:
            return state.stable in (server.serving, *server.failed)
        has_previous = state.previous in server.found and state.previous not in server.failed
        return state.stable in server.failed and not has_previous

    @property
    def state(self) -> FleetState:
        return FleetState() if self.coordinator is None else self.coordinator.state

    def describe(self) -> str:
        """Describes the state of the fleet, for the message of a failure."""
        watch = self.coordinator.watches.get(MODEL) if self.coordinator else None
        served: dict[int | None, int] = {}
        for server in self.servers.values():
            served[server.serving] = served.get(server.serving, 0) + 1
        model = self.state.models.get(MODEL)
        rollout = model and model.rollout
        shown = rollout and (
            rollout.version,
            rollout.wave_index,
            len(rollout.members),
            len(rollout.failed_servers),
        )
        return (
            f"second {self.clock.second}, stable {model and model.stable}, rollout {shown}, loading "
            f"{model and list(model.loading.items())[:3]}, served {served}, waits for "
            f"{watch and watch.waits_for!r}"
        )

    # --- Servers ---

    def _advance_servers(self) -> None:
        now = self.clock.second
        if self.message_loss or self.message_seconds_max:
            self._faulted_at = now
        for server in self.servers.values():
            if server.starts_at is not None or server.is_cut or server.is_deaf:
                self._faulted_at = now
            if server.is_draining:
                self._drained_at = now
            if server.starts_at is not None:
                if now >= server.starts_at:
                    server.starts_at = None
                    server.incarnation += 1
                    self._select(server)
                continue
            if server.load is not None and now >= server.load.ends_at:
                self._end_load(server, server.load.version)
            if server.crashes_at is not None and now >= server.crashes_at:
                self.restart(server.name, returns=self.random.choice(list(Return)))

    def _select(self, server: SimulatedServer) -> None:
        """Does as a server does with its grant: serves the version, loads it, or waits for its files."""
        wanted = server.granted
        if wanted is None:
            server.serving = server.load = server.crashes_at = None
            server.memory.clear()
            return
        if not server.is_up or wanted == server.serving:
            server.load = None
            return
        if wanted in server.memory:
            server.load = None
            self._serve(server, wanted)
        elif server.load is None or server.load.version != wanted:
            server.load = None
            if wanted in server.found and wanted not in server.failed:
                server.load = Load(wanted, self.clock.second + self._load_seconds(wanted))

    def _load_seconds(self, version: int) -> int:
        if self.kinds[version] is Kind.HANGING:
            return NEVER_SECONDS
        return self.random.randint(max(1, self.load_seconds // 2), self.load_seconds * 3 // 2)

    def _end_load(self, server: SimulatedServer, version: int) -> None:
        server.load = None
        kind = self.kinds[version]
        if kind is Kind.REFUSED:
            server.failed[version] = REFUSAL
        elif kind is Kind.FRAGILE and server.number % 10 in (1, 4, 7):
            server.failed[version] = OUT_OF_MEMORY
        else:
            if kind is Kind.WARNED and server.serving is not None:
                server.warned.add(version)
            self._serve(server, version)

    def _serve(self, server: SimulatedServer, version: int) -> None:
        """Lets a version answer; the one before it stays in memory for a rollback."""
        now = self.clock.second
        server.memory = {
            key: since for key, since in server.memory.items() if key in (server.serving, version)
        }
        server.memory.setdefault(version, (self._traffic_seconds, self._bad_seconds))
        server.serving = version
        server.crashes_at = None
        if self.kinds[version] is Kind.CRASHING:
            server.crashes_at = now + self.random.randint(1, 8)

    def report(self, server: SimulatedServer) -> ServerReport:
        versions = {
            version: VersionReport(
                state=AVAILABLE,
                figures=figures_of(
                    self.kinds[version],
                    self._traffic_seconds - traffic_before,
                    self._bad_seconds - bad_before,
                ),
                warned=WARNING if version in server.warned else {},
            )
            for version, (traffic_before, bad_before) in server.memory.items()
        }
        for version, health in server.failed.items():
            versions[version] = VersionReport(state=END, health=health)
        if server.load is not None:
            versions[server.load.version] = VersionReport(state=LOADING)
        model = ModelReport(
            granted=server.granted,
            order=server.order,
            default_version=server.serving,
            found=server.found,
            versions=versions,
        )
        return ServerReport(
            incarnation=server.incarnation, models={MODEL: model}, is_draining=server.is_draining
        )

    # --- Messages ---

    def _deliver(self) -> None:
        for grant in self._messages.pop(self.clock.second, ()):
            server = self.servers[grant.server]
            is_reached = server.is_up and not server.is_cut and not server.is_deaf
            if not is_reached or grant.order < server.order:
                continue
            self._check_grant(server, grant)
            server.order, server.granted = grant.order, grant.version
            self._select(server)

    def _check_grant(self, server: SimulatedServer, grant: Grant) -> None:
        if grant.version is None:
            return
        if grant.version not in self.kinds:
            raise BrokenPromise(f"{grant} is of a version that does not exist")
        is_served = server.serving is not None and server.serving != grant.version
        if is_served and grant.version not in server.found and grant.version not in server.memory:
            raise BrokenPromise(f"{grant}: the server has no such version and serves another one")
        if grant.version != server.granted:
            self.tally.touched.setdefault(grant.version, set()).add(server.name)

    def _send(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            if self.dies_after_sends is not None:
                self.dies_after_sends -= 1
                if self.dies_after_sends < 0:
                    self.dies_after_sends = None
                    raise CoordinatorDied
            self.tally.grant_count += 1
            if grant.version is None and self.state.models[MODEL].stable is not None:
                raise BrokenPromise(f"{grant}: there is a version to go back to")
            if self.message_loss and self.random.random() < self.message_loss:
                continue
            seconds = 1 + (
                self.random.randint(0, self.message_seconds_max) if self.message_seconds_max else 0
            )
            self._messages.setdefault(self.clock.second + seconds, []).append(grant)

    # --- The coordinator ---

    def _run_coordinator(self) -> None:
        try:
            if self.coordinator is None:
                if self.clock.second < self._starts_at:
                    return
                self.coordinator = Coordinator(self.store, self._send, self.settings, self.clock)
                self._set_servers(self.coordinator)
                self.tally.coordinator_count += 1
        except CoordinatorDied:
            self.kill_coordinator()
            return
        self._receive(self.coordinator)
        if self.is_held_aborted:
            self._abort_held(self.coordinator)
        before, grants = self.coordinator.state, None
        try:
            grants = self._timed_step(self.coordinator).grants
        except CoordinatorDied:
            after = self.coordinator.state
            self.kill_coordinator()
        else:
            after = self.coordinator.state
        self._check_change(before, after, grants)

    def _abort_held(self, coordinator: Coordinator) -> None:
        model = coordinator.state.models.get(MODEL)
        if model is not None and model.rollout is not None and model.rollout.is_doubtful:
            coordinator.operate(lambda state: aborted(state, MODEL, "by the operator", 0))

    def _set_servers(self, coordinator: Coordinator) -> None:
        places = {name: str(server.place_count) for name, server in self.servers.items()}
        coordinator.set_servers(list(self.servers), identities=places)

    def _timed_step(self, coordinator: Coordinator) -> Decision:
        if self.decision_clock is None:
            return coordinator.step()
        began_ns = self.decision_clock.now_ns()
        decision = coordinator.step()
        self.tally.decision_seconds.append(seconds_since(self.decision_clock, began_ns))
        return decision

    def _receive(self, coordinator: Coordinator) -> None:
        now = self.clock.second
        for server in self.servers.values():
            is_due = (now + server.number) % self.poll_seconds == 0
            if is_due and server.is_up and not server.is_cut:
                server.reported_at = now
                coordinator.receive(server.name, self.report(server))

    # --- Promises ---

    def _check_swapping(self) -> None:
        lost_seconds = self.settings.lost_seconds
        # A server leaves a blocked version for the stable one at once, whatever other servers do.
        state = self.state.models.get(MODEL, ModelState())
        leaves = {(version, state.stable) for version in state.blocked}
        count = 0
        for server in self.servers.values():
            if server.load is None:
                continue
            if self.clock.second - server.reported_at > lost_seconds:
                server.load.is_unseen = True
            if (server.serving, server.load.version) in leaves or server.load.is_unseen:
                continue
            count += server.swaps_forward
        self.tally.swapping_max = max(self.tally.swapping_max, count)
        if count > self.settings.load_count_max:
            raise BrokenPromise(f"{count} servers swap at the same time: {self.describe()}")

    def _check_change(
        self, before: FleetState, after: FleetState, grants: Sequence[Grant] | None
    ) -> None:
        """Checks what a step has decided. `grants` is None if the coordinator died before it sent all."""
        old, new = before.models.get(MODEL), after.models.get(MODEL)
        if old is None or new is None:
            return
        # Comes first, because the next rollout may begin in the same step.
        for version in new.blocked.keys() - old.blocked.keys():
            if old.rollout is not None:
                self._check_wave(version, old.rollout)
                self._check_cause(version, new)
            if grants is not None:
                addressed = {grant.server for grant in grants}
                self._check_rollback(version, addressed, has_stable=new.stable is not None)
        self._check_held(old, new)
        rollout = new.rollout
        if rollout is not None and (old.rollout is None or old.rollout.version != rollout.version):
            # A version that an operator has allowed is tried once more, from its first wave on.
            self.tally.touched[rollout.version] = set()
            self._began_at = self.clock.second
        elif rollout is not None and old.rollout is not None:
            self._check_next_wave(old.rollout, rollout)
        if old.rollout is not None and new.stable == old.rollout.version != old.stable:
            self._check_stable(old, new.verdicts)

    def _check_rollback(self, version: int, addressed: set[str], *, has_stable: bool) -> None:
        """Checks that all servers that can be reached are rolled back in one step.

        Without a stable version, a server that answers with the version keeps it.
        """
        sightings = self.coordinator.sightings if self.coordinator else {}
        oldest_ns = self.clock.now_ns() - round(self.settings.lost_seconds * NS_PER_SECOND)
        for name, sighting in sightings.items():
            if sighting.report is None or sighting.seen_at_ns < oldest_ns:
                continue
            report = sighting.report.models[MODEL]
            is_due = has_stable or report.default_version is None
            if report.granted == version and is_due and name not in addressed:
                raise BrokenPromise(f"{name} is not rolled back from {version} at once")

    def _check_wave(self, version: int, rollout: FleetRollout) -> None:
        """Checks that a version that was stopped was on no more servers than its wave has."""
        self.tally.blocked_in_wave[version] = rollout.wave_index
        quota = self.settings.quota(rollout.wave_index, len(self.servers))
        bound = quota + self.settings.failed_server_count_max(quota)
        touched = len(self.tally.touched.get(version, ()))
        if touched > bound:
            raise BrokenPromise(f"{touched} servers had version {version} in a wave of {quota}")

    def _check_cause(self, version: int, state: ModelState) -> None:
        """Checks that a good version was stopped only if servers failed without it."""
        settled_at = self._began_at - self.settings.lost_seconds
        if self._may_be_blamed_for_clients():
            return
        if self.kinds[version].is_good and self._faulted_at < settled_at:
            raise BrokenPromise(f"good version {version}: {state.blocked[version].reason}")

    def _may_be_blamed_for_clients(self) -> bool:
        """True if bad requests began or ended during the rollout, or no version was compared beside."""
        bad = self._was_bad[self._began_at :]
        if not any(bad):
            return False
        size = len(self.servers)
        has_controls = bool(self.settings.sizes) and self.settings.quota(0, size) < size
        return not (all(bad) and has_controls)

    def _check_held(self, before: ModelState, after: ModelState) -> None:
        """Checks that a version about which a gate has warned goes on only with an operator's promotion."""
        old, new = before.rollout, after.rollout
        if old is None or not old.is_doubtful or old.version in self.promoted:
            return
        goes_on = new is not None and new.version == old.version and new.wave_index > old.wave_index
        if goes_on or after.stable == old.version:
            raise BrokenPromise(f"version {old.version} goes on, of which a gate has warned")

    def _check_next_wave(self, before: FleetRollout, after: FleetRollout) -> None:
        """Checks that each wave that has more servers than the one before takes its turn."""
        size = len(self.servers)
        if self.clock.second - self._drained_at <= self.settings.lost_seconds:
            return
        for wave in range(before.wave_index + 1, after.wave_index):
            if self.settings.quota(wave, size) > self.settings.quota(before.wave_index, size):
                raise BrokenPromise(f"wave {wave + 1} of version {after.version} was left out")

    def _check_stable(self, before: ModelState, verdicts: Sequence[GateVerdict]) -> None:
        """Checks that a version that is worse than the one before it did not pass.

        A version that ends its servers must pass in no wave, and a version that fails must pass only
        without requests. A slow version may pass if it was not beside a good one, or had too few requests,
        because latency is not judged then.
        """
        assert before.rollout is not None
        version = before.rollout.version
        if before.stable is None or version in self.promoted:
            return
        kind, size = self.kinds[version], len(self.servers)
        if kind is Kind.WARNED and self.kinds[before.stable] is not Kind.WARNED:
            self._check_unwarned(version)
        if kind is Kind.CRASHING:
            raise BrokenPromise(f"version {version} is stable, and ends its servers")
        if any(self._was_bad):
            # With bad clients, versions fail that are not at fault.
            return
        if kind is Kind.FAILING and self.kinds[before.stable].is_good and self._was_answering():
            raise BrokenPromise(f"version {version} is stable, and fails: {self.describe()}")
        is_beside_good = self.kinds[before.stable].is_good and self.settings.quota(0, size) < size
        if kind not in (Kind.SLOW, Kind.FAILING) or not is_beside_good:
            return
        if not all(self._had_traffic[self._began_at :]):
            return
        counts = [
            min(row.figures["request_count"], row.figures["stable_request_count"])
            for row in verdicts
            if row.figures["version"] == version and "request_count" in row.figures
        ]
        if not counts or max(counts) >= LATENCY_REQUEST_COUNT_MIN:
            raise BrokenPromise(f"{kind.value} version {version} is stable")

    def _check_unwarned(self, version: int) -> None:
        """Checks that no server that reports has warned about a version that has become stable."""
        warned = [
            server.name
            for server in self.servers.values()
            if version in server.warned and version == server.granted and not server.is_cut
        ]
        if warned and self.clock.second - self._faulted_at > self.settings.lost_seconds:
            raise BrokenPromise(f"version {version} is stable, and warned of on {warned}")

    def _was_answering(self) -> bool:
        """True if no server was away while the last wave held, and requests were reported meanwhile."""
        now, judged_seconds = self.clock.second, int(self.settings.judged_seconds)
        if now - self._faulted_at <= judged_seconds:
            return False
        return any(self._had_traffic[now - judged_seconds + 1 : now - self.poll_seconds])

    def _best_found(self) -> int | None:
        """The highest good version that every server has."""
        common = frozenset.intersection(*(server.found for server in self.servers.values()))
        return max((version for version in common if self.kinds[version].is_good), default=None)

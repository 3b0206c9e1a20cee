"""Coordinators of one fleet of pods, on one cluster: any of them may be cut off, stall, end or start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fleet.kubernetes.cluster import ApiFailed, Object
from fleet.kubernetes.documents import STATE_KEY, lease_record, term_of
from fleet.kubernetes.lease import LeaseHolder
from fleet.lead.candidate import Candidate
from fleet.lead.coordinator import Coordinator
from fleet.lead.leadership import Term
from fleet.rollout.reports import Grant, ModelReport, ServerReport, VersionReport
from fleet.rollout.state import FleetState, fleet_state_from_json
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from serving.base.clock import NS_PER_SECOND
from serving.core.servable import AVAILABLE
from tests.kubernetes.fake_cluster import FakeCluster
from tests.unit.fakes.clocks import FakeClock

# The reply of a call.
T = TypeVar("T")

MODEL = "ctr"
NAME = "fleet"
LEASE_SECONDS = 15
RENEW_SECONDS = 3
CALL_SECONDS = 2
SETTINGS = WaveSettings(
    sizes=(WaveSize(1), WaveSize(share=0.5)),
    load_count_max=2,
    judged_seconds=2,
    lost_seconds=20,
    # Longer than any sequence: a version must not be blocked because grants were lost.
    load_seconds_max=100_000,
)


class BrokenPromise(AssertionError):
    """Two coordinators have led at the same time, or an old one has overwritten a newer state."""


class SkewedClock:
    """A clock that begins elsewhere and runs a little faster or slower than the world's."""

    def __init__(self, world: FakeClock, rate: float, offset_seconds: int) -> None:
        self._world = world
        self._rate = rate
        self._offset_ns = offset_seconds * NS_PER_SECOND

    def now_ns(self) -> int:
        return self._offset_ns + round(self._world.now_ns() * self._rate)

    def wall_ns(self) -> int:
        # Wall clocks may differ by hours: nothing may depend on them.
        return self._world.wall_ns() + 100 * self._offset_ns

    def wait(self, condition: Any, timeout_seconds: float | None) -> bool:
        raise AssertionError("nothing waits here")


class Link:
    """One coordinator's way to the cluster, which may fail in each of its ways."""

    def __init__(self, cluster: FakeCluster, stall: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._stall = stall
        self.namespace = cluster.namespace
        self.is_cut = False
        self.loses_answers = False
        # The next write arrives only when the test lets it.
        self.is_holding = False
        self.held: list[Callable[[], object]] = []

    def read_lease(self, name: str) -> Object | None:
        return self._called(lambda: self._cluster.read_lease(name))

    def create_lease(self, lease: Object) -> Object:
        return self._written("lease", lambda: self._cluster.create_lease(lease))

    def replace_lease(self, lease: Object) -> Object:
        return self._written("lease", lambda: self._cluster.replace_lease(lease))

    def read_config_map(self, name: str) -> Object | None:
        return self._called(lambda: self._cluster.read_config_map(name))

    def create_config_map(self, config_map: Object) -> Object:
        return self._written("state", lambda: self._cluster.create_config_map(config_map))

    def replace_config_map(self, config_map: Object) -> Object:
        return self._written("state", lambda: self._cluster.replace_config_map(config_map))

    def list_pods(self, selector: str) -> tuple[list[Object], str]:
        raise AssertionError(selector)

    def watch_pods(self, selector: str, version: str, seconds: int) -> Iterator[Object]:
        raise AssertionError((selector, version, seconds))

    def create_event(self, event: Object) -> None:
        raise AssertionError(event)

    def _called(self, call: Callable[[], T]) -> T:
        if self.is_cut:
            raise ApiFailed("no answer")
        answer = call()
        if self.loses_answers:
            raise ApiFailed("no answer")
        return answer

    def _written(self, kind: str, call: Callable[[], T]) -> T:
        self._stall(kind)
        if self.is_holding and not self.is_cut:
            self.is_holding = False
            self.held.append(call)
            raise ApiFailed("no answer")
        return self._called(call)


@dataclass
class Flight:
    """A grant on its way to its server."""

    grant: Grant
    term: int
    sender: str
    due_ns: int


class LeadOfWorld:
    """A lead of one term that sends to the servers of the world."""

    def __init__(self, process: Process, term: Term) -> None:
        self._process = process
        self._world = process.world
        self.term = term
        self.coordinator = Coordinator(term.store, self._send, SETTINGS, process.clock)
        self.coordinator.set_servers([*self._world.reports])

    def step(self) -> None:
        for name, report in self._world.reports.items():
            self.coordinator.receive(name, ServerReport(models={MODEL: report}))
        try:
            self.coordinator.step()
        except OSError:
            return

    def stop(self) -> None:
        self._world.land(lambda flight: flight.sender == self._process.identity)

    def _send(self, grants: Sequence[Grant]) -> None:
        self._process.stall("grant")
        for grant in grants:
            if self.term.is_valid():
                self._world.note_send(grant, self.term.number, self._process.identity)


class Process:
    """One process of a coordinator."""

    def __init__(self, world: CoordinatorWorld, identity: str, rate: float, offset: int) -> None:
        self.world = world
        self.identity = identity
        self.clock = SkewedClock(world.clock, rate, offset)
        # The seconds for which the process is stopped just before its next call of a kind.
        self.stalls: dict[str, int] = {}
        self.is_stalled = False
        self.link = Link(world.cluster, self.stall)
        self.holder = LeaseHolder(
            self.link,
            name=NAME,
            state_name=NAME,
            identity=identity,
            duration_seconds=LEASE_SECONDS,
            clock=self.clock,
        )
        self.lead: LeadOfWorld | None = None
        self.candidate = Candidate(self, self._begin, self._end)

    def start(self, port: int) -> None:
        raise AssertionError(port)

    def term(self) -> Term | None:
        return self.holder.term()

    def leader(self) -> str:
        return self.holder.leader()

    def stall(self, kind: str) -> None:
        """Stops the process here if the test wants it, and lets all others go on."""
        seconds = self.stalls.pop(kind, 0)
        if seconds and not self.is_stalled:
            self.is_stalled = True
            self.world.run(seconds)
            self.is_stalled = False

    def renew(self) -> None:
        if not self.is_stalled:
            self.holder.turn()

    def work(self) -> None:
        if not self.is_stalled:
            self.candidate.turn()
            if self.lead is not None:
                self.lead.step()

    def stop(self) -> None:
        self.candidate.stop()
        self.holder.release()

    def _begin(self, term: Term) -> None:
        self.lead = LeadOfWorld(self, term)

    def _end(self) -> None:
        assert self.lead is not None
        self.lead.stop()
        self.lead = None


@dataclass
class CoordinatorWorld:
    """A fleet of servers that load at once, and the coordinators that start and end."""

    server_count: int = 4
    clock: FakeClock = field(default_factory=FakeClock)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    processes: dict[str, Process] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    senders: dict[int, str] = field(default_factory=dict)
    highest_order: dict[int, int] = field(default_factory=dict)
    started_count: int = 0
    second: int = 0
    latest: tuple[int, int] = (0, 0)
    # Grants arrive and get lost, so that the coordinator sends them again and again.
    is_deaf: bool = False

    def __post_init__(self) -> None:
        self.reports: dict[str, ModelReport] = {
            f"s{number}": ModelReport(found=frozenset({1})) for number in range(self.server_count)
        }

    @property
    def leaders(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.holder.term()]

    @property
    def state(self) -> FleetState:
        stored = self.cluster.stored("configmaps", NAME)
        assert stored is not None
        return fleet_state_from_json(stored["data"][STATE_KEY])

    @property
    def versions(self) -> set[int | None]:
        return {report.default_version for report in self.reports.values()}

    def add(self, rate: float = 1.0, offset: int = 0) -> Process:
        self.started_count += 1
        name = f"c{self.started_count}"
        self.processes[name] = Process(self, name, rate, offset)
        return self.processes[name]

    def kill(self, name: str) -> None:
        del self.processes[name]

    def drop(self, version: int) -> None:
        for name, report in self.reports.items():
            self.reports[name] = replace(report, found=report.found | {version})

    def run(self, seconds: int) -> None:
        """Lets every coordinator that does not stall work once a second."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.second += 1
            self.land(lambda flight: flight.due_ns <= self.clock.ns)
            for number, process in enumerate([*self.processes.values()]):
                # A coordinator that waits looks each second, which is the worst case for the one that
                # leads.
                is_due = (self.second + number) % RENEW_SECONDS == 0
                if is_due or process.holder.term() is None:
                    process.renew()
                process.work()
                self.check_state()

    def note_send(self, grant: Grant, term: int, sender: str) -> None:
        if self.senders.setdefault(term, sender) != sender:
            raise BrokenPromise(f"{sender} and {self.senders[term]} send in term {term}")
        earlier = max((o for t, o in self.highest_order.items() if t < term), default=-1)
        if grant.order <= earlier:
            raise BrokenPromise(f"{grant} of term {term} is not above order {earlier} of before")
        self.highest_order[term] = max(self.highest_order.get(term, 0), grant.order)
        due_ns = self.clock.ns + (self.second % (CALL_SECONDS + 1)) * NS_PER_SECOND
        self.flights.append(Flight(grant, term, sender, due_ns))

    def land(self, is_due: Callable[[Flight], bool]) -> None:
        due = [flight for flight in self.flights if is_due(flight)]
        self.flights = [flight for flight in self.flights if flight not in due]
        for flight in due:
            lease = self.cluster.stored("leases", NAME)
            record = None if lease is None else lease_record(lease)
            # The same process ends the calls of its last term before it works in the next one.
            if record and record.term > flight.term and record.holder != flight.sender:
                raise BrokenPromise(f"{flight} arrives in a later term: {record}")
            if not self.is_deaf:
                self._take(flight.grant)

    def check_state(self) -> None:
        """Raises BrokenPromise if the state has gone back."""
        stored = self.cluster.stored("configmaps", NAME)
        if stored is None:
            return
        # A first term is claimed before there is a state.
        text = stored["data"].get(STATE_KEY)
        now = (term_of(stored), 0 if text is None else fleet_state_from_json(text).order)
        if now < self.latest:
            raise BrokenPromise(f"the state went back from {self.latest} to {now}")
        self.latest = now

    def settle(self) -> None:
        """Without further faults one coordinator leads, and the newest version comes to every server."""
        for process in self.processes.values():
            process.link.is_cut = process.link.loses_answers = process.link.is_holding = False
            process.stalls.clear()
        self.is_deaf = False
        if not self.processes:
            self.add()
        newest = max(next(iter(self.reports.values())).found)
        for _ in range(120):
            self.run(1)
            if len(self.leaders) == 1 and self.versions == {newest} and self._is_at_rest():
                return
        raise BrokenPromise(f"no rest: {self.leaders}, {self.versions} instead of {newest}")

    def _is_at_rest(self) -> bool:
        models: Mapping[str, Any] = self.state.models
        return MODEL in models and models[MODEL].rollout is None

    def _take(self, grant: Grant) -> None:
        before = self.reports[grant.server]
        if grant.order < before.order:
            return
        version = grant.version
        self.reports[grant.server] = replace(
            before,
            granted=version,
            order=grant.order,
            default_version=version,
            versions={} if version is None else {version: VersionReport(state=AVAILABLE)},
        )

"""The Lease that makes one coordinator lead at a time. `LeaseHolder.turn` is one attempt.

Kubernetes only stores objects. If two writers have read the same version of an object, only one of them can
replace it. All else is an agreement between the coordinators. Each of them measures the durations below with
its own monotonic clock:

- The holder of the Lease renews it every few seconds. It may act from the *beginning* of its last answered
  renewal for `lease_seconds` less a margin. The margin is longer than a call to a server, so that no grant is
  under way when `lease_seconds` are over.
- Another coordinator takes the Lease after it has seen the Lease unchanged for the duration that the holder
  wrote into it. By then the holder has stopped, because its last renewal began before the other coordinator
  could see it.
- A coordinator takes a Lease by *replacing* the version that it saw. Creating a Lease replaces nothing, so a
  creation may take effect late: after other coordinators have led and their Lease was deleted. So a created
  Lease has no holder. It is taken once it has been unchanged for its duration. Only the creator of a fleet's
  first Lease holds it at once.
- A term begins when its number is *claimed* in the ConfigMap of the state (`state_map.claim_term`). A claim
  replaces the version of the ConfigMap in which a lower number was read. So no number is claimed twice, and
  two coordinators never lead in one term, even if the Lease is deleted or restored.

Wall clocks decide nothing. They only appear in the Lease for people. The agreement holds if all monotonic
clocks run at the same speed to a few percent. A process may stop for a minute between its look at the clock
and a call. Then it may send one late grant. Servers ignore that grant, because its order is lower than the
orders of the next coordinator.

The official client has an elector (`kubernetes.leaderelection`), which is not used. It measures with the wall
clock, and counts from the end of a renewal. Its terms have no numbers, so they cannot protect the state from
an earlier coordinator.
"""

import threading
from dataclasses import dataclass, replace

import structlog

from fleet.kubernetes.cluster import ApiFailed, Cluster, Conflict, Object
from fleet.kubernetes.documents import LeaseRecord, lease_object, lease_record, term_of
from fleet.kubernetes.events import Events
from fleet.kubernetes.state_map import StateMap, claim_term
from fleet.lead.leadership import Term
from serving.base.clock import NS_PER_SECOND, Clock

MARGIN_SECONDS = 3.0
"""The holder stops this long before the Lease lapses: the time of a call to a server, and a reserve.

The reserve is for clocks that differ a little.
"""

UNHELD = "(nobody yet)"
"""The text that stands for a holder in a Lease that was created anew. An earlier holder may still lead."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Observed:
    """A Lease as this coordinator has seen it, and the time since which the Lease has been unchanged."""

    record: LeaseRecord
    since_ns: int


def may_take(observed: Observed, state_term: int, duration_seconds: int, now_ns: int) -> bool:
    """True if the holder has given up the Lease, or the Lease has been unchanged for its duration. Pure.

    `state_term` is the last term that was claimed. A Lease of an earlier term does not count as given up,
    because it is an old copy that an operator has restored. `duration_seconds` is the shortest time to wait.
    """
    record = observed.record
    if not record.holder and record.term >= state_term:
        return True
    seconds = max(record.duration_seconds, duration_seconds)
    return now_ns - observed.since_ns >= seconds * NS_PER_SECOND


class LeaseHolder:
    """Acquires a Lease and renews it. One thread calls `turn`; any thread may call the other methods."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str,
        state_name: str,
        identity: str,
        duration_seconds: int,
        clock: Clock,
        events: Events | None = None,
    ) -> None:
        """`identity` is the name of this process as a holder. No other process has the same.

        `state_name` is the ConfigMap of the state, in which each term is claimed. `events` gets the uid of
        that ConfigMap.
        """
        self._cluster = cluster
        self._events = events
        self._name = name
        self._state_name = state_name
        self._identity = identity
        self._duration_seconds = duration_seconds
        self._clock = clock
        self.address = ""
        """The HTTP address of this coordinator. The Lease shows it to the coordinators that wait."""
        # Only `turn` uses `_observed`, `_acquired_wall_ns` and `_failure`.
        self._observed: Observed | None = None
        self._acquired_wall_ns = 0
        self._failure = ""
        # Guards all members below.
        self._lock = threading.Lock()
        # The term of this process, which may have lapsed; None while the process has no term.
        self._term: Term | None = None
        self._valid_until_ns = 0
        self._is_stopped = False

    def term(self) -> Term | None:
        """See `Leadership`."""
        with self._lock:
            term = self._term
            return term if term is not None and self._is_within(term.number) else None

    def leader(self) -> str:
        """See `Leadership`."""
        observed = self._observed
        if observed is None or observed.record.holder in ("", self._identity):
            return ""
        return observed.record.address

    def turn(self) -> None:
        """Acquires the Lease if that is allowed now, or renews it. Logs a failure once, and raises nothing."""
        try:
            self._attempt()
        except Conflict:
            # Another coordinator was faster, or an earlier call of this one took effect late. The next turn
            # reads the Lease again.
            return
        except ApiFailed as error:
            if str(error) != self._failure:
                self._failure = str(error)
                _log.warning("fleet_lease_unreachable", lease=self._name, reason=self._failure)
            return
        self._failure = ""

    def release(self) -> None:
        """Gives up the Lease if this coordinator holds it. No later `turn` takes the Lease again.

        Call it only when no `turn` runs.
        """
        with self._lock:
            held, self._term = self._term, None
            self._is_stopped = True
        if held is None:
            return
        try:
            record = self._read()
            if record is not None and self._is_own(record, held.number):
                free = replace(record, holder="", duration_seconds=1, address="")
                self._cluster.replace_lease(self._object(free))
        except ApiFailed as error:
            _log.warning("fleet_lease_not_released", lease=self._name, reason=str(error))

    def _attempt(self) -> None:
        began_ns = self._clock.now_ns()
        held = self._held_term()
        record = self._read()
        if held is not None:
            if record is not None and self._is_own(record, held.number):
                self._renew(record, began_ns)
                return
            self._lose("it was deleted" if record is None else f"{record.holder} holds the Lease")
        observed = None if record is None else self._observe(record)
        # A higher `state_term` allows less. So the state is read only if the lowest allows to take the Lease.
        if observed is not None and not self._may_take(observed, state_term=0):
            return
        state = self._cluster.read_config_map(self._state_name)
        state_term = 0 if state is None else term_of(state)
        if observed is None:
            self._create(state, state_term, began_ns)
        elif self._may_take(observed, state_term):
            record = observed.record
            self._take(record, state, max(record.term, state_term) + 1, began_ns)

    def _observe(self, record: LeaseRecord) -> Observed:
        """Notes the Lease as it was read. Returns it with the time since which it has been unchanged."""
        if self._observed is None or self._observed.record != record:
            # The time counts from the answer, because the holder may have renewed the Lease during the call.
            self._observed = Observed(record, self._clock.now_ns())
        return self._observed

    def _may_take(self, observed: Observed, state_term: int) -> bool:
        return may_take(observed, state_term, self._duration_seconds, self._clock.now_ns())

    def _held_term(self) -> Term | None:
        """The present term of this process. If the term has lapsed, gives it up, and returns None."""
        with self._lock:
            held = self._term
            is_lapsed = held is not None and not self._is_within(held.number)
        if is_lapsed:
            self._lose("it was not renewed in time")
            return None
        return held

    def _renew(self, record: LeaseRecord, began_ns: int) -> None:
        wanted = replace(record, duration_seconds=self._duration_seconds, address=self.address)
        self._write(wanted)
        with self._lock:
            if self._term is not None and self._clock.now_ns() < self._valid_until_ns:
                self._valid_until_ns = self._end_ns(began_ns)

    def _create(self, state: Object | None, state_term: int, began_ns: int) -> None:
        """Creates the Lease.

        The creator of a fleet's first Lease holds it at once. This creation does no harm if it takes effect
        late, because the claim of the first term fails if any coordinator has led. A Lease that is created
        later has no holder at first.
        """
        absent = LeaseRecord(
            holder=UNHELD, term=state_term, duration_seconds=self._duration_seconds, version=""
        )
        if state_term == 0:
            self._take(absent, state, 1, began_ns)
        elif not self._has_stopped():
            self._acquired_wall_ns = self._clock.wall_ns()
            self._write(absent)

    def _take(self, record: LeaseRecord, state: Object | None, number: int, began_ns: int) -> None:
        if self._has_stopped():
            return
        self._acquired_wall_ns = self._clock.wall_ns()
        self._write(
            LeaseRecord(
                holder=self._identity,
                term=number,
                duration_seconds=self._duration_seconds,
                version=record.version,
                address=self.address,
            )
        )
        claim_term(self._cluster, self._state_name, state, number)
        term = self._made_term(number)
        with self._lock:
            self._term = term
            self._valid_until_ns = self._end_ns(began_ns)
        _log.info("fleet_lease_acquired", lease=self._name, term=number)

    def _made_term(self, number: int) -> Term:
        def is_valid() -> bool:
            return self._is_valid(number)

        store = StateMap(self._cluster, self._state_name, number, is_valid, self._events)
        return Term(number, store, is_valid)

    def _lose(self, reason: str) -> None:
        with self._lock:
            lost, self._term = self._term, None
        if lost is not None:
            _log.warning("fleet_lease_lost", lease=self._name, term=lost.number, reason=reason)

    def _read(self) -> LeaseRecord | None:
        lease = self._cluster.read_lease(self._name)
        return None if lease is None else lease_record(lease)

    def _write(self, record: LeaseRecord) -> None:
        lease = self._object(record)
        write = self._cluster.replace_lease if record.version else self._cluster.create_lease
        self._observed = Observed(lease_record(write(lease)), self._clock.now_ns())

    def _object(self, record: LeaseRecord) -> "dict[str, object]":
        return dict(lease_object(self._name, record, self._clock.wall_ns(), self._acquired_wall_ns))

    def _has_stopped(self) -> bool:
        with self._lock:
            return self._is_stopped

    def _is_own(self, record: LeaseRecord, number: int) -> bool:
        return record.holder == self._identity and record.term == number

    def _is_valid(self, number: int) -> bool:
        """True if no other coordinator leads, and none can begin to lead within the time of a call to a server.

        `Term` asks for less than this. The margin before the Lease's end ensures it, if all clocks run at the
        same speed (see above).
        """
        with self._lock:
            return self._is_within(number)

    def _is_within(self, number: int) -> bool:
        """True if this process has the term of this number, and it has not lapsed. The caller holds the lock."""
        if self._term is None or self._term.number != number:
            return False
        return self._clock.now_ns() < self._valid_until_ns

    def _end_ns(self, began_ns: int) -> int:
        return began_ns + round((self._duration_seconds - MARGIN_SECONDS) * NS_PER_SECOND)

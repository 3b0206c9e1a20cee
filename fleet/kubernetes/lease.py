"""The Lease that makes one coordinator lead at a time. `LeaseHolder.turn` is one attempt.

Kubernetes only stores objects: if two writers have read the same version, it lets one of them win. The rest
is an agreement between the coordinators, by durations on each one's own monotonic clock:

- A holder renews the Lease every few seconds. It may act for `lease_seconds` less a margin after the
  *beginning* of its last renewal that was answered. The margin is longer than a call to a server, so that
  no grant is under way when the duration ends.
- Another coordinator takes the Lease when it has seen it unchanged for the duration that the holder wrote
  into it. It saw the Lease no earlier than the holder's renewal began, so the holder has stopped.
- A Lease is taken by *replacing* the version that was seen. A creation replaces nothing, so it may take
  effect late: after other coordinators have led, and their Lease was deleted. So a new Lease has no holder,
  and is taken when it has been there for the duration. Only the first Lease of a fleet begins with its
  creator.
- A term begins when its number is *claimed* in the ConfigMap of the state (`state_map.claim_term`), by
  replacing the version in which a lower number was read. So no number comes again, whatever becomes of the
  Lease, and two coordinators never lead in one term.

Wall clocks decide nothing; they only appear in the Lease for people. The agreement holds for clocks that
run at the same speed to a few percent. A process that was stopped for a minute between its look at
the clock and a call may send one late grant: its number is lower than those of the next coordinator,
so servers ignore it, and the state has another version by then.

The official client has an elector (`kubernetes.leaderelection`). It goes by the wall clock, counts from
the end of a renewal, and has no number of a term that a state could be fenced with.
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
"""The time of a call to a server, and a reserve for clocks that differ a little."""

UNHELD = "(nobody yet)"
"""The holder of a Lease that was created anew, because an earlier holder may still lead for a while."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Observed:
    """A Lease as this coordinator has seen it, unchanged since a time of its own clock."""

    record: LeaseRecord
    since_ns: int


def may_take(observed: Observed, state_term: int, duration_seconds: int, now_ns: int) -> bool:
    """True if the Lease was given up, or has been unchanged for its duration. Pure.

    `state_term` is the last term that was claimed. A Lease with an earlier term was not given up, because
    it is an old copy that somebody has put back. `duration_seconds` is the least to wait.
    """
    record = observed.record
    if not record.holder and record.term >= state_term:
        return True
    seconds = max(record.duration_seconds, duration_seconds)
    return now_ns - observed.since_ns >= seconds * NS_PER_SECOND


class LeaseHolder:
    """Acquires a Lease and renews it. `turn` runs on one thread, the rest on any."""

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
        """`identity` differs from that of every other process.

        `state_name` is the ConfigMap of the state, in which each term is claimed. The `events` are shown
        beside it.
        """
        self._cluster = cluster
        self._events = events
        self._name = name
        self._state_name = state_name
        self._identity = identity
        self._duration_seconds = duration_seconds
        self._clock = clock
        self.address = ""
        """The HTTP address that the Lease shows, for the coordinators that wait."""
        # Used by `turn` alone.
        self._observed: Observed | None = None
        self._acquired_wall_ns = 0
        self._failure = ""
        # Guards the members below.
        self._lock = threading.Lock()
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
        """Acquires or renews the Lease if it may. A failure is logged once; the next turn tries again."""
        try:
            self._attempt()
        except Conflict:
            # Another coordinator was faster, or an earlier call took effect late. The next turn looks
            # again.
            return
        except ApiFailed as error:
            if str(error) != self._failure:
                self._failure = str(error)
                _log.warning("fleet_lease_unreachable", lease=self._name, reason=self._failure)
            return
        self._failure = ""

    def release(self) -> None:
        """Gives the Lease up if this coordinator holds it. No later `turn` takes it again.

        Must not be called during a `turn`.
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
        # The state is not read if it could change nothing.
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
        """Notes the Lease as it was read, and returns it with the time since which it is unchanged."""
        if self._observed is None or self._observed.record != record:
            # Counted from now, and not from the call, because the holder may have renewed it a moment ago.
            self._observed = Observed(record, self._clock.now_ns())
        return self._observed

    def _may_take(self, observed: Observed, state_term: int) -> bool:
        return may_take(observed, state_term, self._duration_seconds, self._clock.now_ns())

    def _held_term(self) -> Term | None:
        """The term that is held now. A term that has lapsed is lost, and cannot be renewed."""
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

        The creator of a fleet's first Lease holds it at once. However late this creation takes effect, it
        does no harm, because the claim of the first term fails if any coordinator has led. A later Lease
        has no holder at first.
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
        """True if no other coordinator leads, or will begin to lead within the time of a call to a server.

        This is more than `Term` asks for. It holds for clocks that run at the same speed, by the margin
        before the Lease's end (see above).
        """
        with self._lock:
            return self._is_within(number)

    def _is_within(self, number: int) -> bool:
        """True if the term of this number is held and has not lapsed. The caller has the lock."""
        if self._term is None or self._term.number != number:
            return False
        return self._clock.now_ns() < self._valid_until_ns

    def _end_ns(self, began_ns: int) -> int:
        return began_ns + round((self._duration_seconds - MARGIN_SECONDS) * NS_PER_SECOND)

"""The Lease that makes one coordinator lead at a time. `LeaseHolder.turn` is one attempt.

Kubernetes only stores a Lease: it lets one of two writers that have read the same version win. The
rest is an agreement between the coordinators, by durations on each one's own monotonic clock:

- A holder renews the Lease every few seconds. It may act for `lease_seconds` less a margin after the
  *beginning* of its last renewal that was answered. The margin is longer than a call to a server, so
  that no grant is under way when the duration ends.
- Another coordinator takes the Lease when it has seen it unchanged for the duration that the holder
  wrote into it. It saw the Lease no earlier than the holder's renewal began, so the holder has stopped.

Wall clocks decide nothing; they only appear in the Lease for people. The agreement holds for clocks that
run at the same speed to a few percent. A process that was stopped for a minute between its look at
the clock and a call may send one late grant: its number is lower than those of the next coordinator,
so servers ignore it, and the state has another version by then (`state_map.py`).

The official client has an elector (`kubernetes.leaderelection`). It goes by the wall clock, counts from
the end of a renewal, and has no number of a term that a state could be fenced with.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.fleet.kubernetes.cluster import ApiFailed, Cluster, Conflict
from serving.fleet.kubernetes.documents import LeaseRecord, lease_object, lease_record, term_of
from serving.fleet.leadership import Term

MARGIN_SECONDS = 3.0
"""The time of a call to a server, and clocks that differ a little."""

_DELETED = "(deleted)"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Observed:
    """A Lease as this coordinator has seen it, unchanged since a time of its own clock."""

    record: LeaseRecord
    since_ns: int


def may_take(observed: Observed, identity: str, now_ns: int) -> bool:
    """Returns True if the Lease is free, expired, or one's own from a term that has lapsed. Pure."""
    record = observed.record
    if record.holder in ("", identity):
        return True
    return now_ns - observed.since_ns >= record.duration_seconds * NS_PER_SECOND


class LeaseHolder:
    """Acquires a Lease and renews it. `turn` runs on one thread, the rest on any."""

    def __init__(
        self,
        cluster: Cluster,
        make_term: Callable[[int, Callable[[], bool]], Term],
        *,
        name: str,
        state_name: str,
        identity: str,
        duration_seconds: int,
        clock: Clock,
    ) -> None:
        """`identity` differs from that of every other process. `make_term` makes a term of its number.

        `state_name` is the ConfigMap of the state, whose term is the last one if the Lease is deleted.
        """
        self._cluster = cluster
        self._make_term = make_term
        self._name = name
        self._state_name = state_name
        self._identity = identity
        self._duration_seconds = duration_seconds
        self._clock = clock
        self.address = ""
        """The HTTP address that the Lease shows to the coordinators that wait."""
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
            # Another coordinator was faster, or a call of before took effect: look again.
            return
        except ApiFailed as error:
            if str(error) != self._failure:
                self._failure = str(error)
                _log.warning("fleet_lease_unreachable", lease=self._name, reason=self._failure)
            return
        self._failure = ""

    def release(self) -> None:
        """Gives the Lease up if this coordinator holds it. No later `turn` takes it again.

        Not during a `turn`.
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
        record = self._read() or self._absent()
        # The whole record: a Lease that was made and deleted unseen has no version either.
        if self._observed is None or self._observed.record != record:
            # From now, and not from the call: the holder may have renewed it a moment ago.
            self._observed = Observed(record, self._clock.now_ns())
        if held is not None:
            if self._is_own(record, held.number):
                self._renew(record, began_ns)
            else:
                self._lose(f"{record.holder} holds the Lease")
        elif may_take(self._observed, self._identity, self._clock.now_ns()):
            self._take(record, began_ns)

    def _held_term(self) -> Term | None:
        """Returns the term that is being held. One that has lapsed is lost, and not renewed."""
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

    def _take(self, record: LeaseRecord, began_ns: int) -> None:
        if self._has_stopped():
            return
        number = record.term + 1
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
        term = self._make_term(number, lambda: self._is_valid(number))
        with self._lock:
            self._term = term
            self._valid_until_ns = self._end_ns(began_ns)
        _log.info("fleet_lease_acquired", lease=self._name, term=number)

    def _lose(self, reason: str) -> None:
        with self._lock:
            lost, self._term = self._term, None
        if lost is not None:
            _log.warning("fleet_lease_lost", lease=self._name, term=lost.number, reason=reason)

    def _read(self) -> LeaseRecord | None:
        lease = self._cluster.read_lease(self._name)
        return None if lease is None else lease_record(lease)

    def _absent(self) -> LeaseRecord:
        """Returns the record of a Lease that is not there.

        If the fleet has a state, the Lease was deleted, and its holder may lead for a while.
        """
        state = self._cluster.read_config_map(self._state_name)
        term = 0 if state is None else term_of(state)
        return LeaseRecord(
            holder=_DELETED if term else "",
            term=term,
            duration_seconds=self._duration_seconds,
            version="",
        )

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
        with self._lock:
            return self._is_within(number)

    def _is_within(self, number: int) -> bool:
        """Returns True if the term of this number is held and has not lapsed. The caller has the lock."""
        if self._term is None or self._term.number != number:
            return False
        return self._clock.now_ns() < self._valid_until_ns

    def _end_ns(self, began_ns: int) -> int:
        return began_ns + round((self._duration_seconds - MARGIN_SECONDS) * NS_PER_SECOND)

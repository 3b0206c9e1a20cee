"""The right to decide for a fleet on Ray: a process has one term, in the key-value store of the cluster."""

from fleet.lead.leadership import Term
from fleet.ray.key_value_store import Deposed, KeyValueStore, StoredTerm, StoredText
from serving.base.clock import NS_PER_SECOND, Clock

STATE_KEY = "state"


class RayLeadership:
    """A `Leadership` that begins the next term of the fleet at once, and leads until a later term begins.

    A process never begins a second term, because two actors would end each other's terms again and again. A
    later term means that Ray has started another actor in place of this one.
    """

    def __init__(self, store: KeyValueStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._stored: StoredTerm | None = None
        self._term: Term | None = None
        self._is_deposed = False

    @property
    def is_over(self) -> bool:
        """True once this process has found a later term in the store. Then the process should end."""
        return self._is_deposed or (self._stored is not None and self._stored.is_over)

    def start(self, port: int) -> None:
        """See `Leadership`."""
        del port

    def term(self) -> Term | None:
        """See `Leadership`."""
        if self.is_over:
            return None
        if self._term is None:
            stored = self._begun()
            self._term = Term(
                stored.number,
                StoredText(self._store, stored, STATE_KEY),
                stored.is_valid,
                stored.order_min,
            )
        return self._term

    def leader(self) -> str:
        """See `Leadership`. Always "", because on Ray no coordinator waits beside the one that leads."""
        return ""

    def stored(self, key: str) -> StoredText:
        """Another text of the fleet, which is written in the present term."""
        return StoredText(self._store, self._present(), key)

    def check(self) -> None:
        """Raises Deposed if a later term has begun, and OSError."""
        self._present().check()

    def stop(self) -> None:
        """See `Leadership`. Does nothing, because the next term needs nothing from this one."""

    def _begun(self) -> StoredTerm:
        # Numbers begin with the present second. So they are above the numbers of earlier terms even if the
        # store was lost, while servers still have the grants of these terms.
        first = self._clock.wall_ns() // NS_PER_SECOND
        try:
            self._stored = StoredTerm(self._store, self._clock, first)
        except Deposed:
            self._is_deposed = True
            raise
        return self._stored

    def _present(self) -> StoredTerm:
        if self._stored is None:
            raise Deposed("this coordinator has no term")
        return self._stored

"""The state of a fleet in a ConfigMap, which a coordinator that was replaced cannot overwrite."""

from collections.abc import Callable, Mapping

from fleet.kubernetes.cluster import ApiFailed, Cluster, Object
from fleet.kubernetes.documents import (
    STATE_KEY,
    SUMMARY_KEY,
    state_object,
    summary_of,
    term_of,
)
from fleet.kubernetes.events import Events
from fleet.rollout.state import fleet_state_from_json


class Deposed(OSError):
    """Another coordinator leads, or this one's term has lapsed. Nothing was written."""


def claim_term(cluster: Cluster, name: str, found: Object | None, number: int) -> None:
    """Writes the number of a term that begins into the ConfigMap, and leaves its state as it is.

    `found` is the ConfigMap as it was read, with a lower number, or None if there was none. If it raises
    ApiFailed, the term must not begin, because nobody knows if its number is in the ConfigMap. The next
    claim takes a higher number anyway. Raises Conflict if the ConfigMap has changed since.
    """
    if found is None:
        cluster.create_config_map(state_object(name, "", number, {}))
        return
    version, data = found["metadata"]["resourceVersion"], found.get("data") or {}
    cluster.replace_config_map(state_object(name, version, number, data))


class StateMap:
    """A `StateStore` for one term, which was claimed. One thread at a time uses it.

    Each write replaces the version of the ConfigMap that this store has read or written last, and notes the
    term. The claim has changed the version, so the writes of an earlier coordinator are refused. A store
    never writes over a later term.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        term: int,
        is_valid: Callable[[], bool],
        events: Events | None = None,
    ) -> None:
        """`events` learn the identity of each ConfigMap that was written."""
        self._cluster = cluster
        self._name = name
        self._term = term
        self._is_valid = is_valid
        self._events = events
        self._version = ""
        self._has_written = False

    def read(self) -> str | None:
        """See `StateStore`. Raises Deposed if a later term has written the state."""
        found = self._look()
        text: str | None = ((found or {}).get("data") or {}).get(STATE_KEY)
        return text

    def write(self, text: str) -> None:
        """See `StateStore`. Raises Deposed, and Conflict if the state has changed since it was read."""
        if not self._is_valid():
            raise Deposed(f"term {self._term} has ended, and the state with it")
        try:
            self._replace(text)
        except ApiFailed as error:
            if not self._has_written or error.status not in (404, 409):
                raise
            # Either an earlier write of this term has taken effect without an answer, and nothing
            # followed from it. Or an operator has deleted or edited the ConfigMap: the state of the
            # coordinator that leads replaces it.
            self._look()
            self._replace(text)
        self._has_written = True

    def _replace(self, text: str) -> None:
        data: Mapping[str, str] = {
            STATE_KEY: text,
            SUMMARY_KEY: summary_of(fleet_state_from_json(text)),
        }
        wanted = state_object(self._name, self._version, self._term, data)
        is_there = bool(self._version)
        write = self._cluster.replace_config_map if is_there else self._cluster.create_config_map
        written = write(wanted)
        self._version = written["metadata"]["resourceVersion"]
        if self._events is not None:
            self._events.regard(written)

    def _look(self) -> Object | None:
        found = self._cluster.read_config_map(self._name)
        if found is not None and term_of(found) > self._term:
            raise Deposed(f"term {term_of(found)} has taken over the state from term {self._term}")
        self._version = "" if found is None else found["metadata"]["resourceVersion"]
        return found

"""Keeps the state of a fleet in a ConfigMap, so that a coordinator that was replaced cannot overwrite it."""

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
    """Another coordinator leads, or the term of this coordinator has lapsed. Nothing was written."""


def claim_term(cluster: Cluster, name: str, found: Object | None, number: int) -> None:
    """Writes the number of a new term into the ConfigMap, and leaves the state in it as it is.

    `found` is the ConfigMap as it was read, with a lower number; None if there was none. Raises Conflict if
    the ConfigMap has changed since then, and ApiFailed. After an error the term must not begin, although its
    number may be in the ConfigMap. That does no harm, because the next claim takes a higher number.
    """
    if found is None:
        cluster.create_config_map(state_object(name, "", number, {}))
        return
    version, data = found["metadata"]["resourceVersion"], found.get("data") or {}
    cluster.replace_config_map(state_object(name, version, number, data))


class StateMap:
    """A `StateStore` for one term that was claimed. One thread at a time uses it.

    Each write notes its term, and replaces only the version of the ConfigMap that this store has read or
    written last. The claim of a term makes a new version. So a coordinator of an earlier term cannot write
    any more, and this store cannot write after a later term has begun.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        term: int,
        is_valid: Callable[[], bool],
        events: Events | None = None,
    ) -> None:
        """`events` gets the uid of each ConfigMap that was written."""
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
            # An earlier write of this term may have taken effect although its answer was lost. No grant
            # followed from that write, so this text may replace it. Or an operator may have deleted or edited
            # the ConfigMap. The leading coordinator's state replaces such an edit too.
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

"""Streams: the state of every stream, which any thread reads without waiting for the control thread."""

from collections.abc import Callable, Iterator, Mapping

from serving.core.blocked_versions import BlockedVersions
from serving.core.servable import Routing, ServableId
from serving.data_plane.servables import Servable
from serving.manager.stream import Rules, StreamState, StreamStatus


class Streams:
    """The `StreamState` of each model. Any thread reads it; only the control thread changes it.

    It needs no lock, because a state is replaced as a whole and never changed. Two reads may see two
    moments: a caller that reads twice must expect a version to have ended in between.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()
        self._states: dict[str, StreamState] = {}
        self._listeners: list[Callable[[str], None]] = []

    def add_routing_listener(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with the name of a stream whose routing has changed, on the control thread.

        Call this before the first stream.
        """
        self._listeners.append(listener)

    # --- Any thread -------------------------------------------------------------------------------

    def of(self, name: str) -> StreamState:
        """The state of a stream; an empty one if it is not known."""
        state = self._states.get(name)
        return StreamState(name=name, rules=self._rules) if state is None else state

    def routing(self, name: str) -> Routing:
        """The routing that requests see now."""
        return self.of(name).routing

    def answering(self, name: str) -> int | None:
        """The version that answers requests without a version number, apart from a canary's share.

        None if they are refused.
        """
        return self.of(name).routing.default_version

    def labels(self, name: str) -> Mapping[str, int]:
        """The labels as requests see them now."""
        return self.of(name).routing.labels

    def label_targets(self, name: str) -> Mapping[str, int]:
        """Each label with the version that it leads to, or will lead to once that version is AVAILABLE."""
        routing = self.of(name).routing
        return {**routing.awaited_labels, **routing.labels}

    def status(self, name: str) -> StreamStatus | None:
        """The status of a stream; None if it has no version."""
        state = self.of(name)
        return None if state.is_idle else state.status()

    def servable(self, servable_id: ServableId) -> Servable | None:
        """The version if it is AVAILABLE. It may be unloaded at any time after."""
        harness = self.of(servable_id.name).ready(servable_id.version)
        return None if harness is None else harness.held

    def blocked(self, name: str) -> frozenset[int]:
        """The versions that the source of a model leaves out."""
        return self.of(name).blocks.left_out

    def blocks(self, name: str) -> BlockedVersions:
        """The blocked versions of a model with their blocks, the fallback included."""
        return self.of(name).blocks.by_version

    def follows_another(self, servable_id: ServableId) -> bool:
        """True if another version of the model was AVAILABLE before, and may be gone by now.

        A version that was first aspired together with this one does not count.
        """
        state = self.of(servable_id.name)
        harness = state.harnesses.get(servable_id.version)
        aspired_with = frozenset() if harness is None else harness.aspired_with
        return bool(state.served - aspired_with - {servable_id.version})

    def incumbent(self, servable_id: ServableId) -> Servable | None:
        """The version whose clients `servable_id` will get: the one that answers now.

        The result is None for a version that takes over no clients: a version lower than the one
        that answers; a version first aspired together with it, as at the start of a server with
        several versions; and a version that follows one that was rolled back.
        """
        state = self.of(servable_id.name)
        default, ready = state.routing.default_version, state.ready_versions
        version = default if default in ready else max(ready, default=None)
        harness = state.harnesses.get(servable_id.version)
        aspired_with = frozenset() if harness is None else harness.aspired_with
        if version is None or version in aspired_with or version in state.blocks.left_out:
            return None
        return state.harnesses[version].held if version < servable_id.version else None

    def names(self) -> list[str]:
        """The names of the streams that have, await or block a version, sorted."""
        return sorted(state.name for state in self.states() if state.exists)

    def states(self) -> Iterator[StreamState]:
        """Yields the known states."""
        yield from list(self._states.values())

    # --- The control thread -----------------------------------------------------------------------

    def replace(self, state: StreamState) -> None:
        """Publishes the state. Forgets the stream if nothing is left of it."""
        if state.is_forgettable:
            self._states.pop(state.name, None)
        else:
            self._states[state.name] = state

    def tell_routing(self, name: str) -> None:
        """Tells the listeners of a stream whose routing has changed. Called after `replace`."""
        for listener in self._listeners:
            listener(name)

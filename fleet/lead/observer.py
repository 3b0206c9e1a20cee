"""The interface through which a coordinator reports its events to its metrics."""

from fleet.rollout.state import FleetState


class FleetObserver:
    """Ignores all events; a subclass counts them.

    Any thread. The coordinator holds a lock while it reports some events, so each method must return at once.
    """

    def decided(self, seconds: float) -> None:
        """The coordinator has made a decision and written its state, in this time."""

    def state_written(self, *, is_ok: bool) -> None:
        """A write of the state has succeeded, or has failed."""

    def state_changed(self, before: FleetState, after: FleetState) -> None:
        """The coordinator has written a state that differs from the one before."""

    def called(self, kind: str, *, is_ok: bool) -> None:
        """A call to a server has succeeded, or has failed. `kind` is "report" or "grant"."""

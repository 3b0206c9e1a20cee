"""The events of a coordinator, for its metrics."""

from fleet.rollout.state import FleetState


class FleetObserver:
    """Ignores the events of a coordinator and of its calls; subclasses count them.

    Any thread. Events arrive under the coordinator's lock, so an observer must be quick.
    """

    def decided(self, seconds: float) -> None:
        """A decision was made within this time, its write included."""

    def state_written(self, *, is_ok: bool) -> None:
        """A write of the state has ended."""

    def state_changed(self, before: FleetState, after: FleetState) -> None:
        """A changed state was written."""

    def called(self, kind: str, *, is_ok: bool) -> None:
        """A call to a server has ended."""

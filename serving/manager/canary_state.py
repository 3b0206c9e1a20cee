"""The statistics that a canary of one stream is judged by. Control thread only."""

from serving.data_plane.servables import ServableStatistics
from serving.manager.harness import LoaderHarness


class CanaryState:
    """Holds the statistics of a canary and of the stable version, taken when both began to serve.

    The two versions are compared on the requests since then.
    """

    def __init__(self) -> None:
        # The canary and the stable version beside it, and the statistics of the stable one at that start.
        self._pair: tuple[int, int] | None = None
        self._stable_before: ServableStatistics | None = None
        # A canary that was resumed, and its statistics at that time.
        self._resumed: tuple[int, ServableStatistics] | None = None
        # A canary that was slow once, and is compared on other requests.
        self._doubted: int | None = None
        self.answered_count = 0
        """The canary's requests at the last `since_began`, for the status."""

    def since_began(
        self, canary: LoaderHarness, stable: LoaderHarness
    ) -> tuple[ServableStatistics, ServableStatistics]:
        """Returns the statistics of the canary and the stable version since they serve side by side.

        The statistics of a resumed canary count from its resumption.
        """
        answered, beside = canary.servable.statistics(), stable.servable.statistics()
        pair = (canary.id.version, stable.id.version)
        if self._pair != pair or self._stable_before is None:
            self._pair = pair
            self._stable_before = beside
        if self._resumed is not None and self._resumed[0] == canary.id.version:
            answered = answered.since(self._resumed[1])
        self.answered_count = answered.request_count
        return answered, beside.since(self._stable_before)

    def forget(self) -> None:
        """Forgets the statistics, so that the next canary is judged by its own requests."""
        self._pair, self._stable_before, self._resumed = None, None, None
        self._doubted = None
        self.answered_count = 0

    def resume(self, canary: LoaderHarness) -> None:
        """Restarts the statistics of a canary, because the version was a canary before."""
        self.forget()
        self._resumed = (canary.id.version, canary.servable.statistics())

    def doubt(self, canary: LoaderHarness) -> None:
        """Restarts the statistics of a canary that was slow."""
        self.resume(canary)
        self._doubted = canary.id.version

    def is_doubted(self, version: int) -> bool:
        """Returns True if this canary was slow in the comparison before."""
        return self._doubted == version

"""The statistics that a canary of one stream is judged by: a value."""

from dataclasses import dataclass, replace

from serving.data_plane.servables import ServableStatistics


@dataclass(frozen=True)
class CanaryState:
    """The statistics of a canary and of the stable version, taken when both began to serve.

    The two versions are compared on the requests since then.
    """

    # The canary and the stable version beside it, and the statistics of the stable version when the canary
    # began.
    pair: tuple[int, int] | None = None
    stable_before: ServableStatistics | None = None
    # A canary that was resumed, and its statistics at that time.
    resumed: tuple[int, ServableStatistics] | None = None
    # A canary that was slow once, so that it is compared again, on other requests.
    doubted: int | None = None
    # The canary's requests at the last comparison, for the status.
    answered_count: int = 0

    def compared(
        self, pair: tuple[int, int], answered: ServableStatistics, beside: ServableStatistics
    ) -> tuple["CanaryState", ServableStatistics, ServableStatistics]:
        """The next state, and the statistics of both versions since they serve side by side.

        `pair` are the canary and the stable version, `answered` and `beside` their statistics. The
        statistics of a resumed canary count from its resumption.
        """
        is_same = self.pair == pair and self.stable_before is not None
        stable_before = self.stable_before if is_same else beside
        if self.resumed is not None and self.resumed[0] == pair[0]:
            answered = answered.since(self.resumed[1])
        after = replace(
            self, pair=pair, stable_before=stable_before, answered_count=answered.request_count
        )
        return after, answered, beside.since(stable_before)

    def doubt(self, version: int, statistics: ServableStatistics) -> "CanaryState":
        """Restarts the statistics of a canary that was slow."""
        return CanaryState(resumed=(version, statistics), doubted=version)


NO_COMPARISON = CanaryState()
"""The state of a stream without a canary."""

"""The settings of a fleet's waves, as values that check themselves."""

from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Final

from serving.base.errors import InvalidConfig
from serving.core.model_settings import CanarySettings

SECONDS_MAX = 1e9
"""The longest time that a setting may give: 30 years. Nanoseconds in 64 bits end at 292 years."""


HOLD: Final = "hold"
PASS: Final = "pass"
"""The two values of `warned_gates`: a version about which a gate has warned waits for an operator, or goes on."""


_JUDGEMENT = CanarySettings(request_count=10_000)


@dataclass(frozen=True, slots=True)
class WaveSize:
    """The number of servers that a wave needs: `server_count`, or `share` of the fleet if that is more."""

    server_count: int = 1
    share: float = 0.0

    def __post_init__(self) -> None:
        if self.server_count < 1:
            raise InvalidConfig(f"a wave of {self.server_count} servers is empty; give 1 or more")
        if not 0 <= self.share < 1:
            raise InvalidConfig(
                f"a wave of {self.share:g} of the fleet is not a part of it; give a share below 1: "
                "the last wave, of all servers, comes by itself"
            )

    def quota(self, fleet_size: int) -> int:
        """The number of servers that serve the new version in this wave, at least 1."""
        return max(1, min(fleet_size, max(self.server_count, ceil(self.share * fleet_size))))


@dataclass(frozen=True, kw_only=True)
class WaveSettings:
    """The sizes of waves, the judgement between two waves, and how much may go wrong on servers."""

    # The sizes of all waves but the last one, which takes the rest of the fleet.
    sizes: tuple[WaveSize, ...] = (WaveSize(server_count=1), WaveSize(share=0.1))
    # The most servers that swap at the same time.
    load_count_max: int = 10
    # The rule by which a single server judges its canary. A wave is judged after `request_count` requests, or
    # after `judged_seconds` by the requests that it has had. If `request_count` is 0, the wave is judged only
    # after `judged_seconds`.
    judgement: CanarySettings = _JUDGEMENT
    judged_seconds: float = 60.0
    # The most servers with the old version whose requests are compared.
    control_count_max: int = 200
    # A server that has not reported for this time is lost, and its load no longer takes a slot.
    lost_seconds: float = 30.0
    # A server whose load takes longer than this goes back to the stable version.
    load_seconds_max: float = 900.0
    # The largest share of a wave's servers on which a version may fail without being stopped.
    setback_share_max: float = 0.1
    # HOLD if a version waits for an operator after a gate has warned about it on a server; PASS if it goes on.
    warned_gates: str = HOLD

    def __post_init__(self) -> None:
        if self.load_count_max < 1:
            raise InvalidConfig(
                f"load_count_max {self.load_count_max} allows no load; give 1 or more"
            )
        if self.control_count_max < 1:
            raise InvalidConfig(
                f"control_count_max {self.control_count_max} leaves none to compare with; give 1 or more"
            )
        for name in ("judged_seconds", "lost_seconds", "load_seconds_max"):
            if not 0 < getattr(self, name) <= SECONDS_MAX:
                raise InvalidConfig(
                    f"{name} {getattr(self, name):g} is not a time; give more than 0, up to "
                    f"{SECONDS_MAX:g}"
                )
        for name in ("latency_ratio_max", "error_ratio_max"):
            if not 0 < getattr(self.judgement, name) < inf:
                raise InvalidConfig(
                    f"{name} {getattr(self.judgement, name):g} is not a ratio; give more than 0"
                )
        if self.warned_gates not in (HOLD, PASS):
            raise InvalidConfig(
                f'warned_gates {self.warned_gates!r} is neither "{HOLD}" nor "{PASS}"'
            )
        if not 0 <= self.setback_share_max < 1:
            raise InvalidConfig(
                f"setback_share_max {self.setback_share_max:g} is not a share; give 0 to 0.99"
            )

    def quota(self, wave_index: int, fleet_size: int) -> int:
        """The number of servers that the wave with this index needs. The last wave needs all."""
        is_last = self.is_last(wave_index)
        return fleet_size if is_last else self.sizes[wave_index].quota(fleet_size)

    def is_last(self, wave_index: int) -> bool:
        """True if the wave with this index is the last one, which takes the rest of the fleet."""
        return wave_index >= len(self.sizes)

    def failed_server_count_max(self, quota: int) -> int:
        """The number of servers on which a version may fail in a wave of `quota` servers.

        It is at least 1, because a failure on a single server may be the fault of that server.
        """
        return max(1, floor(self.setback_share_max * quota))

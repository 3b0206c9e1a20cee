"""What is known of one servable stream, and what follows from it. For the manager's control thread.

Decisions are functions of the values here and of the instant; the manager acts on them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.base.clock import NS_PER_SECOND
from serving.core.aspired_version_policy import Action, AspiredVersionPolicy, Load, policy_for
from serving.core.blocked_versions import BlockedVersion, as_rows
from serving.core.model_settings import ModelSettings
from serving.core.servable import (
    END,
    LOADING,
    START,
    AspiredVersion,
    Routing,
    ServableSnapshot,
    ServableState,
)
from serving.data_plane.servables import ServableStatistics
from serving.manager.failed_loads import FailedLoad, why_try_again
from serving.manager.harness import LoaderHarness


@dataclass(frozen=True, kw_only=True)
class SwapJitter:
    """The longest random delay of a swap, which keeps a fleet of servers out of step.

    `random` (0 to 1) draws the share of `max_seconds` that one swap is delayed by.
    """

    max_seconds: float = 0.0
    random: Callable[[], float] = lambda: 1.0

    @property
    def is_off(self) -> bool:
        """True if no swap is delayed."""
        return self.max_seconds == 0

    def draw_ns(self) -> int:
        """Draws the delay of one swap."""
        return round(self.random() * self.max_seconds * NS_PER_SECOND)


@dataclass(frozen=True, kw_only=True)
class StreamStatus:
    """One stream as status shows it. `previous`: in memory, ready for a rollback."""

    policy: str
    # Why an `auto` policy makes room first, at the moment; "" where it does not.
    room_reason: str = ""
    default_version: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    # Labels that wait for a version to be AVAILABLE, with its number.
    waiting_labels: Mapping[str, int] = field(default_factory=dict)
    canary_version: int | None = None
    canary_weight: float = 0.0
    previous: int | None = None
    # Blocked versions: by number, and with who blocked each, why and since when (`blocked_versions.as_rows`).
    blocked: tuple[int, ...] = ()
    blocked_versions: Sequence[Mapping[str, Any]] = ()


@dataclass
class Stream:
    """All versions of one name: what is aspired, and the lives under way or ended in failure."""

    settings: ModelSettings = field(default_factory=ModelSettings)
    # As the source has it; what is blocked in it is not aspired.
    wanted: tuple[AspiredVersion, ...] = ()
    blocked_versions: dict[int, BlockedVersion] = field(default_factory=dict)
    aspired: dict[int, AspiredVersion] = field(default_factory=dict)
    harnesses: dict[int, LoaderHarness] = field(default_factory=dict)
    # Versions that have been AVAILABLE, of those that are wanted or have a life.
    served: set[int] = field(default_factory=set)
    # Since when a version that is ready has another in its place (monotonic).
    superseded_at_ns: dict[int, int] = field(default_factory=dict)
    # When a swap to a version may begin, put off to keep a fleet out of step (monotonic).
    swap_at_ns: dict[int, int] = field(default_factory=dict)
    # By which settings each load began, and the loads that have failed by them for good.
    load_settings: dict[int, ModelSettings] = field(default_factory=dict)
    failed_loads: dict[int, FailedLoad] = field(default_factory=dict)
    # Those whose load was refused last for want of memory, when no other version could go for it.
    blocked_by_memory: set[int] = field(default_factory=set)
    # One that a person or a canary's figures blocked, and that comes back: no other one loads.
    last_resort: int | None = None
    # Why an old version goes before a new one comes, and for which one; see `unloads_first`.
    room_reason: str = ""
    pressing_version: int | None = None
    # The canary and the version beside it, and what that had answered when they came together.
    canary_pair: tuple[int, int] | None = None
    stable_before: ServableStatistics | None = None
    # A canary that goes on after it was out, and what it had answered until then.
    resumed_canary: tuple[int, ServableStatistics] | None = None
    # A superseded version that is no longer kept, because a load needs its memory.
    given_up_version: int | None = None
    # Only its blocked_versions are left.
    is_idle: bool = False

    @property
    def blocked(self) -> frozenset[int]:
        """Versions that are not aspired, whatever the source says."""
        return frozenset(self.blocked_versions)

    @property
    def has_rolled_back(self) -> bool:
        """Whether a person or a canary's figures blocked a version."""
        return any(block.is_until_told for block in self.blocked_versions.values())

    def find_last_resort(self, found: Collection[int]) -> int | None:
        """Of the versions `found` on disk, a rolled back one that has to serve all the same: every
        other one is blocked, and it has not failed. The one that answered last: of those that were
        blocked last, the lowest.
        """
        if set(found) - self.blocked or set(self.ready_versions) - self.blocked:
            return None
        rolled_back = [
            (block.since_wall_ns, -version)
            for version, block in self.blocked_versions.items()
            if block.is_until_told and version in found and version not in self.failed_loads
        ]
        return -max(rolled_back)[1] if rolled_back else None

    @property
    def left_out(self) -> frozenset[int]:
        """Of those that are blocked, the versions that a source leaves out and nothing aspires."""
        return self.blocked - {self.last_resort}

    @property
    def ready_versions(self) -> list[int]:
        """AVAILABLE, ascending."""
        return sorted(version for version, item in self.harnesses.items() if item.is_ready)

    def since_canary_began(
        self, canary: LoaderHarness, stable: LoaderHarness
    ) -> tuple[ServableStatistics, ServableStatistics]:
        """What both have answered since the canary began, or went on, and they came together."""
        answered, beside = canary.servable.statistics(), stable.servable.statistics()
        pair = (canary.id.version, stable.id.version)
        if self.canary_pair != pair or self.stable_before is None:
            self.canary_pair = pair
            self.stable_before = beside
        if self.resumed_canary is not None and self.resumed_canary[0] == canary.id.version:
            answered = answered.since(self.resumed_canary[1])
        return answered, beside.since(self.stable_before)

    def forget_canary(self) -> None:
        """No canary runs: the next one is judged by requests of its own."""
        self.canary_pair, self.stable_before, self.resumed_canary = None, None, None

    def resume_canary(self, canary: LoaderHarness) -> None:
        """A version that was a canary is one again: what it was judged by is over."""
        self.forget_canary()
        self.resumed_canary = (canary.id.version, canary.servable.statistics())

    def ready(self, version: int | None) -> LoaderHarness | None:
        """The version, where it is AVAILABLE."""
        harness = None if version is None else self.harnesses.get(version)
        return harness if harness is not None and harness.is_ready else None

    def previous(self, routing: Routing) -> int | None:
        """Returns the version that stays for a rollback, or to be allowed again after one.

        That is the highest ready version below the current one if it is not blocked; the result is
        None if it is aspired, because it then stays anyway. Without one: the highest blocked version.
        The current version is the one that answers, so a further version changes nothing here until
        it answers, and neither does a canary.
        """
        current = self._current_version(routing)
        if current is None:
            return None
        others = [version for version in self.ready_versions if version != current]
        sound = [item for item in others if item not in self.blocked and item < current]
        if sound and max(sound) not in self.aspired:
            return max(sound)
        blocked = [item for item in others if item in self.blocked and item not in self.aspired]
        return max(blocked, default=None)

    def _current_version(self, routing: Routing) -> int | None:
        """Returns the version that answers; if it was withdrawn for a lower one, that lower one."""
        default = routing.default_version
        if default is None or default in self.aspired:
            return default
        lower = [item for item in self.ready_versions if item in self.aspired and item < default]
        return max(lower, default=default)

    @property
    def policy(self) -> AspiredVersionPolicy:
        """The policy that the settings name."""
        return policy_for(self.settings)

    @property
    def unloads_first(self) -> bool:
        """True if an old version is unloaded before a new one is loaded, at the moment."""
        is_under_pressure = self.pressing_version is not None
        return self.policy.unloads_first(is_under_pressure=is_under_pressure)

    @property
    def yields_to_pressure(self) -> bool:
        """True if the policy unloads an old version first only for a version that does not fit."""
        policy = self.policy
        return policy.unloads_first(is_under_pressure=True) and not policy.unloads_first(
            is_under_pressure=False
        )

    def effective_aspired(self) -> Sequence[AspiredVersion]:
        """What is wanted and not blocked. Where all that is wanted is blocked, what serves instead."""
        allowed = [item for item in self.wanted if item.version not in self.left_out]
        if allowed or not self.wanted:
            return allowed
        ready = self.ready_versions
        sound = [version for version in ready if version not in self.blocked]
        # Any answer is better than none: without another version the blocked one that serves goes on.
        serving = sound or ready
        return [self.harnesses[max(serving)].aspired] if serving else self.wanted

    def note_superseded(self, routing: Routing, now_ns: int) -> None:
        """Remembers since when the previous version is that, and nothing else keeps it."""
        previous = self.previous(routing)
        if self.given_up_version != previous:
            self.given_up_version = None
        if previous is None or previous in _named_in(routing):
            self.superseded_at_ns = {}
        else:
            self.superseded_at_ns = {previous: self.superseded_at_ns.get(previous, now_ns)}

    def begin_to_make_room(self, version: int, reason: str) -> None:
        """From now on old versions go before `version` comes."""
        self.pressing_version, self.room_reason = version, reason

    def end_making_room(self) -> None:
        """Both may be in memory again."""
        self.pressing_version, self.room_reason = None, ""

    def superfluous_versions(self, routing: Routing) -> list[int]:
        """Those that may go so that another one fits, ascending. None while a label or a canary keeps
        one of them: the others would go for too little.
        """
        if self.has_named(routing):
            return []
        return [version for version in self.ready_versions if version not in self.aspired]

    def swap_of(self, action: Action) -> int | None:
        """The version for which `action` takes one from requests or loads one; None: for none.

        What goes while an aspired version answers takes nothing away.
        """
        if isinstance(action, Load):
            return action.id.version
        if not self.unloads_first or self.aspired.keys() & set(self.ready_versions):
            return None
        return max(self._versions_in(START, LOADING) & self.aspired.keys(), default=None)

    def has_named(self, routing: Routing) -> bool:
        """Whether a version that is not aspired stays for a label or beside a canary."""
        named = _named_in(routing)
        return any(item in named and item not in self.aspired for item in self.ready_versions)

    def keep_until_ns(self) -> int | None:
        """Until when the previous version stays for a rollback; None where there is none to keep."""
        seconds = self.settings.keep_previous_seconds
        if seconds == 0 or not self.superseded_at_ns:
            return None
        ((version, superseded_at_ns),) = self.superseded_at_ns.items()
        if version == self.given_up_version:
            return None
        if version in self.blocked and self._wants_to_load():
            # No rollback leads to a blocked version: it does not cost a load memory for three.
            return None
        return superseded_at_ns + round(seconds * NS_PER_SECOND)

    def previous_that_makes_room(self, missing_bytes: int) -> int | None:
        """Returns the version that is kept for a rollback, if its memory is enough for a load that
        lacks `missing_bytes`; else None.
        """
        if self.unloads_first or self.keep_until_ns() is None:
            return None
        (version,) = self.superseded_at_ns
        harness = self.ready(version)
        if harness is None or version in self.aspired:
            return None
        freed_bytes = harness.status.figures.get("parameter_bytes", missing_bytes)
        return version if freed_bytes >= missing_bytes else None

    def snapshots(self, routing: Routing, now_ns: int) -> list[ServableSnapshot]:
        """What a policy sees."""
        kept = self._kept_versions(routing, now_ns) if self.aspired else frozenset()
        return [
            harness.snapshot(
                is_aspired=version in self.aspired,
                is_kept=version in kept,
                is_blocked=version in self.blocked or _is_passed_over(version, routing),
                is_given_up=version == self.given_up_version,
                is_pressing=version == self.pressing_version,
            )
            for version, harness in self.harnesses.items()
        ]

    def status(self, routing: Routing, wanted_labels: Mapping[str, int]) -> StreamStatus:
        """As a value."""
        return StreamStatus(
            policy=self.settings.aspired_version_policy.value,
            room_reason=self.room_reason,
            default_version=routing.default_version,
            labels=dict(routing.labels),
            waiting_labels={
                label: version
                for label, version in wanted_labels.items()
                if routing.labels.get(label) != version
            },
            canary_version=routing.canary_version,
            canary_weight=routing.canary_weight,
            previous=self.previous(routing),
            blocked=tuple(sorted(self.blocked)),
            blocked_versions=as_rows(self.blocked_versions),
        )

    def is_outdated(self, harness: LoaderHarness) -> bool:
        """Whether the version has other files by now, which wait for a life of their own."""
        found = [item for item in self.wanted if item.version == harness.id.version]
        return bool(found) and found[0] != harness.aspired

    def load_failed(self, harness: LoaderHarness) -> None:
        """Remembers a load that has failed for good, and by which settings."""
        version = harness.id.version
        if self.is_outdated(harness):
            return
        self.failed_loads[version] = FailedLoad.of(
            harness.status, self.load_settings.get(version, self.settings)
        )

    def worth_another_try(self, routing: Routing) -> dict[int, str]:
        """Versions whose load failed by what is another now, and what has changed."""
        reasons = {
            version: why_try_again(failed, self.settings)
            or self._why_room_can_be_made(version, routing)
            for version, failed in self.failed_loads.items()
        }
        return {version: reason for version, reason in reasons.items() if reason}

    def _why_room_can_be_made(self, version: int, routing: Routing) -> str:
        is_wanted = version in self.blocked_by_memory and version in self.aspired
        superfluous = self.superfluous_versions(routing) if is_wanted else []
        return f"version {superfluous[0]} may go for it now" if superfluous else ""

    def forget_past_swaps(self) -> None:
        """Those that are over, or whose version has another life to come."""
        coming = self._versions_in(START, LOADING)
        self.swap_at_ns = {key: at_ns for key, at_ns in self.swap_at_ns.items() if key in coming}

    def forget_past_loads(self) -> None:
        """Of versions that are not waiting to be tried again."""
        self.load_settings = {
            version: settings
            for version, settings in self.load_settings.items()
            if version in self.harnesses
        }
        self.failed_loads = {
            version: failed
            for version, failed in self.failed_loads.items()
            if self._has_ended(version)
            or version in self.blocked_versions.keys() - self.harnesses.keys()
        }
        self.blocked_by_memory &= self.harnesses.keys()
        self.served &= self.harnesses.keys() | {item.version for item in self.wanted}

    def _versions_in(self, *states: ServableState) -> set[int]:
        return {key for key, harness in self.harnesses.items() if harness.status.state in states}

    def _has_ended(self, version: int) -> bool:
        return version in self.harnesses and self.harnesses[version].status.state is END

    def _wants_to_load(self) -> bool:
        return any(
            harness.status.state is START and version in self.aspired
            for version, harness in self.harnesses.items()
        )

    def _kept_versions(self, routing: Routing, now_ns: int) -> frozenset[int]:
        kept = _named_in(routing)
        until_ns = None if self.unloads_first else self.keep_until_ns()
        if until_ns is not None and now_ns < until_ns:
            kept |= self.superseded_at_ns.keys()
        return frozenset(kept)


def _is_passed_over(version: int, routing: Routing) -> bool:
    """Whether requests go to a lower one: it was never found good."""
    return routing.default_version is not None and version > routing.default_version


def _named_in(routing: Routing) -> set[int]:
    """Those that a label leads to, and a canary with the version beside it."""
    named = set(routing.labels.values())
    if routing.canary_version is not None and routing.default_version is not None:
        named |= {routing.canary_version, routing.default_version}
    return named

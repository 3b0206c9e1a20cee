"""Stream: the state of one servable stream, and the decisions that follow from it. Control thread only.

Decisions are functions of the values here and of the current time. The manager acts on them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.base.clock import NS_PER_SECOND
from serving.core.aspired_version_policy import Action, AspiredVersionPolicy, Load, policy_for
from serving.core.blocked_versions import as_rows
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
from serving.manager import canary
from serving.manager.blocked_state import BlockedState
from serving.manager.canary_state import CanaryState
from serving.manager.failed_loads import LoadHistory
from serving.manager.harness import LoaderHarness
from serving.manager.kept_previous import KeptPrevious
from serving.manager.pressure_state import PressureState


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
    """One stream as the status shows it. `previous` is in memory, ready for a rollback."""

    policy: str
    # The reason why an `auto` policy now unloads first; "" if it does not.
    unload_first_reason: str = ""
    default_version: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    # Labels that wait for a version to be AVAILABLE, with its number.
    waiting_labels: Mapping[str, int] = field(default_factory=dict)
    canary_version: int | None = None
    canary_weight: float = 0.0
    # How far the canary is from its judgement, and the rule, for people; "" without a canary.
    canary_progress: str = ""
    previous: int | None = None
    # Blocked versions, as numbers and as the rows of `blocked_versions.as_rows`.
    blocked: tuple[int, ...] = ()
    blocked_versions: Sequence[Mapping[str, Any]] = ()


@dataclass
class Stream:
    """All versions of one name: the aspired ones, and the lives under way or ended in failure.

    Five parts hold a state with a rule of its own. The other methods are rules on several parts.

    `wanted` are the versions that the source aspires. `aspired` are the wanted versions without the
    blocked ones (see `effective_aspired`). A *kept* version stays in memory for a rollback. A version
    is *given up* if a load needs its memory. A load *presses* while it waits for memory that an old
    version must free.
    """

    settings: ModelSettings = field(default_factory=ModelSettings)
    wanted: tuple[AspiredVersion, ...] = ()
    aspired: dict[int, AspiredVersion] = field(default_factory=dict)
    harnesses: dict[int, LoaderHarness] = field(default_factory=dict)
    # The versions that were AVAILABLE at some time. Versions that are neither wanted nor in `harnesses`
    # are dropped.
    served: set[int] = field(default_factory=set)
    # The time at which a delayed swap to a version may begin (monotonic); see `SwapJitter`.
    swap_at_ns: dict[int, int] = field(default_factory=dict)
    # True if only the blocked versions of the stream are left.
    is_idle: bool = False

    blocks: BlockedState = field(default_factory=BlockedState)
    pressure: PressureState = field(default_factory=PressureState)
    canary: CanaryState = field(default_factory=CanaryState)
    kept: KeptPrevious = field(default_factory=KeptPrevious)
    loads: LoadHistory = field(default_factory=LoadHistory)

    @property
    def ready_versions(self) -> list[int]:
        """The AVAILABLE versions, ascending."""
        return sorted(version for version, item in self.harnesses.items() if item.is_ready)

    def find_last_resort(self, found: Collection[int], now_wall_ns: int = 0) -> int | None:
        """See `BlockedState.find_last_resort`."""
        return self.blocks.find_last_resort(
            found, self.ready_versions, self.loads.failed, now_wall_ns
        )

    def ready(self, version: int | None) -> LoaderHarness | None:
        """Returns the harness of `version` if that is AVAILABLE."""
        harness = None if version is None else self.harnesses.get(version)
        return harness if harness is not None and harness.is_ready else None

    def previous(self, routing: Routing) -> int | None:
        """Returns the version to keep for a rollback; None if there is no such version.

        That is the highest ready version below the current one that is not blocked. If that version
        is missing or aspired, it is the highest ready version that is blocked, which an operator may
        allow again. An aspired version is never returned, because it stays without being kept. A
        newer version that does not answer yet, such as a canary, changes nothing.
        """
        current = self._current_version(routing)
        if current is None:
            return None
        others = [version for version in self.ready_versions if version != current]
        sound = [item for item in self.blocks.unblocked_of(others) if item < current]
        if sound and max(sound) not in self.aspired:
            return max(sound)
        blocked = [item for item in self.blocks.blocked_of(others) if item not in self.aspired]
        return max(blocked, default=None)

    def _current_version(self, routing: Routing) -> int | None:
        """Returns the version that answers.

        If it is no longer aspired and a lower aspired version is ready, returns that version.
        """
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
        """True if an old version must be unloaded before a new one is loaded."""
        return self.policy.unloads_first(is_under_pressure=self.pressure.is_on)

    @property
    def yields_to_pressure(self) -> bool:
        """True if the policy unloads an old version first only while memory is short."""
        policy = self.policy
        return policy.unloads_first(is_under_pressure=True) and not policy.unloads_first(
            is_under_pressure=False
        )

    def effective_aspired(self) -> Sequence[AspiredVersion]:
        """Returns the wanted versions that are not left out.

        If all wanted versions are left out, returns the highest ready version instead, preferably one
        that is not blocked. If no version is ready either, returns the wanted versions that have not
        crashed the server.
        """
        allowed = [item for item in self.wanted if item.version not in self.blocks.left_out]
        if allowed or not self.wanted:
            return allowed
        ready = self.ready_versions
        # Without another version the blocked one serves on: any answer is better than no answer.
        serving = self.blocks.unblocked_of(ready) or ready
        if serving:
            return [self.harnesses[max(serving)].aspired]
        return [item for item in self.wanted if item.version not in self.blocks.crashed]

    def note_superseded(self, routing: Routing, now_ns: int) -> None:
        """Records since when the previous version is in memory only for a rollback."""
        previous = self.previous(routing)
        self.kept.note(previous, is_named=previous in _named_in(routing), now_ns=now_ns)

    def superfluous_versions(self, routing: Routing) -> list[int]:
        """Returns the ready versions that may be unloaded so that another one fits, ascending.

        Returns none while a label or a canary keeps one of them, because the others alone would
        rarely free enough memory.
        """
        if self.has_named(routing):
            return []
        return [version for version in self.ready_versions if version not in self.aspired]

    def swap_of(self, action: Action) -> int | None:
        """Returns the version that `action` loads or makes room for.

        Returns None for an unload that makes room for no version, or while an aspired version is ready.
        """
        if isinstance(action, Load):
            return action.id.version
        if not self.unloads_first or self.aspired.keys() & set(self.ready_versions):
            return None
        return max(self._versions_in(START, LOADING) & self.aspired.keys(), default=None)

    def has_named(self, routing: Routing) -> bool:
        """True if a version that is not aspired stays for a label or beside a canary."""
        named = _named_in(routing)
        return any(item in named and item not in self.aspired for item in self.ready_versions)

    def keep_until_ns(self) -> int | None:
        """Returns the end of the time for which the previous version is kept for a rollback.

        Returns None if no version is kept. Monotonic.
        """
        if self.kept.version in self.blocks and self._wants_to_load():
            # A rollback cannot return to a blocked version, so a load need not fit beside it.
            return None
        return self.kept.until_ns(self.settings.keep_previous_seconds)

    def previous_that_frees_memory(self, missing_bytes: int) -> int | None:
        """Returns the version that is kept for a rollback if its memory is enough for a load.

        The load lacks `missing_bytes`. Returns None if no version is kept, or its memory is too small.
        """
        version = self.kept.version
        if version is None or self.unloads_first or self.keep_until_ns() is None:
            return None
        harness = self.ready(version)
        if harness is None or version in self.aspired:
            return None
        freed_bytes = harness.status.figures.get("parameter_bytes", missing_bytes)
        return version if freed_bytes >= missing_bytes else None

    def snapshots(self, routing: Routing, now_ns: int) -> list[ServableSnapshot]:
        """Returns the versions as a policy sees them."""
        kept = self._kept_versions(routing, now_ns) if self.aspired else frozenset()
        return [
            harness.snapshot(
                is_aspired=version in self.aspired,
                is_kept=version in kept,
                is_blocked=version in self.blocks or _is_passed_over(version, routing),
                is_given_up=version == self.kept.given_up,
                is_pressing=version == self.pressure.pressing_version,
            )
            for version, harness in self.harnesses.items()
        ]

    def status(self, routing: Routing, wanted_labels: Mapping[str, int]) -> StreamStatus:
        """Returns the stream as the status shows it."""
        return StreamStatus(
            policy=self.settings.aspired_version_policy.value,
            unload_first_reason=self.pressure.reason,
            default_version=routing.default_version,
            labels=dict(routing.labels),
            waiting_labels={
                label: version
                for label, version in wanted_labels.items()
                if routing.labels.get(label) != version
            },
            canary_version=routing.canary_version,
            canary_weight=routing.canary_weight,
            canary_progress=self._canary_progress(routing.canary_version),
            previous=self.previous(routing),
            blocked=tuple(sorted(self.blocks.versions)),
            blocked_versions=as_rows(self.blocks.by_version),
        )

    def _canary_progress(self, version: int | None) -> str:
        if version is None:
            return ""
        return canary.progress_text(
            self.settings.canary,
            self.canary.answered_count,
            is_doubted=self.canary.is_doubted(version),
        )

    def is_outdated(self, harness: LoaderHarness) -> bool:
        """True if the source has found other files for this version. A new harness loads them."""
        found = [item for item in self.wanted if item.version == harness.id.version]
        return bool(found) and found[0] != harness.aspired

    def load_failed(self, harness: LoaderHarness) -> None:
        """Records a load that has failed and is not retried, with the settings that it began with."""
        if not self.is_outdated(harness):
            self.loads.note_failure(harness.aspired, harness.status, self.settings)

    def worth_another_try(self, routing: Routing) -> dict[int, str]:
        """Returns the failed versions worth a retry because a cause of the failure has changed.

        The values are the changes, as texts.
        """
        reasons = {
            version: self.loads.why_try_again(version, self.settings)
            or self._why_memory_can_be_freed(version, routing)
            for version in self.loads.failed
        }
        return {version: reason for version, reason in reasons.items() if reason}

    def _why_memory_can_be_freed(self, version: int, routing: Routing) -> str:
        is_wanted = self.pressure.lacks_memory(version) and version in self.aspired
        superfluous = self.superfluous_versions(routing) if is_wanted else []
        return f"version {superfluous[0]} can be unloaded for it now" if superfluous else ""

    def forget_past_swaps(self) -> None:
        """Removes the times of delayed swaps whose version is not waiting or loading any more."""
        coming = self._versions_in(START, LOADING)
        self.swap_at_ns = {key: at_ns for key, at_ns in self.swap_at_ns.items() if key in coming}

    def forget_past_loads(self) -> None:
        """Forgets the loads of versions without a harness, and the failures of versions with a new one.

        Keeps the failure of a blocked version that has no harness.
        """
        blocked_without_life = self.blocks.versions - self.harnesses.keys()
        self.loads.keep_only(
            begun=self.harnesses.keys(), failed=self._versions_in(END) | blocked_without_life
        )
        self.pressure.keep_only(self.harnesses.keys())
        self.served &= self.harnesses.keys() | {item.version for item in self.wanted}

    def _versions_in(self, *states: ServableState) -> set[int]:
        return {key for key, harness in self.harnesses.items() if harness.status.state in states}

    def _wants_to_load(self) -> bool:
        return any(
            harness.status.state is START and version in self.aspired
            for version, harness in self.harnesses.items()
        )

    def _kept_versions(self, routing: Routing, now_ns: int) -> frozenset[int]:
        kept = _named_in(routing)
        until_ns = None if self.unloads_first else self.keep_until_ns()
        if self.kept.version is not None and until_ns is not None and now_ns < until_ns:
            kept.add(self.kept.version)
        return frozenset(kept)


def _is_passed_over(version: int, routing: Routing) -> bool:
    """True if requests go to a lower version: this one did not pass its canary."""
    return routing.default_version is not None and version > routing.default_version


def _named_in(routing: Routing) -> set[int]:
    """Returns the versions that a label leads to, and a canary with the version beside it."""
    named = set(routing.labels.values())
    if routing.canary_version is not None and routing.default_version is not None:
        named |= {routing.canary_version, routing.default_version}
    return named

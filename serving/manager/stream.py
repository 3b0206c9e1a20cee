"""The state of one servable stream: a value, and what follows from it without an event.

`decision.py` decides what follows from a state next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any

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
from serving.manager.canary_state import NO_COMPARISON, CanaryState
from serving.manager.failed_loads import FailedLoad, why_try_again
from serving.manager.harness import LoaderHarness, RetryPolicy
from serving.manager.kept_previous import KeptPrevious
from serving.manager.pressure_state import PressureState
from serving.manager.routing import Canary, RoutingRequests


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a server that hold for all of its streams."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    # The longest random delay of a swap, which keeps a fleet of servers out of step.
    swap_jitter_seconds: float = 0.0


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
    # The progress of a canary towards its judgement, and the rule, for people; "" without a canary.
    canary_progress: str = ""
    previous: int | None = None
    # The directory of each version that serves and has loaded other files than are there now.
    other_files: Mapping[int, str] = field(default_factory=dict)
    # Blocked versions, as numbers and as the rows of `blocked_versions.as_rows`.
    blocked: tuple[int, ...] = ()
    blocked_versions: Sequence[Mapping[str, Any]] = ()


SERVED_COUNT_MAX = 1_000
"""The highest versions that a rollback knows to have served. A model with a version every minute must not
grow its state without limit."""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


def _nothing() -> Mapping[Any, Any]:
    return _NOTHING


_SETTINGS = ModelSettings()
_RULES = Rules()


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """All versions of one name: the aspired ones, and the lives under way or ended in failure.

    A state never changes. The control thread replaces it as a whole, so any thread may read it.

    `selected` are the versions that the source aspires. `aspired` are the selected ones that are not left
    out (see `effective_aspired`). The words for a version:

    left out: it is blocked, and is not the fallback.
    named: a label leads to it, or it is a canary, or the version beside a canary.
    kept: it is the previous version, and is in memory only for a rollback, or it is named.
    given up: it was kept, but a load needs its memory.
    spare: it is ready and not aspired, so a load that does not fit may have its memory.
    passed over: requests go to a lower version: its canary is under way, or was not passed.
    pressing: its load waits for memory that an old version must free.
    """

    name: str
    rules: Rules = _RULES
    settings: ModelSettings = _SETTINGS
    # The labels as they are requested.
    labels: Mapping[str, int] = field(default_factory=_nothing)
    selected: tuple[AspiredVersion, ...] = ()
    aspired: Mapping[int, AspiredVersion] = field(default_factory=_nothing)
    harnesses: Mapping[int, LoaderHarness] = field(default_factory=_nothing)
    # The versions that were AVAILABLE at some time, at most SERVED_COUNT_MAX.
    served: frozenset[int] = frozenset()
    # Since when a version is AVAILABLE without a break (monotonic).
    served_since_ns: int | None = None
    # The time before which a delayed swap to a version must not begin (monotonic); see `Rules`.
    swap_at_ns: Mapping[int, int] = field(default_factory=_nothing)
    # True if nothing is left of the stream but blocked versions, labels and settings.
    is_idle: bool = True

    blocks: BlockedState = field(default_factory=BlockedState)
    pressure: PressureState = field(default_factory=PressureState)
    kept: KeptPrevious = field(default_factory=KeptPrevious)
    # The loads that have failed and are not retried.
    failed: Mapping[int, FailedLoad] = field(default_factory=_nothing)

    # The routing as requests see it, and what it follows from beside the blocks and the labels.
    routing: Routing = field(default_factory=Routing)
    # The former version of each label. The label leads to it again if its new version is unloaded before
    # it.
    former_labels: Mapping[str, int] = field(default_factory=_nothing)
    canary: Canary | None = None
    # Versions that began as canaries and were never promoted. They are not the default while another
    # version is there.
    unverified: frozenset[int] = frozenset()
    comparison: CanaryState = NO_COMPARISON

    def served_with(self, version: int) -> frozenset[int]:
        """Adds `version` to the versions that were AVAILABLE at some time, and drops the lowest if they are
        too many.
        """
        served = self.served | {version}
        return served if len(served) <= SERVED_COUNT_MAX else served - {min(served)}

    def changed(self, **changes: Any) -> "StreamState":
        """The state with other values of these fields. Raises TypeError for a name that is no field.

        It takes a fraction of the time of `dataclasses.replace`, which matters in tests of many sequences.
        """
        if not changes.keys() <= _FIELDS:
            raise TypeError(
                f"StreamState has no field {', '.join(sorted(changes.keys() - _FIELDS))}"
            )
        after = object.__new__(StreamState)
        after.__dict__.update(self.__dict__)
        # The cached value may follow from a field that changes.
        after.__dict__.pop("ready_versions", None)
        after.__dict__.update(changes)
        return after

    def with_harness(self, harness: LoaderHarness) -> "StreamState":
        """Replaces the life of a version."""
        return self.changed(harnesses={**self.harnesses, harness.id.version: harness})

    @property
    def exists(self) -> bool:
        """True if the stream has, awaits or blocks a version."""
        return not self.is_idle or bool(self.selected) or bool(self.blocks)

    @property
    def is_forgettable(self) -> bool:
        """True if nothing would be lost by forgetting this state."""
        return not (self.exists or self.labels or self.settings != _SETTINGS)

    @property
    def is_loading(self) -> bool:
        """True if a load is under way, waits for a retry, or waits until the policy begins it."""
        return bool(self._versions_in(START, LOADING))

    @cached_property
    def ready_versions(self) -> tuple[int, ...]:
        """The AVAILABLE versions, ascending. These are the published versions."""
        return tuple(sorted(key for key, item in self.harnesses.items() if item.is_ready))

    @property
    def routing_requests(self) -> RoutingRequests:
        """The inputs of the routing. A blocked version that is aspired is a fallback."""
        return RoutingRequests(
            labels=self.labels,
            former_labels=self.former_labels,
            blocked=self.blocks.versions,
            fallbacks=self.blocks.versions & self.aspired.keys(),
            aspired=frozenset(self.aspired),
            canary=self.canary,
            unverified=self.unverified,
        )

    def ready(self, version: int | None) -> LoaderHarness | None:
        """The harness of `version`, if the version is AVAILABLE."""
        harness = None if version is None else self.harnesses.get(version)
        return harness if harness is not None and harness.is_ready else None

    def previous(self) -> int | None:
        """The version to keep for a rollback; None if there is no such version.

        That is the highest ready version below the current one that is not blocked. If that version
        is missing or aspired, it is the highest ready version that is blocked, which an operator may
        allow again. An aspired version is never returned, because it stays without being kept. A
        newer version that does not answer yet, such as a canary, changes nothing.
        """
        current = self._current_version()
        if current is None:
            return None
        others = [version for version in self.ready_versions if version != current]
        sound = [item for item in self.blocks.unblocked_of(others) if item < current]
        if sound and max(sound) not in self.aspired:
            return max(sound)
        blocked = [item for item in self.blocks.blocked_of(others) if item not in self.aspired]
        return max(blocked, default=None)

    def _current_version(self) -> int | None:
        """The version that answers.

        If it is no longer aspired and a lower aspired version is ready, returns that version.
        """
        default = self.routing.default_version
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
        """The selected versions that are not left out.

        If all selected versions are left out, returns the highest ready version instead, preferably one
        that is not blocked. If no version is ready either, returns the selected versions that have not
        crashed the server, without those that gates have refused unless all were.
        """
        allowed = [item for item in self.selected if item.version not in self.blocks.left_out]
        if allowed or not self.selected:
            return allowed
        ready = self.ready_versions
        # Without another version the blocked one serves on, because any answer is better than no answer.
        serving = self.blocks.unblocked_of(ready) or ready
        if serving:
            return [self.harnesses[max(serving)].aspired]
        left = [item for item in self.selected if item.version not in self.blocks.crashed]
        return [item for item in left if item.version not in self.blocks.refused] or left

    def kept_after(self, now_ns: int) -> KeptPrevious:
        """The state of the previous version: which one is in memory only for a rollback now, and since
        when.
        """
        previous = self.previous()
        return self.kept.after(
            previous, is_named=previous in _named_in(self.routing), now_ns=now_ns
        )

    def spare_versions(self) -> list[int]:
        """The ready versions that may be unloaded so that another one fits, ascending.

        There are none while a label or a canary keeps one of them, because the others alone would rarely
        free enough memory.
        """
        if self._has_named():
            return []
        return [version for version in self.ready_versions if version not in self.aspired]

    def swap_of(self, action: Action) -> int | None:
        """The version that `action` loads or makes room for.

        None for an unload that makes room for no version, or while an aspired version is ready.
        """
        if isinstance(action, Load):
            return action.id.version
        if not self.unloads_first or self.aspired.keys() & set(self.ready_versions):
            return None
        return max(self._versions_in(START, LOADING) & self.aspired.keys(), default=None)

    def _has_named(self) -> bool:
        """True if a version that is not aspired stays for a label or beside a canary."""
        named = _named_in(self.routing)
        return any(item in named and item not in self.aspired for item in self.ready_versions)

    def keep_until_ns(self) -> int | None:
        """The end of the time for which the previous version is kept for a rollback.

        Returns None if no version is kept. Monotonic.
        """
        if self.kept.version in self.blocks and self._wants_to_load():
            # A rollback cannot return to a blocked version, so a load need not fit beside it.
            return None
        return self.kept.until_ns(self.settings.keep_previous_seconds)

    def previous_that_frees_memory(self, missing_bytes: int) -> int | None:
        """The version that is kept for a rollback if its memory is enough for a load.

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

    def snapshots(self, now_ns: int) -> list[ServableSnapshot]:
        """The versions as a policy sees them."""
        kept = self._kept_versions(now_ns) if self.aspired else frozenset()
        return [
            ServableSnapshot(
                id=harness.id,
                state=harness.state,
                is_aspired=version in self.aspired,
                is_kept=version in kept,
                is_blocked=version in self.blocks or _is_passed_over(version, self.routing),
                is_given_up=version == self.kept.given_up,
                is_pressing=version == self.pressure.pressing_version,
            )
            for version, harness in self.harnesses.items()
        ]

    def status(self) -> StreamStatus:
        """The stream as the status shows it."""
        routing = self.routing
        return StreamStatus(
            policy=self.settings.aspired_version_policy.value,
            unload_first_reason=self.pressure.reason,
            default_version=routing.default_version,
            labels=dict(routing.labels),
            waiting_labels={
                label: version
                for label, version in self.labels.items()
                if routing.labels.get(label) != version
            },
            canary_version=routing.canary_version,
            canary_weight=routing.canary_weight,
            canary_progress=self._canary_progress(routing.canary_version),
            previous=self.previous(),
            other_files={
                version: harness.aspired.directory
                for version, harness in self.harnesses.items()
                if harness.is_ready and harness.has_other_files
            },
            blocked=tuple(sorted(self.blocks.versions)),
            blocked_versions=as_rows(self.blocks.by_version),
        )

    def _canary_progress(self, version: int | None) -> str:
        if version is None:
            return ""
        return canary.progress_text(
            self.settings.canary,
            self.comparison.answered_count,
            is_doubted=self.comparison.doubted == version,
        )

    def is_outdated(self, harness: LoaderHarness) -> bool:
        """True if the source has found other files for this version, so that a new harness must load them."""
        found = [item for item in self.selected if item.version == harness.id.version]
        return bool(found) and found[0] != harness.aspired

    def with_failed_load(self, harness: LoaderHarness) -> "StreamState":
        """Notes a load that has failed and is not retried, with its settings."""
        if self.is_outdated(harness):
            return self
        settings = harness.begun_with or self.settings
        load = FailedLoad.of(harness.aspired, harness.status, settings)
        return self.changed(failed={**self.failed, harness.id.version: load})

    def worth_another_try(self) -> dict[int, str]:
        """The failed versions worth a retry because a cause of the failure has changed.

        The values are the changes, as texts.
        """
        reasons = {
            version: why_try_again(load, self.settings) or self._why_memory_can_be_freed(version)
            for version, load in self.failed.items()
        }
        return {version: reason for version, reason in reasons.items() if reason}

    def _why_memory_can_be_freed(self, version: int) -> str:
        is_lacking = version in self.pressure.lacking and version in self.aspired
        spare = self.spare_versions() if is_lacking else []
        return f"version {spare[0]} can be unloaded for it now" if spare else ""

    def without_past_failures(self) -> "StreamState":
        """Forgets the failures of versions that are gone or have a new life.

        Keeps the failure of a blocked version that has no life.
        """
        if not self.failed:
            return self
        kept = self._versions_in(END) | (self.blocks.versions - self.harnesses.keys())
        failed = {key: item for key, item in self.failed.items() if key in kept}
        return self if len(failed) == len(self.failed) else self.changed(failed=failed)

    def without_past_lives(self) -> "StreamState":
        """Forgets what belongs to versions that have no life any more.

        The time of a delayed swap is kept until its version is loaded.
        """
        known, after = self.harnesses.keys(), self
        if not self.pressure.lacking <= known:
            after = after.changed(pressure=self.pressure.only(known))
        if self.swap_at_ns:
            coming = self._versions_in(START, LOADING)
            swaps = {key: at_ns for key, at_ns in self.swap_at_ns.items() if key in coming}
            after = after.changed(swap_at_ns=swaps)
        return after

    def _versions_in(self, *states: ServableState) -> set[int]:
        return {key for key, harness in self.harnesses.items() if harness.state in states}

    def _wants_to_load(self) -> bool:
        return any(
            harness.state is START and version in self.aspired
            for version, harness in self.harnesses.items()
        )

    def _kept_versions(self, now_ns: int) -> frozenset[int]:
        kept = _named_in(self.routing)
        until_ns = None if self.unloads_first else self.keep_until_ns()
        if self.kept.version is not None and until_ns is not None and now_ns < until_ns:
            kept.add(self.kept.version)
        return frozenset(kept)


_FIELDS = frozenset(item.name for item in fields(StreamState))


def _is_passed_over(version: int, routing: Routing) -> bool:
    """True if requests go to a lower version. For a version in memory, that is while its canary is under way, and
    after a canary that it did not pass.
    """
    return routing.default_version is not None and version > routing.default_version


def _named_in(routing: Routing) -> set[int]:
    """The versions that a label leads to, and the canary with the version beside it."""
    named = set(routing.labels.values())
    if routing.canary_version is not None and routing.default_version is not None:
        named |= {routing.canary_version, routing.default_version}
    return named

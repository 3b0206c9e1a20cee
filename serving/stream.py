"""What is known of one servable stream, and what follows from it. For the manager's control thread.

Decisions are functions of the values here and of the instant; the manager acts on them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.clock import NS_PER_SECOND
from serving.harness import LoaderHarness
from serving.model_settings import ModelSettings, PolicyName
from serving.servable import START, AspiredVersion, Routing, ServableSnapshot


@dataclass(frozen=True, kw_only=True)
class StreamStatus:
    """One stream as status shows it. `previous`: in memory, ready for a rollback."""

    policy: str
    # Why an `auto` policy makes room first, at the moment; "" where it does not.
    room_reason: str = ""
    default_version: int | None = None
    labels: Mapping[str, int] = field(default_factory=dict)
    canary_version: int | None = None
    canary_weight: float = 0.0
    previous: int | None = None
    barred: tuple[int, ...] = ()


@dataclass
class Stream:
    """All versions of one name: what is aspired, and the lives under way or ended in failure."""

    settings: ModelSettings = field(default_factory=ModelSettings)
    # As the source has it; what is barred in it is not aspired.
    wanted: tuple[AspiredVersion, ...] = ()
    barred: frozenset[int] = frozenset()
    aspired: dict[int, AspiredVersion] = field(default_factory=dict)
    harnesses: dict[int, LoaderHarness] = field(default_factory=dict)
    # Since when a version that is ready has another in its place (monotonic).
    superseded_at_ns: dict[int, int] = field(default_factory=dict)
    # When a load that is put off to keep a fleet out of step may begin (monotonic).
    load_at_ns: dict[int, int] = field(default_factory=dict)
    room_reason: str = ""

    @property
    def ready_versions(self) -> list[int]:
        """AVAILABLE, ascending."""
        return sorted(version for version, item in self.harnesses.items() if item.is_ready)

    @property
    def previous(self) -> int | None:
        """The one that stays for a rollback, or to be allowed again after one: superseded, the highest
        that is not barred, else of those that are. A higher one that was withdrawn is neither: it
        would go on answering.
        """
        ready = self.ready_versions
        newest = max((version for version in ready if version in self.aspired), default=None)
        if newest is None:
            return None
        others = [version for version in ready if version not in self.aspired]
        sound = [item for item in others if item not in self.barred and item < newest]
        barred = [item for item in others if item in self.barred]
        return max(sound or barred, default=None)

    @property
    def is_resource_preserving(self) -> bool:
        """Whether an old version goes before a new one comes."""
        policy = self.settings.aspired_version_policy
        return policy is PolicyName.RESOURCE or bool(self.room_reason)

    def effective_aspired(self) -> Sequence[AspiredVersion]:
        """What is wanted and not barred. Where all that is wanted is barred, what serves instead."""
        allowed = [item for item in self.wanted if item.version not in self.barred]
        if allowed or not self.wanted:
            return allowed
        sound = [version for version in self.ready_versions if version not in self.barred]
        # Any answer is better than none: without another version the barred ones go on.
        return [self.harnesses[max(sound)].aspired] if sound else self.wanted

    def note_superseded(self, now_ns: int) -> None:
        """Remembers since when the previous version is that."""
        previous = self.previous
        since = {} if previous is None else {previous: self.superseded_at_ns.get(previous, now_ns)}
        self.superseded_at_ns = since

    def keep_until_ns(self) -> int | None:
        """Until when the previous version stays for a rollback; None where there is none to keep."""
        seconds = self.settings.keep_previous_seconds
        if seconds == 0 or not self.superseded_at_ns or self._wants_to_load():
            # Memory for three is what nobody asked for: the next version takes its place.
            return None
        return next(iter(self.superseded_at_ns.values())) + round(seconds * NS_PER_SECOND)

    def snapshots(self, routing: Routing, now_ns: int) -> list[ServableSnapshot]:
        """What a policy sees."""
        kept = self._kept_versions(routing, now_ns) if self.aspired else frozenset()
        return [
            harness.snapshot(
                is_aspired=version in self.aspired,
                is_kept=version in kept,
                is_barred=version in self.barred,
            )
            for version, harness in self.harnesses.items()
        ]

    def status(self, routing: Routing) -> StreamStatus:
        """As a value."""
        return StreamStatus(
            policy=self.settings.aspired_version_policy.value,
            room_reason=self.room_reason,
            default_version=routing.default_version or max(self.ready_versions, default=None),
            labels=dict(routing.labels),
            canary_version=routing.canary_version,
            canary_weight=routing.canary_weight,
            previous=self.previous,
            barred=tuple(sorted(self.barred)),
        )

    def _wants_to_load(self) -> bool:
        return any(
            harness.status.state is START and version in self.aspired
            for version, harness in self.harnesses.items()
        )

    def _kept_versions(self, routing: Routing, now_ns: int) -> frozenset[int]:
        kept = set(routing.labels.values())
        if routing.canary_version is not None and routing.default_version is not None:
            kept |= {routing.canary_version, routing.default_version}
        until_ns = self.keep_until_ns()
        if until_ns is not None and now_ns < until_ns:
            kept |= self.superseded_at_ns.keys()
        return frozenset(kept)

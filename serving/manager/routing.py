"""Chooses the version that answers a request without version number, or with a label. Pure functions.

A version answers such requests only because `decide_routing` names it, and not because it is loaded.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from serving.core.model_settings import CanarySettings
from serving.core.servable import Routing
from serving.manager.canary import BY_A_PERSON, rule_text


@dataclass(frozen=True, kw_only=True)
class Canary:
    """A version that gets the share `weight` of the requests.

    The value of the metadata key `header` selects them if the header is given. `rule` describes for
    people how the canary ends.
    """

    version: int
    weight: float
    header: str = ""
    rule: str = BY_A_PERSON

    @classmethod
    def of(cls, version: int, settings: CanarySettings) -> "Canary":
        """The canary of a version by `settings`."""
        return cls(
            version=version,
            weight=settings.weight,
            header=settings.header,
            rule=rule_text(settings),
        )


@dataclass(frozen=True, kw_only=True)
class RoutingRequests:
    """The inputs of the routing of one model.

    `blocked` versions must not be the default. `fallbacks` are blocked versions that still
    serve until another version can. `aspired` versions are those that should serve; others are published
    until these are, or because a label leads to them.
    """

    aspired: frozenset[int] = frozenset()
    labels: Mapping[str, int] = field(default_factory=dict)
    # The former version of each label. The label leads to it again if its new version is unloaded before
    # it.
    former_labels: Mapping[str, int] = field(default_factory=dict)
    blocked: frozenset[int] = frozenset()
    fallbacks: frozenset[int] = frozenset()
    canary: Canary | None = None
    # Versions that began as canaries and were never promoted. They are not the default while another
    # version is there.
    unverified: frozenset[int] = frozenset()


def decide_routing(
    before: Routing, routing_requests: RoutingRequests, published: Collection[int]
) -> Routing:
    """Decides the routing that fits `routing_requests` and the `published` versions.

    A label moves once its new version is published. Until then, and if that version is gone again, the
    label leads to the last published version that it led to. `_choose_default` chooses the default.
    """
    labels = {}
    for label, version in routing_requests.labels.items():
        targets = (version, before.labels.get(label), routing_requests.former_labels.get(label))
        target = next((item for item in targets if item in published), None)
        if target is not None:
            labels[label] = target
    awaited = {key: item for key, item in routing_requests.labels.items() if key not in labels}
    default = _choose_default(before, routing_requests, published)
    canary = routing_requests.canary
    alone = Routing(default_version=default, labels=labels, awaited_labels=awaited)
    if canary is None or default is None or canary.version == default:
        return alone
    if (
        canary.version not in set(published) - routing_requests.blocked
        or default in routing_requests.blocked
    ):
        return alone
    return replace(
        alone,
        canary_version=canary.version,
        canary_weight=canary.weight,
        canary_header=canary.header,
    )


def _choose_default(
    before: Routing, routing_requests: RoutingRequests, published: Collection[int]
) -> int | None:
    """Chooses the version for requests without version number; None if no version may answer.

    Prefers the versions that are neither blocked nor unverified, and not the canary if there is another
    version. The next choice are the versions that are not blocked. After that come the fallbacks, and at
    last the blocked version that answers already, which serves on until another version can. Of several
    the highest that is aspired answers. Otherwise a version that was withdrawn, and that a label keeps in
    memory, would answer for good.
    """
    here = set(published)
    sound = here - routing_requests.blocked
    canary_version = None if routing_requests.canary is None else routing_requests.canary.version
    verified = sound - routing_requests.unverified
    verified_choices = verified - {canary_version} or verified
    sound_choices = sound - {canary_version} or sound
    choices = verified_choices or sound_choices or here & routing_requests.fallbacks
    preferred = choices & routing_requests.aspired or choices
    return max(preferred or here & {before.default_version}, default=None)


def canary_after(
    running: Canary | None, sound: Collection[int], version: int, canary: Canary | None
) -> Canary | None:
    """The canary once `version` is published, which may begin as `canary`.

    `running` is the canary before, and `sound` are the other published versions that are not blocked. A
    newer version ends the canary of an older one.
    """
    if not sound:
        return None
    return canary if version > max(sound) else running


def former_labels(before: Routing, after: Routing, former: Mapping[str, int]) -> Mapping[str, int]:
    """The version to which each label of `after` led before its present version."""
    versions = {}
    for label, version in after.labels.items():
        led_to = before.labels.get(label)
        last = former.get(label) if led_to in (None, version) else led_to
        if last is not None:
            versions[label] = last
    return versions


def end_reason(requests: RoutingRequests, published: Collection[int], version: int) -> str | None:
    """The reason why `version` stopped being the canary; None if a person, a rule or a withdrawal ended it."""
    canary = requests.canary
    if canary is None:
        return None
    if canary.version != version:
        return f"version {canary.version} takes its place"
    if version not in published:
        return "it is unloaded"
    return "no other version is left"

"""Router: chooses the version that answers a request without version number, or with a label.

A version answers such requests only because `decide_routing`, a pure function, names it, and not
because it is loaded. The Router is the only writer of the serving map. It publishes or retires a
version together with the routing that follows, in one snapshot, so no request falls between the two.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import structlog

from serving.core.label_targets import NO_LABELS
from serving.core.model_settings import CanarySettings
from serving.core.servable import Routing, ServableId
from serving.data_plane.servables import Servable, ServingMap
from serving.manager.canary import BY_A_PERSON, rule_text

_log = structlog.get_logger(__name__)


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
        """Returns the canary of a version by `settings`."""
        return cls(
            version=version,
            weight=settings.weight,
            header=settings.header,
            rule=rule_text(settings),
        )


@dataclass(frozen=True, kw_only=True)
class RoutingRequests:
    """The inputs of the routing of one model.

    `blocked` versions must not be the default. `last_resorts` are blocked versions that still
    serve until another version can.
    """

    labels: Mapping[str, int] = field(default_factory=dict)
    # The former version of each label, which it leads to again if its new version is unloaded first.
    former_labels: Mapping[str, int] = field(default_factory=dict)
    blocked: frozenset[int] = frozenset()
    last_resorts: frozenset[int] = frozenset()
    canary: Canary | None = None
    # Versions that began as canaries and were never promoted. Not the default while there is another.
    unverified: frozenset[int] = frozenset()


def decide_routing(
    before: Routing, routing_requests: RoutingRequests, published: Collection[int]
) -> Routing:
    """Returns the routing that fits `routing_requests` and the `published` versions.

    A label moves once its new version is published. Until then, and if that version goes first, the
    label leads to the last published version that it led to. The default: see `_choose_default`.
    """
    labels = {}
    for label, version in routing_requests.labels.items():
        targets = (version, before.labels.get(label), routing_requests.former_labels.get(label))
        target = next((item for item in targets if item in published), None)
        if target is not None:
            labels[label] = target
    default = _choose_default(before, routing_requests, published)
    canary = routing_requests.canary
    if canary is None or default is None or canary.version == default:
        return Routing(default_version=default, labels=labels)
    if (
        canary.version not in set(published) - routing_requests.blocked
        or default in routing_requests.blocked
    ):
        return Routing(default_version=default, labels=labels)
    return Routing(
        default_version=default,
        labels=labels,
        canary_version=canary.version,
        canary_weight=canary.weight,
        canary_header=canary.header,
    )


def _choose_default(
    before: Routing, routing_requests: RoutingRequests, published: Collection[int]
) -> int | None:
    """Returns the version for requests without version number; None if no version may answer.

    Prefers the highest version that is neither blocked nor unverified, and not the canary if there is
    another. The next choice is the highest version that is not blocked. The last choices are a last
    resort, and the blocked version that answers already: it serves on until another version can.
    """
    here = set(published)
    sound = here - routing_requests.blocked
    canary_version = None if routing_requests.canary is None else routing_requests.canary.version
    verified = sound - routing_requests.unverified
    verified_choices = verified - {canary_version} or verified
    sound_choices = sound - {canary_version} or sound
    choices = verified_choices or sound_choices or here & routing_requests.last_resorts
    return max(choices or here & {before.default_version}, default=None)


def _canary_after(
    routing_requests: RoutingRequests,
    published: Collection[int],
    version: int,
    canary: Canary | None,
) -> Canary | None:
    """Returns the canary after `version` is published. A newer version ends the canary of an older one."""
    others = set(published) - routing_requests.blocked - {version}
    if not others:
        return None
    if version > max(others):
        return canary
    return routing_requests.canary


@dataclass(frozen=True)
class _Stream:
    routing_requests: RoutingRequests = field(default_factory=RoutingRequests)
    published: frozenset[int] = frozenset()
    routing: Routing = field(default_factory=Routing)

    def after(
        self, *, published: frozenset[int] | None = None, **routing_requests: Any
    ) -> "_Stream":
        """Returns the stream with these `routing_requests` changed, and the routing that follows."""
        published = self.published if published is None else published
        asked_for = replace(self.routing_requests, **routing_requests)
        routing = decide_routing(self.routing, asked_for, published)
        former = {
            label: self._former_version(label, version) for label, version in routing.labels.items()
        }
        former_labels = {label: item for label, item in former.items() if item is not None}
        return _Stream(replace(asked_for, former_labels=former_labels), published, routing)

    def _former_version(self, label: str, version: int) -> int | None:
        led_to = self.routing.labels.get(label)
        return (
            self.routing_requests.former_labels.get(label) if led_to in (None, version) else led_to
        )


_NO_STREAM = _Stream()


class Router:
    """Publishes and retires versions, and updates the routing with each change of its inputs. Any thread."""

    def __init__(self, serving_map: ServingMap) -> None:
        self._serving_map = serving_map
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._on_labels: Callable[[str], None] = lambda name: None

    def on_labels(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with the model after each change of its labels.

        A version that only a label kept may then be unloaded.
        """
        self._on_labels = listener

    def set_labels(self, name: str, labels: Mapping[str, int]) -> None:
        """Replaces the model's labels; each takes effect once its version is AVAILABLE."""
        with self._lock:
            self._change(name, labels=MappingProxyType(dict(labels)))
        self._on_labels(name)

    def labels(self, name: str) -> Mapping[str, int]:
        """Returns the labels as requests see them now."""
        return self.routing(name).labels

    def wanted_labels(self, name: str) -> Mapping[str, int]:
        """Returns the labels as they were requested."""
        with self._lock:
            stream = self._streams.get(name)
            return stream.routing_requests.labels if stream else NO_LABELS

    def routing(self, name: str) -> Routing:
        """Returns the routing that requests see now."""
        with self._lock:
            return self._stream(name).routing

    def set_blocked(self, name: str, versions: frozenset[int]) -> None:
        """Takes requests that name no version from `versions`, while another version can answer.

        A canary among them ends. If it is allowed again, the settings of that time decide its share.
        """
        with self._lock:
            canary = self._stream(name).routing_requests.canary
            if canary is not None and canary.version in versions:
                canary = None
            self._change(name, blocked=versions, canary=canary)

    def set_last_resorts(self, name: str, versions: frozenset[int]) -> None:
        """Lets these blocked versions answer while no other version is published."""
        with self._lock:
            if versions != self._stream(name).routing_requests.last_resorts:
                self._change(name, last_resorts=versions)

    def set_canary(self, name: str, canary: Canary | None) -> None:
        """Changes the share of a canary, or ends the canary (None). An ended one is not the default."""
        with self._lock:
            self._change(name, canary=canary)

    def promote(self, name: str) -> None:
        """Makes the canary the default version."""
        with self._lock:
            routing_requests = self._stream(name).routing_requests
            if routing_requests.canary is not None:
                unverified = routing_requests.unverified - {routing_requests.canary.version}
                self._change(name, canary=None, unverified=unverified)

    def is_unverified(self, name: str, version: int) -> bool:
        """Returns True if the version began as a canary and was never promoted."""
        with self._lock:
            return version in self._stream(name).routing_requests.unverified

    def verify(self, name: str, version: int) -> None:
        """Lets the version be the default like any other one."""
        with self._lock:
            if name in self._streams:
                self._change(
                    name, unverified=self._stream(name).routing_requests.unverified - {version}
                )

    def answering(self, name: str) -> int | None:
        """Returns the version that answers a request without version number, apart from a canary.

        Returns None if such a request is refused.
        """
        return self.routing(name).default_version

    def publish(
        self, servable_id: ServableId, servable: Servable, *, canary: Canary | None = None
    ) -> None:
        """Publishes the version together with its part of the requests, in one snapshot.

        With `canary` it gets that share, if it is the highest and another one serves; without, it
        gets all if it is the highest. Raises with nothing changed.
        """
        name, version = servable_id.name, servable_id.version
        with self._lock:
            before = self._stream(name)
            routing_requests = before.routing_requests
            running = _canary_after(routing_requests, before.published, version, canary)
            is_canary = running is not None and running.version == version
            after = before.after(
                published=before.published | {version},
                canary=running,
                unverified=routing_requests.unverified | ({version} if is_canary else set()),
            )
            self._serving_map.publish(servable, after.routing)
            self._replace(name, after)

    def retire(self, servable_id: ServableId) -> None:
        """Retires the version and gives its requests to another one, in one snapshot. Raises with
        nothing changed.
        """
        name, version = servable_id.name, servable_id.version
        with self._lock:
            before = self._stream(name)
            after = before.after(
                published=before.published - {version},
                unverified=before.routing_requests.unverified - {version},
            )
            self._serving_map.retire(name, version, after.routing)
            self._replace(name, after)

    def forget(self, name: str) -> None:
        """Removes all inputs of the routing of a model but its labels."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                return
            self._change(name, **vars(RoutingRequests(labels=stream.routing_requests.labels)))
            if not stream.published and not stream.routing_requests.labels:
                del self._streams[name]

    def _stream(self, name: str) -> _Stream:
        return self._streams.get(name, _NO_STREAM)

    def _change(self, name: str, **routing_requests: Any) -> None:
        """The caller holds the lock."""
        before = self._stream(name)
        after = before.after(**routing_requests)
        if after.routing != before.routing:
            self._serving_map.set_routing(name, after.routing)
        self._replace(name, after)

    def _replace(self, name: str, after: _Stream) -> None:
        before = self._stream(name).routing
        self._streams[name] = after
        if after.routing != before:
            _notify_canary(name, before, after)


def _notify_canary(name: str, before: Routing, stream: _Stream) -> None:
    """Logs a canary that begins or changes, or that ends without a request to end it.

    The caller that ends a canary logs that end itself.
    """
    after, asked_for = stream.routing, stream.routing_requests.canary
    ended = None if before.canary_version == after.canary_version else before.canary_version
    reason = None if ended is None else _end_unasked(stream, ended)
    if reason is not None:
        _log.info("canary_ended", model=name, version=ended, reason=reason)
    if asked_for is None or after.canary_version is None:
        return
    event = "canary_changed" if after.canary_version == before.canary_version else "canary_started"
    fields = ("canary_version", "canary_weight", "canary_header")
    if any(getattr(before, field) != getattr(after, field) for field in fields):
        _log.info(
            event,
            model=name,
            version=after.canary_version,
            beside=after.default_version,
            weight=after.canary_weight,
            header=after.canary_header,
            rule=asked_for.rule,
        )


def _end_unasked(stream: _Stream, version: int) -> str | None:
    """Returns why `version` stopped being the canary; None if a caller ended that canary."""
    canary = stream.routing_requests.canary
    if canary is None:
        return None
    if canary.version != version:
        return f"version {canary.version} takes its place"
    if version not in stream.published:
        return "it is unloaded"
    return "no other version is left"

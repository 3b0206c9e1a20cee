"""Router: which version answers a request that names none, or names a label.

What follows from labels, versions and a canary is one pure function, `decide_routing`; the Router
holds what it is asked for and hands each change to the serving map, as a whole.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import structlog

from serving.canary import BY_A_PERSON, rule_text
from serving.label_targets import NO_LABELS
from serving.model_settings import CanarySettings
from serving.servable import Routing, ServableId, ServingMap

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Canary:
    """`version` gets `weight` of the requests, by the value of metadata key `header` where given.

    `rule` says for people how it ends.
    """

    version: int
    weight: float
    header: str = ""
    rule: str = BY_A_PERSON

    @classmethod
    def of(cls, version: int, settings: CanarySettings) -> "Canary":
        """The share that a version gets by `settings`."""
        return cls(
            version=version,
            weight=settings.weight,
            header=settings.header,
            rule=rule_text(settings),
        )


@dataclass(frozen=True, kw_only=True)
class Demands:
    """What routing should follow from, for one model. `barred`: rolled back, and not to be default."""

    labels: Mapping[str, int] = field(default_factory=dict)
    barred: frozenset[int] = frozenset()
    canary: Canary | None = None
    # Began as canaries and were never promoted: no default while there is another.
    unproven: frozenset[int] = frozenset()
    # A version that is about to be published must not become the default by being the highest.
    is_default_held: bool = False


def decide_routing(before: Routing, demands: Demands, published: Collection[int]) -> Routing:
    """The routing that fits `demands` and the `published` versions.

    A label moves once its new version is published, and until then stays where it was as long as
    that one is. The default is the highest version that is neither barred nor unproven; where
    nothing else is left, the highest of all: any answer is better than none.
    """
    labels = {}
    for label, version in demands.labels.items():
        held = before.labels.get(label)
        if version in published:
            labels[label] = version
        elif held in published and held is not None:
            labels[label] = held
    return replace(_default_routing(before, demands, published), labels=labels)


def _default_routing(before: Routing, demands: Demands, published: Collection[int]) -> Routing:
    sound = set(published) - demands.barred
    sound = sound - demands.unproven or sound
    canary = demands.canary
    is_running = canary is not None and canary.version in set(published) - demands.barred
    if canary is not None and is_running and sound - {canary.version}:
        return Routing(
            default_version=max(sound - {canary.version}),
            canary_version=canary.version,
            canary_weight=canary.weight,
            canary_header=canary.header,
        )
    if demands.is_default_held and before.default_version in sound:
        return Routing(default_version=before.default_version)
    default = max(sound or published, default=None)
    is_named = demands.is_default_held or default != max(published, default=None)
    return Routing(default_version=default if is_named else None)


def _canary_after(
    demands: Demands, published: Collection[int], version: int, canary: Canary | None
) -> Canary | None:
    """Whose share it is once `version` is published: a newer version ends an older one's canary."""
    others = set(published) - demands.barred - {version}
    if not others:
        return None
    if version > max(others):
        return canary
    return demands.canary


@dataclass
class _Stream:
    demands: Demands = field(default_factory=Demands)
    published: frozenset[int] = frozenset()
    routing: Routing = field(default_factory=Routing)


class Router:
    """Keeps the serving map's routing in step with what is asked for. Any thread."""

    def __init__(self, serving_map: ServingMap) -> None:
        self._serving_map = serving_map
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._on_labels: Callable[[], None] = lambda: None

    def on_labels(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change of labels: what only a label kept may go."""
        self._on_labels = listener

    def set_labels(self, name: str, labels: Mapping[str, int]) -> None:
        """Replaces the model's labels; each takes effect once its version is AVAILABLE."""
        self._change(name, labels=MappingProxyType(dict(labels)))
        self._on_labels()

    def labels(self, name: str) -> Mapping[str, int]:
        """The labels as requests see them now."""
        return self.routing(name).labels

    def wanted_labels(self, name: str) -> Mapping[str, int]:
        """The labels as they were asked for."""
        with self._lock:
            stream = self._streams.get(name)
            return stream.demands.labels if stream else NO_LABELS

    def routing(self, name: str) -> Routing:
        """What requests see now."""
        with self._lock:
            stream = self._streams.get(name)
            return stream.routing if stream else Routing()

    def set_barred(self, name: str, versions: frozenset[int]) -> None:
        """These get no request that does not name them, while there is another version.

        A canary among them ends: should it be allowed again, the settings of that day decide.
        """
        with self._lock:
            stream = self._streams.setdefault(name, _Stream())
            canary = stream.demands.canary
            if canary is not None and canary.version in versions:
                canary = None
            stream.demands = replace(stream.demands, barred=versions, canary=canary)
            self._update(name, stream)

    def set_canary(self, name: str, canary: Canary | None) -> None:
        """Changes a canary's share, or ends it (None): then it gets nothing and is no default."""
        self._change(name, canary=canary, is_default_held=False)

    def promote(self, name: str) -> None:
        """The canary answers everything that is the default's."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is None or stream.demands.canary is None:
                return
            unproven = stream.demands.unproven - {stream.demands.canary.version}
            stream.demands = replace(stream.demands, canary=None, unproven=unproven)
            self._update(name, stream)

    def is_unproven(self, name: str, version: int) -> bool:
        """Whether the version began as a canary and was never promoted."""
        with self._lock:
            stream = self._streams.get(name)
            return stream is not None and version in stream.demands.unproven

    def prove(self, name: str, version: int) -> None:
        """The version may be the default like any other."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is not None:
                unproven = stream.demands.unproven - {version}
                stream.demands = replace(stream.demands, unproven=unproven)
                self._update(name, stream)

    def answering(self, name: str) -> int | None:
        """The version that answers a request which names none, a canary aside; None: there is none."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                return None
            if stream.routing.default_version is not None:
                return stream.routing.default_version
            return max(stream.published, default=None)

    def hold_default(self, servable_id: ServableId) -> None:
        """Before the version is published: the default stays where it is, until `published`."""
        self._change(servable_id.name, is_default_held=True)

    def published(self, servable_id: ServableId, *, canary: Canary | None = None) -> None:
        """The version is published. With `canary` it gets that share, where it is the highest and
        another one serves; without, it gets all if it is the highest.
        """
        with self._lock:
            stream = self._streams.setdefault(servable_id.name, _Stream())
            demands, version = stream.demands, servable_id.version
            running = _canary_after(demands, stream.published, version, canary)
            is_canary = running is not None and running.version == version
            stream.demands = replace(
                demands,
                is_default_held=False,
                canary=running,
                unproven=demands.unproven | ({version} if is_canary else set()),
            )
            stream.published |= {version}
            self._update(servable_id.name, stream)

    def release_default(self, name: str) -> None:
        """After `hold_default`: the version was not published after all."""
        self._change(name, is_default_held=False)

    def retiring(self, servable_id: ServableId) -> None:
        """The version is about to be retired; nothing leads to it any more once this returns."""
        with self._lock:
            stream = self._streams.get(servable_id.name)
            if stream is None:
                return
            stream.published -= {servable_id.version}
            unproven = stream.demands.unproven - {servable_id.version}
            stream.demands = replace(stream.demands, unproven=unproven)
            self._update(servable_id.name, stream)

    def forget(self, name: str) -> None:
        """The model is gone, with all that was asked for it but its labels."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                return
            stream.demands = Demands(labels=stream.demands.labels)
            self._update(name, stream)
            if not stream.published and not stream.demands.labels:
                del self._streams[name]

    def _change(self, name: str, **changes: object) -> None:
        with self._lock:
            stream = self._streams.setdefault(name, _Stream())
            stream.demands = replace(stream.demands, **changes)  # type: ignore[arg-type]
            self._update(name, stream)

    def _update(self, name: str, stream: _Stream) -> None:
        routing = decide_routing(stream.routing, stream.demands, stream.published)
        if routing == stream.routing:
            return
        self._serving_map.set_routing(
            name,
            default_version=routing.default_version,
            labels=routing.labels,
            canary_version=routing.canary_version,
            canary_weight=routing.canary_weight,
            canary_header=routing.canary_header,
        )
        before, stream.routing = stream.routing, routing
        _tell_canary(name, before, stream)


def _tell_canary(name: str, before: Routing, stream: _Stream) -> None:
    """Logs a canary that begins or changes, and one that ends unasked; who asks for that tells it."""
    after, asked_for = stream.routing, stream.demands.canary
    ended = None if before.canary_version == after.canary_version else before.canary_version
    reason = None if ended is None else _end_unasked(stream, ended)
    if reason is not None:
        _log.info("canary_ended", model=name, version=ended, reason=reason)
    if asked_for is None or after.canary_version is None:
        return
    event = "canary_changed" if after.canary_version == before.canary_version else "canary_begun"
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
    """Why `version` is no canary any more; None where it was promoted, withdrawn or rolled back."""
    canary = stream.demands.canary
    if canary is None:
        return None
    if canary.version != version:
        return f"version {canary.version} takes its place"
    if version not in stream.published:
        return "it is unloaded"
    return "no other version is left"

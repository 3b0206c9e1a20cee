"""ServedModels: the models of the server at the moment, and all that has to hear of a change."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from serving.config.plan import ConfigPlan, ModelChange, applied
from serving.config.server_config import ModelConfig
from serving.core.model_settings import ModelSettings
from serving.core.servable import AspiredVersion
from serving.core.version_selection import Specific, VersionSelection
from serving.source.notes import Note

NOTHING = Specific(frozenset())
"""What is selected of a model that somebody has unloaded."""


class Source(Protocol):
    """`FileSystemSource`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def join(self, timeout_seconds: float) -> bool: ...
    def set_selection(self, selection: VersionSelection, labels: Mapping[str, int]) -> None: ...
    def set_blocked(self, versions: frozenset[int]) -> None: ...
    def set_base_path(self, base_path: str) -> None: ...
    def notes(self) -> list[Note]: ...
    def found_versions(self) -> frozenset[int]: ...
    def selectable_versions(self) -> frozenset[int]: ...


class Manager(Protocol):
    """The part of `AspiredVersionsManager` that hears of models."""

    def set_aspired(self, name: str, versions: Sequence[AspiredVersion]) -> None: ...
    def set_settings(self, name: str, settings: ModelSettings) -> None: ...


class ServedModels:
    """The configured models, each with the source that looks for its versions.

    One thread at a time calls `apply` and `stop`; everything else may be called from any thread.
    A server begins with no model: its first configuration is applied like every later one.
    """

    def __init__(
        self,
        *,
        make_source: Callable[[ModelConfig], Source],
        set_loaders: Callable[[Sequence[ModelConfig]], None],
        manager: Manager,
        set_labels: Callable[[str, Mapping[str, int]], None],
        names_changed: Callable[[Sequence[str]], None],
    ) -> None:
        """`set_loaders` is `ModelLoaders.set_models`, `set_labels` `Router.set_labels`."""
        self._make_source = make_source
        self._set_loaders = set_loaders
        self._manager = manager
        self._set_labels = set_labels
        self._names_changed = names_changed
        # Both are replaced as a whole, so that they can be read without a lock.
        self._models: tuple[ModelConfig, ...] = ()
        self._sources: Mapping[str, Source] = {}
        self._unloaded: frozenset[str] = frozenset()

    @property
    def unloaded(self) -> frozenset[str]:
        """The models of which nothing is selected, whatever their configuration says."""
        return self._unloaded

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        """As they are configured now."""
        return self._models

    @property
    def names(self) -> tuple[str, ...]:
        """Of `models`, in the same order."""
        return tuple(model.name for model in self._models)

    def base_path(self, name: str) -> str | None:
        """Where a model's versions appear; None where it is not configured."""
        return next((model.base_path for model in self._models if model.name == name), None)

    def notes(self, name: str) -> list[Note]:
        """What a model's source has to tell of its base path."""
        source = self._sources.get(name)
        return source.notes() if source else []

    def found_versions(self, name: str) -> frozenset[int]:
        """The versions that a model's source finds on disk."""
        source = self._sources.get(name)
        return source.found_versions() if source else frozenset()

    def selectable_versions(self, name: str) -> frozenset[int]:
        """Of these, the ones that the model's version policy would take."""
        source = self._sources.get(name)
        return source.selectable_versions() if source else frozenset()

    def set_blocked(self, name: str, versions: frozenset[int]) -> None:
        """The model's source leaves `versions` out of what it selects, until told otherwise."""
        source = self._sources.get(name)
        if source is not None:
            source.set_blocked(versions)

    def apply(self, plan: ConfigPlan) -> None:
        """Does all that `plan`, made of `models`, says. Where it raises, nothing has changed.

        What can fail comes first: reservoirs and sources, whose threads may be refused.
        """
        before, after = self._models, applied(self._models, plan)
        # Known before its source aspires anything: a load or a listener may ask at once.
        self._set_models((*before, *plan.added))
        try:
            self._add(plan.added)
        except BaseException:
            self._set_models(before)
            raise
        # Loads that a change gives rise to go by it.
        self._set_loaders((*after, *plan.removed))
        for change in plan.changed:
            self._change(change)
        for model in plan.removed:
            self._remove(model.name)
        self._set_models(after)
        self._names_changed(self.names)

    def set_unloaded(self, name: str, *, is_unloaded: bool) -> None:
        """Selects nothing of a configured model, or again what its configuration says; that looks at
        the disk at once. It lasts until the model is removed. As `apply`, one thread at a time.
        """
        self._unloaded = self._unloaded | {name} if is_unloaded else self._unloaded - {name}
        model = next(model for model in self._models if model.name == name)
        self._select(model)

    def stop(self) -> None:
        """Ends all polling; a poll under way aspires nothing any more. Returns at once."""
        for source in self._sources.values():
            source.stop()

    def join(self, timeout_seconds: float) -> bool:
        """After `stop`: False where the disk still holds a thread after `timeout_seconds` for each."""
        has_ended = [source.join(timeout_seconds) for source in self._sources.values()]
        return all(has_ended)

    def _set_models(self, models: Sequence[ModelConfig]) -> None:
        self._models = tuple(models)
        self._set_loaders(models)

    def _add(self, models: Sequence[ModelConfig]) -> None:
        before, begun = self._sources, []
        try:
            for model in models:
                begun.append(model.name)
                self._add_one(model)
        except BaseException:
            for name in reversed(begun):
                if name in self._sources:
                    self._sources[name].stop()
                self._forget(name)
            self._sources = before
            raise

    def _add_one(self, model: ModelConfig) -> None:
        self._manager.set_settings(model.name, model.settings)
        self._set_labels(model.name, model.labels)
        source = self._make_source(model)
        # Known before it starts: as soon as it finds something it is asked what, and told of blocked_versions.
        self._sources = {**self._sources, model.name: source}
        source.start()

    def _change(self, change: ModelChange) -> None:
        name, after = change.after.name, change.after
        # Settings and labels first: what the new selection loads is loaded by them.
        if change.is_of_settings:
            self._manager.set_settings(name, after.settings)
        if change.is_of_labels:
            self._set_labels(name, after.labels)
        if change.is_of_base_path:
            self._sources[name].set_base_path(after.base_path)
        if change.is_of_selection or change.is_of_labels:
            self._select(after)

    def _select(self, model: ModelConfig) -> None:
        source = self._sources[model.name]
        if model.name in self._unloaded:
            # Without labels: that their versions are not selected is no news then.
            source.set_selection(NOTHING, {})
        else:
            source.set_selection(model.version_selection, model.labels)

    def _remove(self, name: str) -> None:
        source = self._sources[name]
        self._unloaded -= {name}
        self._sources = {key: item for key, item in self._sources.items() if key != name}
        # Stopped first: from then on it aspires nothing, so the empty list is the last.
        source.stop()
        self._forget(name)

    def _forget(self, name: str) -> None:
        """The versions go and so does all that was said of them; no source aspires any."""
        self._set_labels(name, {})
        self._manager.set_aspired(name, [])
        # Last: settings that change before would end a canary by making it the default.
        self._manager.set_settings(name, ModelSettings())

"""ServedModels: the models that the server serves now, and the parts that a change must reach."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from serving.base.name_text import encodable
from serving.config.plan import ConfigPlan, ModelChange, applied
from serving.core.model_config import ModelConfig
from serving.core.model_settings import ModelSettings
from serving.core.servable import AspiredVersion
from serving.core.version_selection import NOTHING, VersionSelection
from serving.reload.sources import Source, Sources
from serving.source.notes import Note


class BasePaths(Protocol):
    """The local directories of base paths, which a mirror fills if a base path is a URL."""

    def local(self, name: str, base_path: str) -> str:
        """Finds the local directory that the source of model `name` watches. Raises InvalidConfig."""
        ...

    def open(self, name: str, base_path: str, source: Source) -> None:
        """Ends the model's former mirror, and starts one if the base path is a URL."""
        ...

    def close(self, name: str) -> None:
        """Ends the model's mirror if it has one. Returns at once."""
        ...

    def stop(self) -> None:
        """Ends all mirrors. Returns at once."""
        ...

    def join(self, timeout_seconds: float) -> bool:
        """Waits, after `stop`; returns False at the timeout."""
        ...


class Manager(Protocol):
    """The part of `AspiredVersionsManager` that receives models' versions, settings and labels."""

    def set_aspired(self, name: str, versions: Sequence[AspiredVersion]) -> None: ...
    def set_settings(self, name: str, settings: ModelSettings) -> None: ...
    def set_labels(self, name: str, labels: Mapping[str, int]) -> None: ...


class ServedModels:
    """The configured models, each with the source that finds its versions.

    One thread at a time calls `apply`, `set_unloaded` and `stop`; all other methods may be called from any
    thread. A server starts without models: its first configuration is applied like every later one.
    """

    def __init__(
        self,
        *,
        sources: Sources,
        make_source: Callable[[ModelConfig], Source],
        set_loadable: Callable[[Sequence[ModelConfig]], None],
        manager: Manager,
        base_paths: BasePaths,
        check_log: Callable[[ModelConfig], None],
    ) -> None:
        """Takes the parts to change. `set_loadable` receives the models whose versions may be loaded.

        `check_log` raises InvalidConfig if a model's requests cannot be logged as it is configured.
        `sources` is empty; this object fills it.
        """
        self._sources = sources
        self._make_source = make_source
        self._set_loadable = set_loadable
        self._manager = manager
        self._base_paths = base_paths
        self._check_log = check_log
        self._names_listeners: list[Callable[[Sequence[str]], None]] = []
        # Each of the next four is replaced as a whole, so that it can be read without a lock. Names and base
        # paths are kept because a server of many models reads them at each change of a version.
        self._models: tuple[ModelConfig, ...] = ()
        self._names: tuple[str, ...] = ()
        self._base_path_texts: Mapping[str, str] = {}
        self._unloaded: frozenset[str] = frozenset()

    def add_names_listener(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Calls `listener` with the names of all models after each change, on the thread that applies it.

        Call this before the first change.
        """
        self._names_listeners.append(listener)

    @property
    def unloaded(self) -> frozenset[str]:
        """The models of which no version is selected, whatever their configuration says."""
        return self._unloaded

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        """The models as they are configured now."""
        return self._models

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `models`, in the same order."""
        return self._names

    def base_path(self, name: str) -> str | None:
        """The base path of a model as text for people, or None if it is not configured."""
        return self._base_path_texts.get(name)

    def notes(self, name: str) -> list[Note]:
        """The notes of a model's source."""
        source = self._sources.of(name)
        return source.notes() if source else []

    def aspired_versions(self, name: str) -> frozenset[int]:
        """The versions that a model's source aspires."""
        source = self._sources.of(name)
        return source.aspired_versions() if source else frozenset()

    def found_versions(self, name: str) -> frozenset[int]:
        """The versions that a model's source has found on disk."""
        source = self._sources.of(name)
        return source.found_versions() if source else frozenset()

    def apply(self, plan: ConfigPlan) -> None:
        """Applies `plan`, which was made from `models`. If it raises, nothing has changed.

        Steps that can fail come first: local directories, request logs, reservoirs, and sources, whose
        threads may not be started.
        """
        local = {
            change.after.name: self._base_paths.local(change.after.name, change.after.base_path)
            for change in plan.changed
            if change.is_of_base_path
        }
        for model in (*plan.added, *(change.after for change in plan.changed)):
            self._check_log(model)
        before, after = self._models, applied(self._models, plan)
        # Added models are listed before their sources aspire a version, because a load may need them at
        # once.
        self._set_models((*before, *plan.added))
        try:
            self._add(plan.added)
        except BaseException:
            self._set_models(before)
            raise
        # Their settings change first, so that loads caused by the change use the new ones.
        self._set_loadable((*after, *plan.removed))
        for change in plan.changed:
            self._change(change, local.get(change.after.name))
        for model in plan.removed:
            self._remove(model.name)
        self._set_models(after)
        for listener in self._names_listeners:
            listener(self.names)

    def set_unloaded(self, name: str, *, is_unloaded: bool) -> None:
        """Selects no versions of a configured model, or again those of its configuration.

        Both poll the disk at once. The effect lasts until the model is removed. Like `apply`, one thread
        at a time.
        """
        self._unloaded = self._unloaded | {name} if is_unloaded else self._unloaded - {name}
        model = next(model for model in self._models if model.name == name)
        self._select(model)

    def stop(self) -> None:
        """Ends all polling and returns at once. The result of a poll under way is dropped."""
        self._base_paths.stop()
        for source in self._sources.all():
            source.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits, after `stop`, up to `timeout_seconds` for each source.

        Returns False if the disk still holds a thread.
        """
        has_ended = [source.join(timeout_seconds) for source in self._sources.all()]
        return all([*has_ended, self._base_paths.join(timeout_seconds)])

    def _set_models(self, models: Sequence[ModelConfig]) -> None:
        self._models = tuple(models)
        self._names = tuple(model.name for model in models)
        self._base_path_texts = {model.name: encodable(model.base_path) for model in models}
        self._set_loadable(models)

    def _add(self, models: Sequence[ModelConfig]) -> None:
        begun: list[str] = []
        try:
            for model in models:
                begun.append(model.name)
                self._add_one(model)
        except BaseException:
            for name in reversed(begun):
                self._remove(name)
            raise

    def _add_one(self, model: ModelConfig) -> None:
        self._manager.set_settings(model.name, model.settings)
        self._manager.set_labels(model.name, model.labels)
        local = self._base_paths.local(model.name, model.base_path)
        source = self._make_source(replace(model, base_path=local))
        # Registered before it starts, because its first finding may cause calls of its other methods.
        self._sources.add(model.name, source)
        self._base_paths.open(model.name, model.base_path, source)
        source.start()

    def _change(self, change: ModelChange, local: str | None) -> None:
        """Applies the change of one model.

        `local` is its new local directory, None if the base path stays.
        """
        name, after = change.after.name, change.after
        # Settings and labels come first, so that the new selection's loads use them.
        if change.is_of_settings:
            self._manager.set_settings(name, after.settings)
        if change.is_of_labels:
            self._manager.set_labels(name, after.labels)
        if local is not None:
            source = self._source(name)
            # Comes first, so that the source does not report the missing directory of a new mirror.
            self._base_paths.open(name, after.base_path, source)
            source.set_base_path(local, *self._selection_of(after))
        elif change.is_of_selection or change.is_of_labels:
            self._select(after)

    def _select(self, model: ModelConfig) -> None:
        self._source(model.name).set_selection(*self._selection_of(model))

    def _selection_of(self, model: ModelConfig) -> tuple[VersionSelection, Mapping[str, int]]:
        # Without labels for an unloaded model, so that no note reports that their versions are not selected.
        is_unloaded = model.name in self._unloaded
        return (NOTHING, {}) if is_unloaded else (model.version_selection, model.labels)

    def _remove(self, name: str) -> None:
        """Removes the model's source, if it has one by now, and then its labels, versions and settings."""
        source = self._sources.of(name)
        self._unloaded -= {name}
        self._sources.remove(name)
        if source is not None:
            # It is stopped first, so that the empty list is the last that is set.
            source.stop()
        self._base_paths.close(name)
        self._manager.set_labels(name, {})
        self._manager.set_aspired(name, [])
        # Settings come last, because otherwise a canary would end as the default version.
        self._manager.set_settings(name, ModelSettings())

    def _source(self, name: str) -> Source:
        """The source of a served model."""
        source = self._sources.of(name)
        assert source is not None, name
        return source

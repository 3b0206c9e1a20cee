"""Config plans: the differences between the served models and a new configuration. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.base.errors import InvalidConfig
from serving.core.model_config import ModelConfig, check_models
from serving.core.model_settings import ModelSettings
from serving.core.settings_table import as_table


@dataclass(frozen=True)
class ModelChange:
    """A change of one model that stays configured."""

    before: ModelConfig
    after: ModelConfig

    @property
    def is_of_base_path(self) -> bool:
        """True if the base path changes."""
        return self.before.base_path != self.after.base_path

    @property
    def is_of_selection(self) -> bool:
        """True if the selection of versions changes."""
        return self.before.version_selection != self.after.version_selection

    @property
    def is_of_labels(self) -> bool:
        """True if a label is added, removed or moved."""
        return self.before.labels != self.after.labels

    @property
    def is_of_logging(self) -> bool:
        """True if other requests are logged, or to other files."""
        return self.before.logging != self.after.logging

    @property
    def is_of_settings(self) -> bool:
        """True if Millpond's own settings of the model change."""
        return self.before.settings != self.after.settings

    def details(self) -> Iterator[str]:
        """Yields a text for each changed value."""
        if self.is_of_base_path:
            yield f"base_path {self.before.base_path} -> {self.after.base_path}"
        if self.is_of_selection:
            yield f"versions {self.before.version_selection} -> {self.after.version_selection}"
        before, after = self.before.labels, self.after.labels
        for label in sorted({*before, *after}):
            if before.get(label) != after.get(label):
                yield f"labels {label} {before.get(label, '-')} -> {after.get(label, '-')}"
        if self.is_of_logging:
            yield f"request log {self.before.logging or 'off'} -> {self.after.logging or 'off'}"
        old, new = _flat(self.before.settings), _flat(self.after.settings)
        for key in old:
            if old[key] != new[key]:
                yield f"settings {key} {old[key]} -> {new[key]}"


@dataclass(frozen=True)
class ConfigPlan:
    """The steps of a change. Each model is in one of the four lists, in configuration order."""

    added: tuple[ModelConfig, ...] = ()
    removed: tuple[ModelConfig, ...] = ()
    changed: tuple[ModelChange, ...] = ()
    unchanged: tuple[ModelConfig, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if nothing changes."""
        return not (self.added or self.removed or self.changed)

    def lines(self) -> tuple[str, ...]:
        """Formats the plan as lines: `+ model x: …`, `~ model y: labels stable 3 -> 4`, `- model z`."""
        return (
            *(f"+ model {model.name}: {_summary(model)}" for model in self.added),
            *(
                f"~ model {change.after.name}: {detail}"
                for change in self.changed
                for detail in change.details()
            ),
            *(f"- model {model.name}" for model in self.removed),
        )


def plan_change(present: Sequence[ModelConfig], wanted: Sequence[ModelConfig]) -> ConfigPlan:
    """Makes the plan that turns the models `present` into the models `wanted`.

    Raises InvalidConfig if `check_models` refuses `wanted`, or if a model would change its platform.
    """
    check_models(wanted)
    before, after = {item.name: item for item in present}, {item.name: item for item in wanted}
    changes = [ModelChange(before[name], after[name]) for name in after if name in before]
    for change in changes:
        _check_platform(change)
    return ConfigPlan(
        added=tuple(model for model in wanted if model.name not in before),
        removed=tuple(model for model in present if model.name not in after),
        changed=tuple(change for change in changes if change.before != change.after),
        unchanged=tuple(change.after for change in changes if change.before == change.after),
    )


def applied(present: Sequence[ModelConfig], plan: ConfigPlan) -> tuple[ModelConfig, ...]:
    """The models after `plan`: the models that stay, in order, then the added models."""
    removed = {model.name for model in plan.removed}
    changed = {change.after.name: change.after for change in plan.changed}
    stay = (changed.get(model.name, model) for model in present if model.name not in removed)
    return (*stay, *plan.added)


def _check_platform(change: ModelChange) -> None:
    before, after = change.before.platform, change.after.platform
    if before != after:
        raise InvalidConfig(
            f"model {change.after.name!r}: model_platform {after!r}: it is served as {before!r}; "
            "give the model another name, or remove it first"
        )


def _summary(model: ModelConfig) -> str:
    labels = (f"{label} {version}" for label, version in sorted(model.labels.items()))
    before, after = _flat(ModelSettings()), _flat(model.settings)
    settings = (f"{key} {after[key]}" for key in after if after[key] != before[key])
    parts = [model.base_path, f"versions {model.version_selection}"]
    parts += [f"labels {text}" for text in labels]
    parts += [f"request log {model.logging}"] if model.logging else []
    parts += [f"settings {text}" for text in settings]
    return ", ".join(parts)


def _flat(settings: ModelSettings) -> dict[str, Any]:
    """The settings by the path of their keys, like `gates.signature`."""
    return dict(_flat_items(as_table(settings), ""))


def _flat_items(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat_items(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield prefix + key, str(value).lower()
        else:
            yield prefix + key, f"{value:g}" if isinstance(value, float) else value

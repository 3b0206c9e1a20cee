"""The models to serve, and what is refused of them. Pure, except for the look if a package is installed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.base.errors import InvalidConfig
from serving.base.name_text import fault_of_name
from serving.core.model_settings import ModelSettings
from serving.core.request_logging import RequestLogging
from serving.core.store_urls import check_store_url, is_store_url
from serving.core.version_selection import Latest, Specific, VersionSelection

PLATFORM = "tensorflow"
"""The only platform, by which the loader is chosen."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model: its name, the base path of its versions, their selection, labels and settings."""

    name: str
    base_path: str
    platform: str = PLATFORM
    version_selection: VersionSelection = Latest(1)
    # The version of each label, which takes effect once that version is AVAILABLE.
    labels: Mapping[str, int] = field(default_factory=dict)
    settings: ModelSettings = field(default_factory=ModelSettings)
    # None: no requests are logged.
    logging: RequestLogging | None = None


@dataclass(frozen=True)
class SettingsByModel:
    """The settings of the models that have their own, and the default of all other models."""

    default: ModelSettings = field(default_factory=ModelSettings)
    by_name: Mapping[str, ModelSettings] = field(default_factory=dict)

    def of(self, name: str) -> ModelSettings:
        """The settings of one model."""
        return self.by_name.get(name, self.default)


def check_models(models: Sequence[ModelConfig], where: str = "") -> None:
    """Raises InvalidConfig, whose message begins with `where`, if the models cannot be served.

    Refuses duplicate names, names with a control character, base paths that are not absolute, and
    labels of invalid versions or of versions that the model's version policy never loads. Two models
    may not log to files of the same prefix.
    """
    seen: set[str] = set()
    model_of_prefix: dict[str, str] = {}
    for model in models:
        if model.name in seen:
            raise InvalidConfig(
                f"{where}duplicate model {model.name!r}; give each model its own name"
            )
        if fault := fault_of_name(model.name):
            raise InvalidConfig(f"{where}model {model.name!r}: {fault}")
        seen.add(model.name)
        _check_model(model, f"{where}model {model.name!r}: ")
        if model.logging is None:
            continue
        prefix = os.path.normpath(model.logging.filename_prefix)
        other = model_of_prefix.setdefault(prefix, model.name)
        if other != model.name:
            raise InvalidConfig(
                f"{where}model {model.name!r}: model {other!r} logs to filename_prefix {prefix!r}, too; "
                "give each model its own"
            )


def _check_model(model: ModelConfig, where: str) -> None:
    selection = model.version_selection
    if is_store_url(model.base_path):
        check_store_url(model.base_path, where)
    elif not os.path.isabs(model.base_path):
        raise InvalidConfig(
            f"{where}base_path {model.base_path!r} must be an absolute path of the server's machine, "
            "or a URL like s3://bucket/path"
        )
    for label, version in model.labels.items():
        if version < 0:
            raise InvalidConfig(
                f"{where}label {label!r}: {version} is not a version; give 0 or more"
            )
        if isinstance(selection, Specific) and version not in selection.versions:
            raise InvalidConfig(
                f"{where}label {label!r} is of version {version}, which model_version_policy "
                f"({selection}) does not load; add it there or move the label"
            )

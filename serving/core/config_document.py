"""The reply of Millpond's GetConfig: the configured models and their settings, as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from serving.core.model_config import ModelConfig, SettingsByModel
from serving.core.model_settings import ModelSettings
from serving.core.request_logging import RequestLogging
from serving.core.settings_table import as_table, overridden
from serving.core.version_selection import All, Latest, Specific, VersionSelection


def config_document(models: Sequence[ModelConfig], settings: SettingsByModel) -> bytes:
    """The configuration in JSON (UTF-8), with the default settings for later models."""
    document = {
        "models": [_model_document(model) for model in models],
        "default_settings": as_table(settings.default),
    }
    return json.dumps(document).encode()


def parse_config(reply: bytes) -> tuple[tuple[ModelConfig, ...], SettingsByModel]:
    """Parses the models, and the settings of present and later models, from a reply of GetConfig."""
    document = json.loads(reply)
    models = tuple(_model(entry) for entry in document["models"])
    default = overridden(ModelSettings(), document["default_settings"], "GetConfig")
    return models, SettingsByModel(default, {model.name: model.settings for model in models})


def _model_document(model: ModelConfig) -> dict[str, Any]:
    return {
        "name": model.name,
        "base_path": model.base_path,
        "platform": model.platform,
        "versions": _selection_document(model.version_selection),
        "labels": dict(model.labels),
        "logging": asdict(model.logging) if model.logging else None,
        "settings": as_table(model.settings),
    }


def _model(document: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(
        name=document["name"],
        base_path=document["base_path"],
        platform=document["platform"],
        version_selection=_selection(document["versions"]),
        labels=document["labels"],
        logging=RequestLogging(**document["logging"]) if document["logging"] else None,
        settings=overridden(ModelSettings(), document["settings"], document["name"]),
    )


def _selection_document(selection: VersionSelection) -> dict[str, Any]:
    if isinstance(selection, Latest):
        return {"latest": selection.version_count}
    if isinstance(selection, Specific):
        return {"specific": sorted(selection.versions)}
    return {"all": True}


def _selection(document: Mapping[str, Any]) -> VersionSelection:
    if "latest" in document:
        return Latest(document["latest"])
    if "specific" in document:
        return Specific(frozenset(document["specific"]))
    return All()

"""The rare RPCs about configuration: TensorFlow Serving's reload, and Millpond's GetConfig."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from serving.config import ModelConfig
from serving.config_reload import ConfigReloader
from serving.errors import InvalidArgument
from serving.model_config_file import decode_model_config
from serving.model_settings import ModelSettings
from serving.model_settings_file import SettingsByModel, as_table, overridden
from serving.protos import model_management_pb2
from serving.served_models import ServedModels
from serving.version_selection import All, Latest, Specific, VersionSelection

RELOAD_CONFIG = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
GET_CONFIG = "/millpond.v1.Admin/GetConfig"

RELOAD_TIMEOUT_SECONDS = 60.0
"""How long a reload waits for new models. A handler does not hear of its caller's deadline; one that
has hung up meanwhile and asks again is not kept from it (see `ConfigReloader`)."""


class ConfigService:
    """On the threads of the rare calls. A reload holds one of them while it waits, and only one."""

    def __init__(self, reloader: ConfigReloader, served: ServedModels) -> None:
        self._reloader = reloader
        self._served = served

    @property
    def handlers(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """By the full name of the method."""
        return {RELOAD_CONFIG: self.reload_config, GET_CONFIG: self.get_config}

    def reload_config(self, request: bytes) -> bytes:
        """ReloadConfigRequest to ReloadConfigResponse, whose status is OK; every other is the call's.

        INVALID_ARGUMENT: the configuration cannot be, and nothing has changed. The others come
        after the change is made: FAILED_PRECONDITION where a new model failed, UNAVAILABLE where
        one has not come yet (the same request again waits for it again), ABORTED where a newer
        change came in between. There are no counters to be named in `metric_names`.
        """
        try:
            message = model_management_pb2.ReloadConfigRequest.FromString(request)
        except DecodeError as error:
            raise InvalidArgument(f"the request is no ReloadConfigRequest: {error}") from error
        models = decode_model_config(message.config.SerializeToString(), "request")
        self._reloader.reload(models, RELOAD_TIMEOUT_SECONDS)
        response = model_management_pb2.ReloadConfigResponse()
        response.status.error_code = 0
        serialized: bytes = response.SerializeToString()
        return serialized

    def get_config(self, request: bytes) -> bytes:
        """What `parse_config` reads. `request` is empty; what a later client puts in is not looked at."""
        del request
        settings = self._reloader.settings
        document = {
            "models": [_model_document(model) for model in self._served.models],
            "default_settings": as_table(settings.default),
        }
        return json.dumps(document).encode()


def parse_config(reply: bytes) -> tuple[tuple[ModelConfig, ...], SettingsByModel]:
    """The models, and the settings of those that are there or may come, of a GetConfig's reply."""
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
        "settings": as_table(model.settings),
    }


def _model(document: Mapping[str, Any]) -> ModelConfig:
    return ModelConfig(
        name=document["name"],
        base_path=document["base_path"],
        platform=document["platform"],
        version_selection=_selection(document["versions"]),
        labels=document["labels"],
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

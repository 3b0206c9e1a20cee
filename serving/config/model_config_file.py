"""Reads the models of a ModelServerConfig, TensorFlow Serving's message, from text or bytes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from serving.base.errors import InvalidArgument, InvalidConfig
from serving.config.config_text import read_config_text
from serving.core.model_config import PLATFORM, ModelConfig, check_models
from serving.core.model_config_messages import config_message, reload_request
from serving.core.request_logging import RequestLogging, make_request_logging
from serving.core.store_urls import is_store_url
from serving.core.version_selection import All, Latest, Specific, VersionSelection


def read_model_config_file(path: Path) -> tuple[ModelConfig, ...]:
    """Reads a text ModelServerConfig. A file without models is one, too: a client may add them later.

    Raises InvalidConfig, with file, field, value and remedy, if the file cannot be read or parsed, has
    a duplicate name or label, a base path that is not absolute, or a platform or field that Millpond
    does not support.
    """
    try:
        text = read_config_text(path)
    except OSError as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    return parse_model_config(text, str(path))


def parse_model_config(text: str, where: str) -> tuple[ModelConfig, ...]:
    """Parses a text from `where`; otherwise like `read_model_config_file`."""
    return _models(_parsed(text, where), where)


def _parsed(text: str, where: str) -> Any:
    try:
        return text_format.Parse(text, config_message())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        # The text of TensorFlow Serving, which operators and tests recognize; `error` has line and
        # column.
        raise InvalidConfig(
            f"{where}: Error parsing text-format tensorflow.serving.ModelServerConfig: {error}"
        ) from error


def decode_reload_request(serialized: bytes) -> tuple[ModelConfig, ...]:
    """Decodes a serialized ReloadConfigRequest, as `decode_model_config` does.

    Raises InvalidArgument if it is no such message.
    """
    request = reload_request()
    try:
        request.ParseFromString(serialized)
    except DecodeError as error:
        raise InvalidArgument(f"the request is not a valid ReloadConfigRequest: {error}") from error
    return decode_model_config(request.config.SerializeToString(), "request")


def decode_model_config(serialized: bytes, where: str) -> tuple[ModelConfig, ...]:
    """Decodes a serialized ModelServerConfig from `where`; otherwise as `read_model_config_file`.

    Raises InvalidConfig also if there is no list of models. An empty list is one: no model is left.
    """
    config = config_message()
    try:
        config.ParseFromString(serialized)
    except DecodeError as error:
        raise InvalidConfig(f"{where}: not a ModelServerConfig: {error}") from error
    models = _models(config, where)
    if not config.HasField("model_config_list"):
        raise InvalidConfig(
            f"{where}: no model_config_list in it; write `model_config_list {{}}` if no model is "
            "to be served"
        )
    return models


def encode_model_config(path: Path) -> bytes:
    """Encodes the ModelServerConfig of a file that `read_model_config_file` accepts."""
    serialized: bytes = _parsed(read_config_text(path), str(path)).SerializeToString()
    return serialized


def _models(config: Any, where: str) -> tuple[ModelConfig, ...]:
    if config.HasField("custom_model_config"):
        raise InvalidConfig(f"{where}: custom_model_config is refused; use model_config_list")
    models = tuple(_model(model, where) for model in config.model_config_list.config)
    check_models(models, f"{where}: ")
    return models


def _model(model: Any, source: str) -> ModelConfig:
    """Converts a ModelConfig message whose version_labels are a list."""
    where = f"{source}: model {model.name!r}"
    base_path = os.fsdecode(model.base_path)
    if not model.name:
        raise InvalidConfig(f"{source}: the model of base_path {_shown(base_path)} has no name")
    if "\0" in base_path:
        raise InvalidConfig(f"{where}: base_path {_shown(base_path)} has a NUL, as no path may")
    _check_platform(model, where)
    return ModelConfig(
        name=model.name,
        base_path=base_path,
        version_selection=_version_selection(model.model_version_policy),
        labels=_labels(model.version_labels, where),
        logging=_logging(model, where),
    )


def _logging(model: Any, where: str) -> RequestLogging | None:
    """Converts a LoggingConfig; an unset one logs nothing. Refuses fields that would change nothing."""
    if not model.HasField("logging_config"):
        return None
    where = f"{where}: logging_config"
    config, collector = model.logging_config, model.logging_config.log_collector_config
    sampling = config.sampling_config
    unused = [
        name
        for message, name in (
            (sampling, "per_task_sampling_configs"),
            (sampling, "attributes"),
            (config, "custom_logging_config"),
        )
        if any(field.name == name for field, _ in message.ListFields())
    ]
    if unused:
        raise InvalidConfig(
            f"{where}: {', '.join(unused)} would have no effect; "
            "remove it and give sampling_config.sampling_rate and log_collector_config"
        )
    return make_request_logging(
        sampling.sampling_rate, collector.filename_prefix, collector.type, where
    )


def _shown(base_path: str) -> str:
    """The base path for an error. A URL that was not checked may hold a password."""
    return "a URL" if is_store_url(base_path) else repr(base_path)


def _check_platform(model: Any, where: str) -> None:
    if model.model_platform not in ("", PLATFORM):
        raise InvalidConfig(
            f"{where}: model_platform {model.model_platform!r} is refused; "
            f"Millpond serves {PLATFORM!r}"
        )
    # The field that model_platform replaced in 2016; old files still carry it.
    model_type = type(model).DESCRIPTOR.fields_by_name["model_type"].enum_type
    if model_type.values_by_number[model.model_type].name == "OTHER":
        raise InvalidConfig(f"{where}: model_type OTHER is refused; Millpond serves {PLATFORM!r}")


def _version_selection(policy: Any) -> VersionSelection:
    """Converts a FileSystemStoragePathSourceConfig.ServableVersionPolicy; unset means latest."""
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return All()
    if kind == "specific":
        return Specific(frozenset(policy.specific.versions))
    # TensorFlow Serving reads 0, which is what an unset field looks like, as 1.
    return Latest(policy.latest.num_versions or 1)


def _labels(entries: Any, where: str) -> Mapping[str, int]:
    labels: dict[str, int] = {}
    for entry in entries:
        if not entry.key:
            raise InvalidConfig(f"{where}: a label of version {entry.value} has no name (key)")
        if entry.key in labels:
            raise InvalidConfig(
                f"{where}: duplicate label {entry.key!r}, for versions {labels[entry.key]} "
                f"and {entry.value}; keep one"
            )
        labels[entry.key] = entry.value
    return labels

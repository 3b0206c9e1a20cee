"""Reads the file of --monitoring_config_file: TensorFlow Serving's MonitoringConfig, as text."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from serving.base.errors import InvalidConfig

_PATH = re.compile(r"/[\w.~-]+(/[\w.~-]+)*")


def read_monitoring_config_file(path: Path) -> str:
    """Returns the HTTP path of the metrics, or "" if the file does not enable one.

    Raises InvalidConfig, with the file and the remedy, if the file cannot be read or parsed, or if the
    path is not a path of HTTP.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    return parse_monitoring_config(text, str(path))


def parse_monitoring_config(text: str, where: str) -> str:
    """Parses a text from `where`; otherwise like `read_monitoring_config_file`."""
    try:
        config = text_format.Parse(text, _config_class()())
    except text_format.ParseError as error:
        raise InvalidConfig(f"{where}: not a text protobuf of MonitoringConfig: {error}") from error
    prometheus = config.prometheus_config
    if prometheus.path and not _PATH.fullmatch(prometheus.path):
        raise InvalidConfig(
            f"{where}: prometheus_config.path {prometheus.path!r} is not a path; write it like "
            '"/monitoring/metrics"'
        )
    return str(prometheus.path) if prometheus.enable else ""


@cache
def _config_class() -> Any:
    """Builds the class of MonitoringConfig, which tensorflow-serving-api does not contain."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="monitoring_config", package="millpond")
    prometheus = file.message_type.add(name="PrometheusConfig")
    for number, (name, kind) in enumerate(
        (("enable", field.TYPE_BOOL), ("path", field.TYPE_STRING)), start=1
    ):
        prometheus.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    monitoring = file.message_type.add(name="MonitoringConfig")
    monitoring.field.add(
        name="prometheus_config",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".millpond.PrometheusConfig",
        label=field.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("millpond.MonitoringConfig"))

"""Reads the file of --monitoring_config_file: TensorFlow Serving's MonitoringConfig, as text."""

import re
from pathlib import Path

from google.protobuf import text_format

from serving.base.bounded_files import SETTINGS_BYTES_MAX, read_bounded_text
from serving.base.compiled_protos import message_class
from serving.base.errors import InvalidConfig

_PATH = re.compile(r"/[\w.~-]+(/[\w.~-]+)*")


def read_monitoring_config_file(path: Path) -> str:
    """Reads the HTTP path of the metrics, or "" if the file does not enable one.

    Raises InvalidConfig, with the file and the remedy, if the file cannot be read or parsed, or if the
    path is not a path of HTTP.
    """
    try:
        text = read_bounded_text(path, SETTINGS_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    return parse_monitoring_config(text, str(path))


def parse_monitoring_config(text: str, where: str) -> str:
    """Parses a text from `where`; otherwise like `read_monitoring_config_file`."""
    try:
        config = text_format.Parse(text, message_class("tensorflow.serving.MonitoringConfig")())
    except text_format.ParseError as error:
        raise InvalidConfig(f"{where}: not a text protobuf of MonitoringConfig: {error}") from error
    prometheus = config.prometheus_config
    if prometheus.path and not _PATH.fullmatch(prometheus.path):
        raise InvalidConfig(
            f"{where}: prometheus_config.path {prometheus.path!r} is not a path; write it like "
            '"/monitoring/metrics"'
        )
    return str(prometheus.path) if prometheus.enable else ""

from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig
from serving.config.flags import parse_flags
from serving.config.monitoring_config_file import (
    parse_monitoring_config,
    read_monitoring_config_file,
)
from serving.config.server_config import server_config


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('prometheus_config { enable: true, path: "/monitoring/metrics" }', "/monitoring/metrics"),
        ('prometheus_config: { path: "/m" enable: true }', "/m"),
        ("prometheus_config { enable: true }", ""),
        ('prometheus_config { enable: false path: "/m" }', ""),
        ('prometheus_config { path: "/m" }', ""),
        ("", ""),
    ],
)
def test_monitoring_config_yields_enabled_path(text: str, path: str):
    assert parse_monitoring_config(text, "here") == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prometheus_config { enable: maybe }", "m.txt: not a text protobuf of MonitoringConfig: "),
        ("statsd_config {}", "m.txt: not a text protobuf of MonitoringConfig: "),
        ('prometheus_config { path: "metrics" }', "path 'metrics' is not a path; write it like"),
        ('prometheus_config { path: "/{x}" }', "path '/{x}' is not a path"),
        ('prometheus_config { path: "/a?b" }', r"path '/a\?b' is not a path"),
        ('prometheus_config { path: "/" }', "path '/' is not a path"),
    ],
)
def test_bad_monitoring_config_names_file_and_remedy(tmp_path: Path, text: str, message: str):
    path = tmp_path / "m.txt"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=message):
        read_monitoring_config_file(path)


def test_missing_monitoring_config_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match=r"none\.txt: cannot be read"):
        read_monitoring_config_file(tmp_path / "none.txt")


def test_server_config_has_monitoring_path(tmp_path: Path):
    path = tmp_path / "m.txt"
    path.write_text('prometheus_config { enable: true path: "/m" }')
    arguments = ["--model_base_path=/m", f"--monitoring_config_file={path}"]
    assert server_config(parse_flags(arguments)).metrics_path == "/m"

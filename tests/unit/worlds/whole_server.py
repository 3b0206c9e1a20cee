"""The configuration of a server that has every part, and the files of its versions."""

import os
from pathlib import Path

from serving.config.server_config import HttpPort, ServerConfig
from serving.core.model_config import ModelConfig


def full_config(directory: Path) -> ServerConfig:
    """Makes the files that the configuration names in `directory`."""
    config_file = directory / "models.config"
    config_file.write_text("model_config_list {}")
    (directory / "captured").mkdir()
    return ServerConfig(
        models=(ModelConfig(name="m", base_path=str(directory / "m")),),
        model_config_file=str(config_file),
        model_config_file_poll_wait_seconds=60.0,
        rest_api_port=HttpPort(0),
        port=0,
        listen_before_ready=True,
        admin_address="off",
        admin_on_data_port="true",
        fleet_member=True,
        state_directory=str(directory / "state"),
        warmup_capture_directory=str(directory / "captured"),
        slow_request_log_seconds=1.0,
        drain_seconds=0.01,
    )


def drop(base_path: Path, version: int) -> None:
    """Writes a version that has settled long ago, so that tests do not wait for it."""
    directory = base_path / str(version)
    directory.mkdir(parents=True)
    (directory / "saved_model.pb").write_bytes(b"graph")
    for path in (directory / "saved_model.pb", directory):
        os.utime(path, (0, 0))

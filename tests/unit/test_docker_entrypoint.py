"""The image's commands, with a `millpond` on the path that prints its own arguments."""

import os
import subprocess
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "scripts" / "docker"
# The variables that the Dockerfile sets.
IMAGE = {
    "MODEL_BASE_PATH": "/models",
    "MODEL_NAME": "model",
    "MILLPOND_PORT": "8500",
    "MILLPOND_HTTP_PORT": "8501",
}
FLAGS = ["--supervise", "--port=8500", "--rest_api_port=8501"]


def called(tmp_path: Path, script: str, *arguments: str, **environment: str) -> list[str]:
    """Returns the arguments that `script` passes to millpond."""
    millpond = tmp_path / "millpond"
    millpond.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    millpond.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    result = subprocess.run(
        [DOCKER / script, *arguments],
        env={"PATH": path, **IMAGE, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.splitlines()


def test_entrypoint_serves_model_of_environment(tmp_path: Path):
    assert called(tmp_path, "entrypoint.sh", MODEL_NAME="ctr", MODEL_BASE_PATH="/srv") == [
        *("serve", "--model_name=ctr", "--model_base_path=/srv/ctr", *FLAGS)
    ]


def test_entrypoint_hands_further_flags_on_as_they_are(tmp_path: Path):
    given = called(tmp_path, "entrypoint.sh", "--rest_api_port=80", "--saved_model_tags=a b")
    assert given[-2:] == ["--rest_api_port=80", "--saved_model_tags=a b"]


@pytest.mark.parametrize(
    "flag", [["--model_config_file=/models/m.config"], ["--model_config_file", "/models/m.config"]]
)
def test_entrypoint_config_file_excludes_model_name(tmp_path: Path, flag: list[str]):
    given = called(tmp_path, "entrypoint.sh", "--num_load_threads=1", *flag)
    assert given == ["serve", *FLAGS, "--num_load_threads=1", *flag]


def test_model_server_alias_passes_same_flags(tmp_path: Path):
    flags = ["--port=8500", "--model_name=ctr", "--model_base_path=/models/ctr"]
    assert called(tmp_path, "tensorflow_model_server.sh", *flags) == [
        "serve",
        "--supervise",
        *flags,
    ]

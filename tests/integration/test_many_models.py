"""Servers of many models: all of them load, and the number of threads does not depend on their number."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from loadtest.drive.small_model import write_small_models
from loadtest.measure.process_memory import resident
from serving import ModelServer
from serving.base.clock import SystemClock
from serving.client import Client
from serving.core.servable import AVAILABLE
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer, WriteConfig

MODEL_COUNT = 80
BAD_PATH_COUNT = 100
SMALL_MODEL_BYTES = 1_000_000
START_TIMEOUT_SECONDS = 300
# Pollers and loaders: one a core each, until the port opens.
FURTHER_THREAD_COUNT = 20 + len(os.sched_getaffinity(0))


def thread_count(server: ModelServer) -> int:
    return len(os.listdir(f"/proc/{server.process_id}/task"))


def anonymous_bytes(server: ModelServer) -> int:
    """The resident memory without that of files."""
    memory = resident(server.process_id, SystemClock())
    assert memory is not None
    return memory.anonymous_bytes


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Base paths by name."""
    return dict(write_small_models(tmp_path_factory.mktemp("small"), MODEL_COUNT))


@dataclass(frozen=True)
class Alone:
    """A server of one model, and the number of its threads then. The server reads its config file again."""

    server: ModelServer
    config_file: Path
    thread_count: int


@pytest.fixture(scope="module")
def alone(
    start_module_server: StartServer,
    small_models: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    write_config: WriteConfig,
) -> Alone:
    directory = tmp_path_factory.mktemp("alone")
    config_file = write_config(directory, first_of(small_models))
    server = start_module_server(
        model_config_file=config_file, model_config_file_poll_wait_seconds=0.05
    )
    server.wait_until_available(next(iter(small_models)), 1)
    return Alone(server, config_file, thread_count(server))


def first_of(base_paths: dict[str, Path]) -> dict[str, Path]:
    return dict(list(base_paths.items())[:1])


def test_many_models_start_without_a_thread_each(
    start_server: StartServer,
    small_models: dict[str, Path],
    alone: Alone,
    tmp_path: Path,
    write_config: WriteConfig,
):
    server = start_server(
        model_config_file=write_config(tmp_path, small_models),
        listen_before_ready=False,
        start_timeout_seconds=START_TIMEOUT_SECONDS,
    )
    # The port is open, so every model has come.
    with Client(server.target) as client:
        for name in small_models:
            assert [status.state for status in client.model_status(name)] == [AVAILABLE]
            answer = client.predict(name, {"x": np.array([5.0], np.float32)})
            assert answer.outputs["y"] == [4.5]
    assert thread_count(server) <= alone.thread_count + FURTHER_THREAD_COUNT


def test_small_models_take_little_memory(
    start_server: StartServer,
    small_models: dict[str, Path],
    alone: Alone,
    tmp_path: Path,
    write_config: WriteConfig,
):
    server = start_server(
        model_config_file=write_config(tmp_path, small_models),
        listen_before_ready=False,
        start_timeout_seconds=START_TIMEOUT_SECONDS,
    )
    more_bytes = anonymous_bytes(server) - anonymous_bytes(alone.server)
    # A huge page, or histograms without requests, would take 2.9 MB each.
    assert more_bytes / (MODEL_COUNT - 1) < SMALL_MODEL_BYTES


def test_bad_paths_need_no_threads(
    alone: Alone, small_models: dict[str, Path], tmp_path: Path, write_config: WriteConfig
):
    bad = {f"bad-{number}": tmp_path / f"nowhere-{number}" for number in range(BAD_PATH_COUNT)}
    write_config(tmp_path, {**bad, **first_of(small_models)}).rename(alone.config_file)
    with Client(alone.server.admin_target) as client:

        def are_all_noted() -> bool:
            models = client.describe_models()
            return all(name in models and models[name]["notes"] for name in bad)

        wait_until(are_all_noted, "each bad path to be reported")
    assert thread_count(alone.server) <= alone.thread_count + FURTHER_THREAD_COUNT

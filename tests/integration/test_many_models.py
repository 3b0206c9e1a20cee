"""A server of 200 small models: all of them load, and the number of threads does not depend on the
number of models.
"""

import os
from pathlib import Path

import numpy as np

from loadtest.drive.small_model import write_small_models
from serving.client import Client
from serving.core.servable import AVAILABLE
from tests.integration.conftest import StartServer, WriteConfig

MODEL_COUNT = 200
_START_TIMEOUT_SECONDS = 600


def thread_count(process_id: int) -> int:
    return len(os.listdir(f"/proc/{process_id}/task"))


def test_many_models_start_without_a_thread_each(
    start_server: StartServer, tmp_path: Path, write_config: WriteConfig
):
    base_paths = write_small_models(tmp_path, MODEL_COUNT)
    first = dict(list(base_paths.items())[:1])
    alone = start_server(model_config_file=write_config(tmp_path, first))
    alone.wait_until_available(next(iter(first)), 1)
    few_count = thread_count(alone.process_id)
    alone.stop()
    server = start_server(
        model_config_file=write_config(tmp_path, base_paths),
        listen_before_ready=False,
        start_timeout_seconds=_START_TIMEOUT_SECONDS,
    )
    # The port is open, so every model has come.
    with Client(server.target) as client:
        for name in base_paths:
            assert [status.state for status in client.model_status(name)] == [AVAILABLE]
            answer = client.predict(name, {"x": np.array([5.0], np.float32)})
            assert answer.outputs["y"] == [4.5]
    # Pollers and loaders: one a core each, until the port opens.
    assert thread_count(server.process_id) <= few_count + 20 + len(os.sched_getaffinity(0))

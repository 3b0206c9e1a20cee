"""Requests that never end by themselves: they stop no other model, and they get a deadline."""

import math
import os
from pathlib import Path

import grpc
import numpy as np
import pytest

from serving import ModelServer
from tests.integration.clients import caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel, drop
from tests.integration.processes import cpu_seconds

ENDLESS_COUNT = 16
FOR_EVER = predict_request("slow", {"seconds": np.float64(math.inf)})


@pytest.fixture
def base_paths(slow_export: Path, scale_model: ScaleModel, tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / name for name in ("slow", "scale")}
    for path in paths.values():
        path.mkdir()
    drop(slow_export, paths["slow"], 1)
    scale_model.write(paths["scale"], 1)
    return paths


def started(
    start_server: StartServer,
    write_config: WriteConfig,
    tmp_path: Path,
    base_paths: dict[str, Path],
    **flags: object,
) -> ModelServer:
    server = start_server(model_config_file=write_config(tmp_path, base_paths), **flags)
    for name in base_paths:
        server.wait_until_available(name, 1)
    return server


def wait_until_all_cores_are_busy(server: ModelServer) -> None:
    before = cpu_seconds(server.process_id)
    wait_until(
        lambda: cpu_seconds(server.process_id) > before + 0.5 * (os.cpu_count() or 1), "the loops"
    )


def test_endless_requests_stop_no_other_model(
    start_server: StartServer,
    write_config: WriteConfig,
    tmp_path: Path,
    base_paths: dict[str, Path],
) -> None:
    server = started(start_server, write_config, tmp_path, base_paths, max_request_seconds=0)
    scale = predict_request("scale", {"x": np.array([1.0], np.float32)})
    with caller_to(server.target) as caller, caller_to(server.target) as other:
        endless = [caller.start_predict(FOR_EVER, timeout=600) for _ in range(ENDLESS_COUNT)]
        wait_until_all_cores_are_busy(server)
        # One connection has the endless requests too, the other has none of them.
        for _ in range(20):
            assert caller.predict(scale, timeout=60).model_spec.version.value == 1
            assert other.predict(scale, timeout=60).model_spec.version.value == 1
        assert not any(call.done() for call in endless)
        for call in endless:
            call.cancel()
        quick = predict_request("slow", {"x": np.int32(1)}, signature_name="quick")
        assert caller.predict(quick, timeout=30).model_spec.version.value == 1


def test_request_without_a_deadline_gets_one(
    start_server: StartServer,
    write_config: WriteConfig,
    tmp_path: Path,
    base_paths: dict[str, Path],
) -> None:
    server = started(start_server, write_config, tmp_path, base_paths, max_request_seconds=0.5)
    with caller_to(server.target) as caller:
        call = caller.start_predict(FOR_EVER, timeout=None)
        assert call.exception(timeout=60).code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "--max_request_seconds" in call.details()
        quick = predict_request("slow", {"x": np.int32(1)}, signature_name="quick")
        assert caller.predict(quick, timeout=30).model_spec.version.value == 1

"""Self-warm-up: a new version runs its predecessor's live requests before it serves.

A request of `slow` computes for the seconds that it carries, so the seconds of a stage show which
requests were replayed.
"""

from pathlib import Path

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration import exports
from tests.integration.clients import (
    Caller,
    caller_to,
    predict_request,
    refusal,
    wait_for_states,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop, write_warm_up
from tests.integration.logs import wait_for_log

RUN_SECONDS = 0.2
# The replay runs each request twice.
REPLAY_SECONDS = 2 * RUN_SECONDS


@pytest.fixture
def server(start_server: StartServer, slow_export: Path, base_path: Path) -> ModelServer:
    """Serves version 1 of `slow`, which has no warm-up file."""
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path)
    server.wait_until_available("slow", 1)
    return server


def self_warm_up_seconds(server: ModelServer, version: int) -> float:
    """Returns the seconds of the stage in the log; fails if the stage is missing."""
    seconds: float = wait_for_log(server, "version_available", version=version)[
        "self_warm_up_seconds"
    ]
    return seconds


def test_first_version_has_nothing_to_replay(server: ModelServer):
    assert wait_for_log(server, "self_warmed_up", version=1)["run_count"] == 0


def test_replay_keeps_output_filters_of_clients(
    server: ModelServer, caller: Caller, slow_export: Path, base_path: Path
):
    request = predict_request(
        "slow", {"seconds": np.float64(RUN_SECONDS)}, output_filter=["rounds"]
    )
    caller.predict(request)
    drop(slow_export, base_path, 2)
    assert self_warm_up_seconds(server, 2) >= REPLAY_SECONDS
    assert list(caller.predict(request).outputs) == ["rounds"]


def test_version_after_next_replays_them_too(
    server: ModelServer, caller: Caller, slow_export: Path, base_path: Path
):
    # The requests of a version with little traffic outlive the version.
    caller.predict(predict_request("slow", {"seconds": np.float64(RUN_SECONDS)}))
    for version in (2, 3):
        drop(slow_export, base_path, version)
        assert self_warm_up_seconds(server, version) >= REPLAY_SECONDS


def test_replay_follows_warm_up_file(
    server: ModelServer, caller: Caller, slow_export: Path, base_path: Path
):
    caller.predict(predict_request("slow", {"seconds": np.float64(RUN_SECONDS)}))
    second = exports.let_settle(drop(slow_export, base_path.parent, "second"))
    write_warm_up(second, "slow", [{"seconds": np.float64(RUN_SECONDS)}] * 3)
    drop(second, base_path, 2)
    available = wait_for_log(server, "version_available", version=2)
    assert available["warm_up_seconds"] >= 3 * RUN_SECONDS
    assert available["self_warm_up_seconds"] >= REPLAY_SECONDS
    stages = list(available)
    assert stages.index("warm_up_seconds") < stages.index("self_warm_up_seconds")


def test_statistics_exclude_replayed_requests(
    server: ModelServer, caller: Caller, slow_export: Path, base_path: Path
):
    for _ in range(3):
        caller.predict(predict_request("slow", {"x": np.int32(1)}, signature_name="quick"))
    drop(slow_export, base_path, 2)
    wait_for_log(server, "version_unloaded", version=1)
    caller.predict(predict_request("slow", {"x": np.int32(2)}, signature_name="quick"))
    drop(slow_export, base_path, 3)
    counts = [
        wait_for_log(server, "version_unloaded", version=version)["request_count"]
        for version in (1, 2)
    ]
    assert counts == [3, 1]


def test_request_that_failed_is_not_replayed(
    server: ModelServer, caller: Caller, slow_export: Path, base_path: Path
):
    too_long = predict_request("slow", {"seconds": np.float64(20)})
    code, _ = refusal(lambda: caller.predict(too_long, timeout=RUN_SECONDS))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    drop(slow_export, base_path, 2)
    assert wait_for_log(server, "self_warmed_up", version=2)["run_count"] == 0


def test_version_unable_to_replay_serves_new_requests(
    start_server: StartServer,
    slow_export: Path,
    scale_model: ScaleModel,
    base_path: Path,
    tmp_path: Path,
):
    settings = tmp_path / "settings.toml"
    settings.write_text('[default.gates]\nsignature = "warn"\nself_warm_up = "warn"\n')
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, model_settings_file=str(settings))
    server.wait_until_available("slow", 1)
    with caller_to(server.target) as caller:
        caller.predict(predict_request("slow", {"x": np.int32(1)}, signature_name="quick"))
    scale_model.write(base_path, 2)
    with Client(server.target) as client:
        wait_for_states(client, "slow", {1: END, 2: AVAILABLE})
        answer = client.predict("slow", {"x": np.ones(1, np.float32)})
    assert answer.outputs["y"].tolist() == [4.0]


def test_replay_leaves_counting_version_unchanged(
    start_server: StartServer, export_path: Path, base_path: Path
):
    export = exports.export_counter(export_path / "self-warm-up-counter")
    drop(export, base_path, 1)
    server = start_server(model_name="counter", base_path=base_path)
    server.wait_until_available("counter", 1)
    with Client(server.target) as client:
        first = client.predict("counter", {"by": np.int64(1)}).outputs["sum"]
        drop(export, base_path, 2)
        wait_for_states(client, "counter", {1: END, 2: AVAILABLE})
        second = client.predict("counter", {"by": np.int64(1)}).outputs["sum"]
    assert [first.item(), second.item()] == [1_000_000, 1_000_000]


def test_stage_is_absent_without_kept_requests(
    start_server: StartServer, slow_export: Path, base_path: Path
):
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, self_warmup_requests=0)
    server.wait_until_available("slow", 1)
    with caller_to(server.target) as caller:
        caller.predict(predict_request("slow", {"seconds": np.float64(RUN_SECONDS)}))
    drop(slow_export, base_path, 2)
    available = wait_for_log(server, "version_available", version=2)
    assert "self_warm_up_seconds" not in available

"""Self-warm-up: a new version runs its predecessor's live requests before it serves.

A request of `slow` computes for the seconds that it carries, so the seconds of a stage show which
requests were replayed.
"""

from pathlib import Path
from typing import Any

import grpc
import numpy as np

from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration import exports
from tests.integration.clients import Caller, caller_to, predict_request, refusal
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop, write_warm_up
from tests.integration.logs import wait_for_log
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import millpond

RUN_SECONDS = 0.2
# The replay runs each request twice.
REPLAY_SECONDS = 2 * RUN_SECONDS


def run_of(model: HostedModel, seconds: float, **more: Any) -> Any:
    """Returns a request that computes for so long."""
    return predict_request(model.name, {"seconds": np.float64(seconds)}, **more)


def quick(model: HostedModel, x: int) -> Any:
    return predict_request(model.name, {"x": np.int32(x)}, signature_name="quick")


def self_warm_up_seconds(model: HostedModel, version: int) -> float:
    """Returns the seconds of the stage in the log; fails if the stage is missing."""
    available = model.wait_for_log("version_available", version=version)
    seconds: float = available["self_warm_up_seconds"]
    return seconds


def test_first_version_has_nothing_to_replay(slow: HostedModel):
    assert slow.wait_for_log("self_warmed_up", version=1)["run_count"] == 0


def test_replay_keeps_output_filters_of_clients(
    slow: HostedModel, slow_caller: Caller, slow_export: Path
):
    request = run_of(slow, RUN_SECONDS, output_filter=["rounds"])
    slow_caller.predict(request)
    slow.wait_until_kept(1)
    slow.serve(slow_export, 2)
    assert self_warm_up_seconds(slow, 2) >= REPLAY_SECONDS
    assert list(slow_caller.predict(request).outputs) == ["rounds"]


def test_version_after_next_replays_them_too(
    slow: HostedModel, slow_caller: Caller, slow_export: Path
):
    # The requests of a version with little traffic outlive the version.
    slow_caller.predict(run_of(slow, RUN_SECONDS))
    slow.wait_until_kept(1)
    for version in (2, 3):
        slow.serve(slow_export, version)
        assert self_warm_up_seconds(slow, version) >= REPLAY_SECONDS


def test_replay_follows_warm_up_file(
    slow: HostedModel, slow_caller: Caller, slow_export: Path, tmp_path: Path
):
    slow_caller.predict(run_of(slow, RUN_SECONDS))
    slow.wait_until_kept(1)
    second = drop(slow_export, tmp_path, "second")
    write_warm_up(second, slow.name, [{"seconds": np.float64(RUN_SECONDS)}] * 3)
    drop(second, slow.base_path, 2)
    available = slow.wait_for_log("version_available", version=2)
    assert available["warm_up_seconds"] >= 3 * RUN_SECONDS
    assert available["self_warm_up_seconds"] >= REPLAY_SECONDS
    stages = list(available)
    assert stages.index("warm_up_seconds") < stages.index("self_warm_up_seconds")


def test_statistics_exclude_replayed_requests(
    slow: HostedModel, slow_caller: Caller, slow_export: Path
):
    for _ in range(3):
        slow_caller.predict(quick(slow, 1))
    drop(slow_export, slow.base_path, 2)
    slow.wait_for_log("version_unloaded", version=1)
    slow_caller.predict(quick(slow, 2))
    drop(slow_export, slow.base_path, 3)
    counts = [
        slow.wait_for_log("version_unloaded", version=version)["request_count"]
        for version in (1, 2)
    ]
    assert counts == [3, 1]


def test_request_that_failed_is_not_replayed(
    slow: HostedModel, slow_caller: Caller, slow_export: Path
):
    code, _ = refusal(lambda: slow_caller.predict(run_of(slow, 20), timeout=RUN_SECONDS))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    drop(slow_export, slow.base_path, 2)
    assert slow.wait_for_log("self_warmed_up", version=2)["run_count"] == 0


def test_version_unable_to_replay_serves_new_requests(
    host: ModelHost, slow_export: Path, scale_model: ScaleModel
):
    gates = {"signature": "warn", "self_warm_up": "warn"}
    model = host.model(prefix="changing", settings={"gates": gates}).serve(slow_export)
    with caller_to(model.server.target) as caller:
        caller.predict(quick(model, 1))
    scale_model.write(model.base_path, 2)
    model.wait_for_states({1: END, 2: AVAILABLE})
    with Client(model.server.target) as client:
        answer = client.predict(model.name, {"x": np.ones(1, np.float32)})
    assert answer.outputs["y"].tolist() == [4.0]


def test_replay_leaves_counting_version_unchanged(host: ModelHost, export_path: Path):
    export = exports.export_counter(export_path / "self-warm-up-counter")
    model = host.model(prefix="counter").serve(export)
    with Client(model.server.target) as client:
        first = client.predict(model.name, {"by": np.int64(1)}).outputs["sum"]
        drop(export, model.base_path, 2)
        model.wait_for_states({1: END, 2: AVAILABLE})
        second = client.predict(model.name, {"by": np.int64(1)}).outputs["sum"]
    assert [first.item(), second.item()] == [1_000_000, 1_000_000]


def test_server_that_keeps_no_requests_replays_none(
    start_server: StartServer, slow_export: Path, base_path: Path, tmp_path: Path
):
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, self_warmup_requests=0)
    server.wait_until_available("slow", 1)
    with caller_to(server.target) as caller:
        caller.predict(predict_request("slow", {"seconds": np.float64(RUN_SECONDS)}))
    drop(slow_export, base_path, 2)
    available = wait_for_log(server, "version_available", version=2)
    assert "self_warm_up_seconds" not in available
    output = tmp_path / "requests"
    captured = millpond("capture", "--target", server.admin_target, "slow", "--output", output)
    assert captured.returncode == 1
    assert "--self_warmup_requests above 0" in captured.stderr

"""Rollback, canaries, and memory for one version, on a real server with stock clients."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.drive.fleet_model import GOOD, SLOW, FleetModel
from loadtest.drive.fleet_model import MODEL_NAME as FLEET_MODEL
from loadtest.drive.fleet_model import request as fleet_request
from serving import ModelServer
from serving.base.protos import get_model_metadata_pb2, predict_pb2
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from serving.manager.canary import LATENCY_REQUEST_COUNT_MIN
from tests.integration.clients import (
    Caller,
    caller_to,
    predict_request,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged, wait_for_log
from tests.integration.steady_clients import scale_clients

X = np.array([1.0, 2.5, -3.0], np.float32)
VERDICT_TIMEOUT_SECONDS = 120
# 4 MB each.
OFFSET_COUNT = 1_000_000


def answering_version(caller: Caller, **more: object) -> int:
    version: int = caller.predict(
        predict_request("scale", {"x": X}, **more)  # type: ignore[arg-type]
    ).model_spec.version.value
    return version


@pytest.fixture
def start_with(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
) -> Callable[..., ModelServer]:
    """Starts a server of `scale` with version 1 and these lines of settings."""

    def start(settings: str, **flags: object) -> ModelServer:
        scale_model.write(base_path, 1, offset_count=OFFSET_COUNT)
        path = tmp_path / "settings.toml"
        path.write_text(f"[models.scale]\n{settings}\n")
        server = start_server(
            model_name="scale", base_path=base_path, model_settings_file=path, **flags
        )
        server.wait_until_available("scale", 1)
        return server

    return start


@pytest.fixture
def server_of_two(
    start_with: Callable[..., ModelServer], scale_model: ScaleModel, base_path: Path
) -> ModelServer:
    """Serves version 2 and keeps version 1 for a rollback."""
    server = start_with("keep_previous_seconds = 600")
    scale_model.write(base_path, 2, offset_count=OFFSET_COUNT)
    with Client(server.admin_target) as client:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: AVAILABLE})
    return server


def test_rollback_under_load_is_instant_and_lossless(
    server_of_two: ModelServer,
):
    with (
        scale_clients(server_of_two.target).running() as clients,
        Client(server_of_two.admin_target) as client,
        caller_to(server_of_two.target) as caller,
    ):
        clients.wait_for_answers_of(2, 100)
        for _ in range(20):
            assert client.rollback("scale").version == 1
            assert answering_version(caller) == 1
            clients.wait_for_answers_of(1)
            client.allow("scale", 2)
            wait_until(lambda: answering_version(caller) == 2, "version 2 again")
        clients.wait_for_answers_of(2, 100)
    # The rollback loaded and unloaded no version.
    assert len(logged(server_of_two, "load_started")) == 2
    assert not logged(server_of_two, "unload_started")


def test_version_refused_by_a_gate_leaves_the_way_back(
    server_of_two: ModelServer, echo_export: Path, base_path: Path
):
    shutil.copytree(echo_export, base_path / "3")
    with Client(server_of_two.admin_target) as client, caller_to(server_of_two.target) as caller:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: AVAILABLE, 3: END})
        assert logged(server_of_two, "gate_not_passed", version=3)
        assert client.rollback("scale").version == 1
        assert answering_version(caller) == 1
    assert len(logged(server_of_two, "load_started")) == 3
    assert not logged(server_of_two, "unload_started")


def test_previous_current_and_canary_have_own_slabs(
    start_with: Callable[..., ModelServer], scale_model: ScaleModel, base_path: Path
):
    server = start_with("keep_previous_seconds = 600\ncanary = { weight = 0.5 }")
    with Client(server.admin_target) as client:
        scale_model.write(base_path, 2, offset_count=OFFSET_COUNT)
        wait_for_states(client, "scale", {1: AVAILABLE, 2: AVAILABLE})
        client.promote("scale")
        scale_model.write(base_path, 3, offset_count=OFFSET_COUNT)
        wait_for_states(client, "scale", dict.fromkeys((1, 2, 3), AVAILABLE))
        versions = client.describe_models()["scale"]["versions"]
        resident = [item["arena_resident_bytes"] for item in versions]
        assert len(resident) == 3
        assert min(resident) >= OFFSET_COUNT * 4, resident
        client.promote("scale")
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE, 3: AVAILABLE})


def test_previous_is_given_up_if_three_do_not_fit(
    start_with: Callable[..., ModelServer], scale_model: ScaleModel, base_path: Path
):
    server = start_with(
        "keep_previous_seconds = 600", model_memory_limit_bytes=OFFSET_COUNT * 4 * 5 // 2
    )
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        for version, previous in ((2, 1), (3, 2)):
            scale_model.write(base_path, version, offset_count=OFFSET_COUNT)
            wait_for_states(client, "scale", {previous: AVAILABLE, version: AVAILABLE})
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE, 3: AVAILABLE})
        assert answering_version(caller) == 3
    (given_up,) = logged(server, "previous_version_given_up")
    assert (given_up["version"], given_up["for_version"]) == (1, 3)
    assert "--model_memory_limit_bytes" in str(given_up["reason"])


def test_cold_rollback_command_names_blocked_versions(
    start_with: Callable[..., ModelServer],
    scale_model: ScaleModel,
    echo_export: Path,
    base_path: Path,
):
    from tests.integration.processes import millpond

    server = start_with("keep_previous_seconds = 0")
    scale_model.write(base_path, 2, offset_count=OFFSET_COUNT)
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        # A gate refuses version 3.
        shutil.copytree(echo_export, base_path / "3")
        wait_for_states(client, "scale", {2: AVAILABLE, 3: END})
        result = millpond("rollback", "scale", "--cold", "--target", server.admin_target)
        assert result.stdout.splitlines() == [
            "scale: an earlier version than 2 is being loaded",
            "scale: version 2 is blocked by the rollback: it served until an earlier one is loaded",
            "scale: version 3 is blocked by the rollback: it never served, and would have replaced "
            "the earlier version once loaded; its load failed",
        ], result.stderr
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
        assert client.describe_models()["scale"]["blocked"] == [2, 3]
        assert answering_version(caller) == 1


def test_rollback_during_drain_of_previous_reloads_it(
    start_with: Callable[..., ModelServer], scale_model: ScaleModel, base_path: Path
):
    server = start_with("keep_previous_seconds = 0")
    with Client(server.admin_target) as client:
        # A rollback at every moment of a swap: in each state of it one version serves.
        with scale_clients(server.target).running() as clients:
            clients.wait_for_answers_of(1)
            scale_model.write(base_path, 2, offset_count=OFFSET_COUNT)
            wait_for_log(server, "unload_started", version=1)
            client.rollback("scale", is_cold_allowed=True)
            clients.wait_for_answers_of(1, 10)
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})


def versions_of_users(caller: Caller, count: int) -> dict[str, int]:
    """Returns the version that answers each of so many users."""
    predict: Any = caller.channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=lambda data: data,
    )
    found = {}
    for number in range(count):
        user = f"user-{number}"
        reply = predict(
            predict_request("scale", {"x": X}), metadata=(("x-user", user),), timeout=30
        )
        found[user] = predict_pb2.PredictResponse.FromString(reply).model_spec.version.value
    return found


def test_canary_keeps_its_users(
    start_with: Callable[..., ModelServer], scale_model: ScaleModel, base_path: Path
):
    server = start_with('canary = { weight = 0.3, header = "x-user" }')
    scale_model.write(base_path, 2, offset_count=OFFSET_COUNT)
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: AVAILABLE})
        first = versions_of_users(caller, 200)
        assert versions_of_users(caller, 200) == first
        # The description of a model must not depend on the caller or the time.
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = "scale"
        assert {caller.metadata(request).model_spec.version.value for _ in range(20)} == {1}
        # 60 expected, standard deviation 6.5.
        assert 30 <= Counter(first.values())[2] <= 90
        assert client.promote("scale") == 2
        assert set(versions_of_users(caller, 20).values()) == {2}
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})


def test_slow_canary_is_stopped(start_server: StartServer, tmp_path: Path):
    """Each request of version 2 takes 10 ms of processor time."""
    model = FleetModel(tmp_path / "model")
    model.drop(GOOD, 1)
    settings = tmp_path / "settings.toml"
    settings.write_text(
        f"[models.{FLEET_MODEL}]\n"
        f"canary = {{ weight = 0.2, request_count = {2 * LATENCY_REQUEST_COUNT_MIN} }}\n"
    )
    server = start_server(
        model_name=FLEET_MODEL, base_path=model.base_path, model_settings_file=settings
    )
    server.wait_until_available(FLEET_MODEL, 1)
    model.drop(SLOW, 2)
    request = fleet_request()
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        wait_for_states(client, FLEET_MODEL, {1: AVAILABLE, 2: AVAILABLE})

        def is_decided() -> bool:
            for _ in range(100):
                caller.predict(request)
            return bool(logged(server, "canary_failed"))

        wait_until(is_decided, "the verdict", VERDICT_TIMEOUT_SECONDS)
        wait_for_states(client, FLEET_MODEL, {1: AVAILABLE, 2: END})
    (failed,) = logged(server, "canary_failed")
    assert "times the stable version's p9" in str(failed["reason"])
    # It was compared on other requests before.
    (doubted,) = logged(server, "canary_doubted")
    assert "times the stable version's p9" in str(doubted["reason"])


def test_auto_policy_swaps_in_memory_for_one(
    start_with: Callable[..., ModelServer], scale_model: ScaleModel, base_path: Path
):
    server = start_with(
        'aspired_version_policy = "auto"', model_memory_limit_bytes=OFFSET_COUNT * 4 * 3 // 2
    )
    scale_model.write(base_path, 2, offset_count=OFFSET_COUNT)
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        assert answering_version(caller) == 2
    (chosen,) = logged(server, "resource_preserving_chosen")
    assert "--model_memory_limit_bytes" in str(chosen["reason"])

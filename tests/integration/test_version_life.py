"""Rollback, canaries, and memory for one version, on a real server with stock clients."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.drive.life_slow_model import compute_for
from serving.base.protos import get_model_metadata_pb2, predict_pb2
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from serving.manager.canary import LATENCY_REQUEST_COUNT_MIN
from tests.integration.clients import (
    TIMEOUT_SECONDS,
    Caller,
    caller_to,
    predict_request,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop, let_settle
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import millpond
from tests.integration.steady_clients import scale_clients

X = np.array([1.0, 2.5, -3.0], np.float32)
# 4 MB each.
OFFSET_COUNT = 1_000_000
VERSION_BYTES = OFFSET_COUNT * 4
ROLLBACK_COUNT = 6
# Far above the time of a fast request, also on a machine that is busy with other work.
SLOW_SECONDS = 0.03

AddModel = Callable[..., HostedModel]


def answering_version(caller: Caller, model: HostedModel) -> int:
    response = caller.predict(predict_request(model.name, {"x": X}))
    version: int = response.model_spec.version.value
    return version


def write(model: HostedModel, scale_model: ScaleModel, version: int) -> None:
    scale_model.write(model.base_path, version, offset_count=OFFSET_COUNT)


def add_to(host: ModelHost, scale_model: ScaleModel, settings: dict[str, Any]) -> HostedModel:
    """Adds a model of version 1 with these settings."""
    model = host.model(prefix="scale", settings=settings)
    write(model, scale_model, 1)
    model.wait_until_available(1)
    return model


@pytest.fixture
def add(host: ModelHost, scale_model: ScaleModel) -> AddModel:
    """Adds a model of version 1 with these settings, such as `keep_previous_seconds=600`."""
    return lambda **settings: add_to(host, scale_model, settings)


@pytest.fixture
def start_host(start_server: StartServer, tmp_path: Path) -> Callable[[float], ModelHost]:
    """Starts a server for which so many versions fit into memory."""

    def start(version_count: float) -> ModelHost:
        limit_bytes = round(VERSION_BYTES * version_count)
        # Requests wait in the gap of a swap, which is long on a busy machine.
        waits = {"first_version_wait_seconds": TIMEOUT_SECONDS}
        return ModelHost(start_server, tmp_path, model_memory_limit_bytes=limit_bytes, **waits)

    return start


@pytest.fixture
def start_limited(
    start_host: Callable[[float], ModelHost], scale_model: ScaleModel
) -> Callable[..., HostedModel]:
    """Starts a server for which `version_count` versions fit into memory, with a model of version 1."""

    def start(version_count: float, **settings: object) -> HostedModel:
        return add_to(start_host(version_count), scale_model, settings)

    return start


@pytest.fixture
def model_of_two(add: AddModel, scale_model: ScaleModel) -> HostedModel:
    """Serves version 2 and keeps version 1 for a rollback."""
    model = add(keep_previous_seconds=600)
    write(model, scale_model, 2)
    model.wait_for_states({1: AVAILABLE, 2: AVAILABLE})
    return model


def test_rollback_under_load_is_instant_and_lossless(model_of_two: HostedModel):
    model, server = model_of_two, model_of_two.server
    with (
        scale_clients(server.target, model.name).running() as clients,
        Client(server.admin_target) as client,
        caller_to(server.target) as caller,
    ):
        clients.wait_for_answers_of(2, 100)
        for _ in range(ROLLBACK_COUNT):
            assert client.rollback(model.name).version == 1
            assert answering_version(caller, model) == 1
            clients.wait_for_answers_of(1)
            client.allow(model.name, 2)
            wait_until(lambda: answering_version(caller, model) == 2, "version 2 again")
        clients.wait_for_answers_of(2, 100)
    assert clients.failures == []
    # The rollback loaded and unloaded no version.
    assert len(model.logged("load_started")) == 2
    assert not model.logged("unload_started")


def test_version_refused_by_a_gate_leaves_the_way_back(
    model_of_two: HostedModel, echo_export: Path
):
    model, server = model_of_two, model_of_two.server
    drop(echo_export, model.base_path, 3)
    model.wait_for_states({1: AVAILABLE, 2: AVAILABLE, 3: END})
    model.wait_for_log("gate_not_passed", version=3)
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        assert client.rollback(model.name).version == 1
        assert answering_version(caller, model) == 1
    assert len(model.logged("load_started")) == 3
    assert not model.logged("unload_started")


def test_previous_current_and_canary_have_own_slabs(add: AddModel, scale_model: ScaleModel):
    model = add(keep_previous_seconds=600, canary={"weight": 0.5})
    with Client(model.server.admin_target) as client:
        write(model, scale_model, 2)
        model.wait_for_states({1: AVAILABLE, 2: AVAILABLE})
        client.promote(model.name)
        write(model, scale_model, 3)
        model.wait_for_states(dict.fromkeys((1, 2, 3), AVAILABLE))
        versions = client.describe_models()[model.name]["versions"]
        resident = [item["arena_resident_bytes"] for item in versions]
        assert len(resident) == 3
        assert min(resident) >= VERSION_BYTES, resident
        client.promote(model.name)
    model.wait_for_states({1: END, 2: AVAILABLE, 3: AVAILABLE})


def test_previous_is_given_up_if_three_do_not_fit(
    start_limited: Callable[..., HostedModel], scale_model: ScaleModel
):
    model = start_limited(2.5, keep_previous_seconds=600)
    write(model, scale_model, 2)
    model.wait_for_states({1: AVAILABLE, 2: AVAILABLE})
    write(model, scale_model, 3)
    model.wait_for_states({1: END, 2: AVAILABLE, 3: AVAILABLE})
    with caller_to(model.server.target) as caller:
        assert answering_version(caller, model) == 3
    given_up = model.only_logged("previous_version_given_up")
    assert (given_up["version"], given_up["for_version"]) == (1, 3)
    assert "--model_memory_limit_bytes" in str(given_up["reason"])


def test_cold_rollback_command_names_blocked_versions(
    add: AddModel, scale_model: ScaleModel, echo_export: Path
):
    model = add(keep_previous_seconds=0)
    write(model, scale_model, 2)
    model.wait_for_states({1: END, 2: AVAILABLE})
    # A gate refuses version 3.
    drop(echo_export, model.base_path, 3)
    model.wait_for_states({2: AVAILABLE, 3: END})
    result = millpond("rollback", model.name, "--cold", "--target", model.server.admin_target)
    assert result.stdout.splitlines() == [
        f"{model.name}: an earlier version than 2 is being loaded",
        f"{model.name}: version 2 is blocked by the rollback: it served until an earlier one is loaded",
        f"{model.name}: version 3 is blocked by the rollback: it never served, and would have replaced "
        "the earlier version once loaded; its load failed",
        f"{model.name}: version 1 serves, version 2 is blocked",
    ], result.stderr
    # The next request, and the next status, show it.
    with caller_to(model.server.target) as caller:
        assert answering_version(caller, model) == 1
    model.wait_for_states({1: AVAILABLE, 2: END})
    with Client(model.server.admin_target) as client:
        assert client.describe_models()[model.name]["blocked"] == [2, 3]


def test_cold_rollback_command_may_return_at_once(add: AddModel, scale_model: ScaleModel):
    model = add(keep_previous_seconds=0)
    write(model, scale_model, 2)
    model.wait_for_states({1: END, 2: AVAILABLE})
    target = model.server.admin_target
    result = millpond("rollback", model.name, "--cold", "--no-wait", "--target", target)
    assert f"{model.name}: version 1 serves" not in result.stdout
    model.wait_for_states({1: AVAILABLE, 2: END})


def test_cold_rollback_command_fails_if_none_loads(add: AddModel, scale_model: ScaleModel):
    model = add(keep_previous_seconds=0)
    write(model, scale_model, 2)
    model.wait_for_states({1: END, 2: AVAILABLE})
    (model.base_path / "1" / "saved_model.pb").write_bytes(b"torn")
    target = model.server.admin_target
    result = millpond("rollback", model.name, "--cold", "--target", target)
    assert result.returncode == 1
    assert f"model '{model.name}': version 2 is blocked, but no other version" in result.stderr
    with caller_to(model.server.target) as caller:
        assert answering_version(caller, model) == 2


def test_rollback_during_drain_of_previous_reloads_it(add: AddModel, scale_model: ScaleModel):
    model = add(keep_previous_seconds=0)
    server = model.server
    with Client(server.admin_target) as client:
        # A rollback at every moment of a swap: in each state of it one version serves.
        with scale_clients(server.target, model.name).running() as clients:
            clients.wait_for_answers_of(1)
            write(model, scale_model, 2)
            model.wait_for_log("unload_started", version=1)
            client.rollback(model.name, is_cold_allowed=True)
            clients.wait_for_answers_of(1, 10)
        model.wait_for_states({1: AVAILABLE, 2: END})
    assert clients.failures == []


def versions_of_users(caller: Caller, model: HostedModel, count: int) -> dict[str, int]:
    """Returns the version that answers each of so many users."""
    predict: Any = caller.channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=lambda data: data,
    )
    request = predict_request(model.name, {"x": X}, output_filter=["version"])
    found = {}
    for number in range(count):
        user = f"user-{number}"
        reply = predict(request, metadata=(("x-user", user),), timeout=TIMEOUT_SECONDS)
        found[user] = predict_pb2.PredictResponse.FromString(reply).model_spec.version.value
    return found


def test_canary_keeps_its_users(add: AddModel, scale_model: ScaleModel):
    model = add(canary={"weight": 0.3, "header": "x-user"})
    write(model, scale_model, 2)
    model.wait_for_states({1: AVAILABLE, 2: AVAILABLE})
    server = model.server
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        first = versions_of_users(caller, model, 200)
        assert versions_of_users(caller, model, 200) == first
        # The description of a model must not depend on the caller or the time.
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = model.name
        assert {caller.metadata(request).model_spec.version.value for _ in range(20)} == {1}
        # 60 expected, standard deviation 6.5.
        assert 30 <= Counter(first.values())[2] <= 90
        assert client.promote(model.name) == 2
        assert set(versions_of_users(caller, model, 20).values()) == {2}
    model.wait_for_states({1: END, 2: AVAILABLE})


def export_timed(directory: Path, seconds: float) -> Path:
    """Exports a model whose runs take so long."""
    import tensorflow as tf

    def serving_default(x: Any) -> dict[str, Any]:
        with tf.control_dependencies([compute_for(seconds)["rounds"]]):
            return {"y": x * 2}

    spec = tf.TensorSpec([None], tf.float32, "x")
    signature = tf.function(serving_default).get_concrete_function(x=spec)
    tf.saved_model.save(tf.Module(), str(directory), signatures={"serving_default": signature})
    return let_settle(directory)


def test_slow_canary_is_stopped(host: ModelHost, tmp_path: Path):
    # The stable version gets enough requests for a judgement too.
    canary = {"weight": 0.3, "request_count": LATENCY_REQUEST_COUNT_MIN}
    model = host.model(prefix="slow", settings={"canary": canary})
    model.serve(export_timed(tmp_path / "good", 0))
    model.serve(export_timed(tmp_path / "slow", SLOW_SECONDS), 2)
    request = predict_request(model.name, {"x": X})
    with caller_to(model.server.target) as caller:

        def is_decided() -> bool:
            for _ in range(50):
                caller.predict(request)
            return bool(model.logged("canary_failed"))

        wait_until(is_decided, "the verdict")
    model.wait_for_states({1: AVAILABLE, 2: END})
    failed = model.only_logged("canary_failed")
    assert "times the stable version's p9" in str(failed["reason"])
    # It was compared on other requests before.
    doubted = model.only_logged("canary_doubted")
    assert "times the stable version's p9" in str(doubted["reason"])


def test_auto_policy_swaps_in_memory_for_one(
    start_limited: Callable[..., HostedModel], scale_model: ScaleModel
):
    model = start_limited(1.5, aspired_version_policy="auto")
    write(model, scale_model, 2)
    model.wait_for_states({1: END, 2: AVAILABLE})
    with caller_to(model.server.target) as caller:
        assert answering_version(caller, model) == 2
    chosen = model.only_logged("resource_preserving_chosen")
    assert "--model_memory_limit_bytes" in str(chosen["reason"])


@pytest.mark.parametrize("policy", ["auto", "resource"])
def test_two_models_swap_at_once_in_little_memory(
    start_host: Callable[[float], ModelHost], scale_model: ScaleModel, policy: str
):
    """Neither takes the memory that the other has given up for its own next version."""
    host, settings = start_host(2.5), {"aspired_version_policy": policy}
    models = one, two = [add_to(host, scale_model, settings) for _ in range(2)]
    with (
        scale_clients(one.server.target, one.name).running() as clients_of_one,
        scale_clients(two.server.target, two.name).running() as clients_of_two,
    ):
        clients = (clients_of_one, clients_of_two)
        for version in range(2, 6):
            for model in models:
                write(model, scale_model, version)
            for model, its_clients in zip(models, clients, strict=True):
                model.wait_for_states({version: AVAILABLE})
                its_clients.wait_for_answers_of(version)
    assert clients_of_one.failures == clients_of_two.failures == []


@pytest.mark.parametrize("policy", ["auto", "resource"])
def test_requests_wait_while_memory_is_for_one(
    start_limited: Callable[..., HostedModel], scale_model: ScaleModel, policy: str
):
    model = start_limited(1.5, aspired_version_policy=policy)
    with scale_clients(model.server.target, model.name).running() as clients:
        for version in (2, 3, 4):
            write(model, scale_model, version)
            model.wait_for_states({version - 1: END, version: AVAILABLE})
            clients.wait_for_answers_of(version)
    assert clients.failures == []

"""Loads that are refused, and loads that must not be: kernels, tables, composite tensors, defaults."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration import odd_exports
from tests.integration.batches import CLIENT_COUNT
from tests.integration.clients import (
    array,
    caller_to,
    predict_request,
    refusal,
)
from tests.integration.exports import drop, write_warm_up
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.rest_clients import RestClient
from tests.integration.steady_clients import SteadyClients

X = np.array([1, 2.5], np.float32)


@pytest.fixture(scope="module")
def host_flags() -> Mapping[str, object]:
    # One request thread, for which requests wait: so they share runs.
    return {"grpc_request_threads": 1, "grpc_max_threads": 1}


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return odd_exports.export_doubling(tmp_path_factory.mktemp("doubling") / "1")


def answer(model: HostedModel, inputs: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Returns the answer to a Predict request, with `x` if no inputs are given."""
    with caller_to(model.server.target) as caller:
        return caller.predict(predict_request(model.name, inputs or {"x": X}, **more))


def refused(model: HostedModel, inputs: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Returns the code and the message that a Predict request fails with."""
    return refusal(lambda: answer(model, inputs, **more))


def error_of(model: HostedModel, version: int) -> str:
    """Waits until the version has ended, and returns why. Version 1 serves on."""
    model.wait_for_states({1: AVAILABLE, version: END})
    with Client(model.server.target) as client:
        (status,) = client.model_status(model.name, version)
    assert status.error_code == StatusCode.FAILED_PRECONDITION
    assert np.array_equal(array(answer(model).outputs["y"]), X * 2)
    return status.error_message


# --- Kernels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "in_a_function"])
@pytest.mark.parametrize("op", list(odd_exports.WITHOUT_KERNEL))
def test_version_without_a_kernel_keeps_the_old_one(
    host: ModelHost, doubling: Path, tmp_path: Path, op: str, nested: bool
):
    model = host.model(prefix="kernel").serve(doubling)
    export = odd_exports.export_without_kernel(tmp_path / "2", op, nested=nested)
    drop(export, model.base_path, 2)
    message = error_of(model, 2)
    assert f"op {op} (node " in message
    assert "no kernel for the CPU" in message


@pytest.mark.parametrize("is_dead", [False, True], ids=["open", "dead"])
def test_op_without_kernel_in_a_branch_is_refused(
    host: ModelHost, doubling: Path, tmp_path: Path, is_dead: bool
):
    # TensorFlow makes the kernels of both branches, so each request fails.
    model = host.model(prefix="branch").serve(doubling)
    export = odd_exports.export_branch(tmp_path / "2", "PyFunc", is_dead=is_dead)
    drop(export, model.base_path, 2)
    assert "op PyFunc (node " in error_of(model, 2)


def test_op_in_a_branch_that_is_made_late_is_served(
    host: ModelHost, doubling: Path, tmp_path: Path
):
    model = host.model(prefix="late").serve(doubling)
    model.serve(odd_exports.export_branch(tmp_path / "2", "PyFunc", is_lowered=False), 2)
    assert answer(model).model_spec.version.value == 2
    assert model.wait_for_log("op_without_kernel", version=2)["level"] == "warning"


def test_other_signature_without_a_kernel_is_reported(
    host: ModelHost, doubling: Path, tmp_path: Path
):
    model = host.model(prefix="other").serve(doubling)
    model.serve(odd_exports.export_without_kernel(tmp_path / "2", "PyFunc", name="other"), 2)
    event = model.wait_for_log("op_without_kernel", version=2)
    assert "run by signature 'other'" in str(event["reason"])
    assert answer(model).model_spec.version.value == 2


def test_unfilled_table_keeps_the_old_version(host: ModelHost, doubling: Path, tmp_path: Path):
    model = host.model(prefix="table").serve(doubling)
    drop(odd_exports.export_unfilled_table(tmp_path / "2"), model.base_path, 2)
    assert "1 tables that no init op fills" in error_of(model, 2)


def test_asset_that_is_listed_twice_is_read(host: ModelHost, tmp_path: Path):
    model = host.model(prefix="listed_twice")
    model.serve(odd_exports.export_asset_named_twice(tmp_path / "1"))
    assert np.array_equal(array(answer(model).outputs["y"]), X + 1)


# --- Composite tensors ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def composites(module_host: ModelHost, tmp_path_factory: pytest.TempPathFactory) -> HostedModel:
    export = odd_exports.export_composites(tmp_path_factory.mktemp("composites") / "1")
    return module_host.model(prefix="composites").serve(export)


def test_dense_outputs_beside_composite_are_served(composites: HostedModel):
    outputs = answer(composites).outputs
    assert list(outputs) == ["dense"]
    assert np.array_equal(array(outputs["dense"]), X * 2)
    status, body, _ = RestClient(composites.server).ask(
        "POST", f"/v1/models/{composites.name}:predict", {"instances": [1, 2.5]}
    )
    assert (status, body) == (200, {"predictions": [2, 5]})


@pytest.mark.parametrize(
    ("name", "parts"), [("ragged", "ragged.to_tensor()"), ("sparse", "sparse.dense_shape")]
)
def test_composite_output_of_a_filter_names_parts(composites: HostedModel, name: str, parts: str):
    code, message = refused(composites, output_filter=[name])
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert f"output '{name}'" in message
    assert parts in message


def test_signature_of_composite_outputs_names_parts(composites: HostedModel):
    code, message = refused(composites, signature_name="ragged")
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert "y.nested_row_splits" in message


def test_metadata_has_composite_outputs(composites: HostedModel):
    with Client(composites.server.target) as client:
        signatures = client.signatures(composites.name)
    assert sorted(signatures["serving_default"].outputs) == ["dense", "ragged", "sparse"]


# --- Defaults ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scaled(module_host: ModelHost, tmp_path_factory: pytest.TempPathFactory) -> HostedModel:
    export = odd_exports.export_scaled(tmp_path_factory.mktemp("scaled") / "1", default=3)
    return module_host.model(prefix="scaled").serve(export)


def test_input_that_is_not_sent_has_its_default(scaled: HostedModel):
    assert np.array_equal(array(answer(scaled).outputs["y"]), X * 3)
    sent = answer(scaled, {"x": X, "scale": np.float32(10)})
    assert np.array_equal(array(sent.outputs["y"]), X * 10)
    code, message = refused(scaled, {"scale": np.float32(10)})
    assert (code, "Missing but required: {x}" in message) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        True,
    )


def test_default_holds_over_http(scaled: HostedModel):
    rest = RestClient(scaled.server)
    path = f"/v1/models/{scaled.name}:predict"
    for body in ({"instances": [1, 2]}, {"instances": [{"x": 1}, {"x": 2}]}):
        assert rest.ask("POST", path, body)[:2] == (200, {"predictions": [3, 6]})
    for columns in ({"inputs": [1, 2]}, {"inputs": {"x": [1, 2]}}):
        assert rest.ask("POST", path, columns)[:2] == (200, {"outputs": [3, 6]})
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    status, infer, _ = rest.ask("POST", f"/v2/models/{scaled.name}/infer", {"inputs": [tensor]})
    assert (status, infer["outputs"][0]["data"]) == (200, [3, 6])


def test_new_input_with_default_passes_the_gates(host: ModelHost, doubling: Path, tmp_path: Path):
    model = host.model(prefix="added").serve(doubling)
    rest = RestClient(model.server)
    for size in (1, 2, 20):
        answer(model, {"x": np.arange(size, dtype=np.float32)})
        rest.ask("POST", f"/v1/models/{model.name}:predict", {"instances": [1.5] * size})
    second = odd_exports.export_scaled(tmp_path / "2", default=2)
    write_warm_up(second, model.name, [{"x": X}])
    model.serve(second, 2)
    assert model.logged("gate_not_passed") == []
    assert model.wait_for_log("self_warmed_up", version=2)["failed_count"] == 0
    # Clients of version 2 left the new input out, so the requests that version 3 replays lack it.
    for size in (3, 40):
        rest.ask("POST", f"/v1/models/{model.name}:predict", {"instances": [1.5] * size})
    model.configure({"gates": {"signature": "warn"}})
    model.serve(doubling, 3)
    assert model.wait_for_log("self_warmed_up", version=3)["failed_count"] == 0


@pytest.mark.parametrize("default", [3, [3]], ids=["scalar", "row"])
def test_batches_with_and_without_default_are_right(host: ModelHost, tmp_path: Path, default: Any):
    export = odd_exports.export_scaled(tmp_path / "1", default=default)
    model = host.model(prefix="batched", settings={"batching": {"enabled": True}}).serve(export)
    with SteadyClients(
        model.server.target, [exchange(model, number) for number in range(CLIENT_COUNT)]
    ).running() as clients:
        clients.wait_for_answers_of(1, 2000)


def exchange(model: HostedModel, number: int) -> tuple[Any, Callable[[Any], str]]:
    """Returns a request of 1 to 3 rows, every other one with a scale of its own, and its check."""
    x = np.full([1 + number % 3], number, np.float32)
    sent = {} if number % 2 else {"scale": np.full_like(x, 7)}
    expected = x * (3 if number % 2 else 7)

    def fault(response: Any) -> str:
        y = array(response.outputs["y"])
        return "" if np.array_equal(y, expected) else f"{y} for {expected}"

    return predict_request(model.name, {"x": x, **sent}), fault

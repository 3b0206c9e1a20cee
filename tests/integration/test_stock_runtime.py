"""The stock runtime: TensorFlow's own devices, allocator, restore and pools, for comparison."""

from pathlib import Path

import numpy as np
import pytest

from serving.base.errors import StatusCode
from serving.client import Client
from serving.config.lab_settings import LAB_VARIABLE
from serving.core.servable import AVAILABLE, END
from tests.integration import exports
from tests.integration.clients import array, caller_to, predict_request
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import mapped_files
from tests.integration.steady_clients import scale_clients

STOCK: dict[str, object] = {
    "environment": {LAB_VARIABLE: "tensorflow_runtime=stock"},
    "allocator": "glibc",
}
KINDS: dict[str, dict[str, object]] = {
    "plain": STOCK,
    "load_pool": {
        **STOCK,
        "environment": {LAB_VARIABLE: "tensorflow_runtime=stock tensorflow_load_pool=true"},
    },
}
SWAP_COUNT = 3
X = np.array([1.0, 2.5, -3.0], np.float32)


@pytest.fixture(scope="module", params=KINDS)
def stock_host(
    request: pytest.FixtureRequest,
    start_module_server: StartServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelHost:
    return ModelHost(
        start_module_server, tmp_path_factory.mktemp(request.param), **KINDS[request.param]
    )


@pytest.fixture
def scale(stock_host: ModelHost, scale_model: ScaleModel) -> HostedModel:
    """A model whose version 1 serves."""
    model = stock_host.model(prefix="scale")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    return model


def test_stock_runtime_swaps_under_load(scale: HostedModel, scale_model: ScaleModel):
    last = SWAP_COUNT + 1
    with scale_clients(scale.server.target, scale.name).running() as clients:
        for version in range(2, last + 1):
            scale_model.write(scale.base_path, version)
            clients.wait_for_answers_of(version, 5)
            scale.wait_for_log("version_unloaded", version=version - 1)
    assert clients.failures == []
    assert clients.answer_counts[last] > 0


def test_stock_runtime_obeys_output_filter(scale: HostedModel):
    with caller_to(scale.server.target) as caller:
        request = predict_request(scale.name, {"x": X}, output_filter=["version"])
        response = caller.predict(request)
    assert {name: array(tensor) for name, tensor in response.outputs.items()} == {"version": 1}


def test_stock_runtime_has_no_arena_and_no_jemalloc(scale: HostedModel, scale_model: ScaleModel):
    available = scale.wait_for_log("version_available", version=1)
    assert "take_arena_seconds" not in available
    assert not any("jemalloc" in name for name in mapped_files(scale.server.process_id))
    scale_model.write(scale.base_path, 2)
    assert scale.wait_for_log("version_unloaded", version=1)["arena_live_bytes"] == 0


def test_stock_runtime_refuses_damaged_checkpoint(scale: HostedModel, scale_model: ScaleModel):
    scale_model.write(scale.base_path, 2, offset_count=1_000, prepare=_damage)
    scale.wait_for_states({1: AVAILABLE, 2: END})
    with Client(scale.server.target) as client:
        (status,) = client.model_status(scale.name, 2)
        assert status.error_code == StatusCode.DATA_LOSS
        assert client.predict(scale.name, {"x": X}).version == 1


def _damage(directory: Path) -> None:
    exports.flip_a_byte(directory / exports.LARGE_SHARD, 2_000)


@pytest.fixture(scope="module")
def tables(export_path: Path) -> Path:
    return exports.export_tables(export_path / "stock-tables")


def test_stock_runtime_serves_tables_and_strings_right(stock_host: ModelHost, tables: Path):
    model = stock_host.model(prefix="tables").serve(tables)
    with Client(model.server.target) as client:
        words = np.array([b"word-999", b"nobody"], object)
        outputs = client.predict(model.name, {"words": words}).outputs
    assert outputs["name"].tolist() == [exports.table_word(999), b"?"]
    assert outputs["count"].tolist() == [999_000, -1]

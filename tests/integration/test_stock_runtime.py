"""The stock runtime: TensorFlow's own devices, allocator, restore and pools, for comparison."""

from pathlib import Path

import numpy as np
import pytest

from serving import ModelServer
from serving.base.errors import StatusCode, Unavailable
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration import exports
from tests.integration.clients import (
    array,
    caller_to,
    predict_request,
    wait_for_states,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop
from tests.integration.logs import wait_for_log
from tests.integration.processes import mapped_files
from tests.integration.steady_clients import scale_clients

STOCK: dict[str, object] = {"tensorflow_runtime": "stock", "allocator": "glibc"}
KINDS: dict[str, dict[str, object]] = {
    "plain": STOCK,
    "load_pool": {**STOCK, "tensorflow_load_pool": True},
}
SWAP_COUNT = 3
X = np.array([1.0, 2.5, -3.0], np.float32)


@pytest.fixture(params=KINDS)
def server(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
) -> ModelServer:
    """Serves version 1 of `scale`."""
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, **KINDS[request.param])
    server.wait_until_available("scale", 1)
    return server


def test_stock_runtime_swaps_under_load(
    server: ModelServer, scale_model: ScaleModel, base_path: Path
):
    last = SWAP_COUNT + 1
    with scale_clients(server.target).running() as clients:
        for version in range(2, last + 1):
            scale_model.write(base_path, version)
            clients.wait_for_answers_of(version, 5)
            wait_for_log(server, "version_unloaded", version=version - 1)
    assert clients.failures == []
    assert clients.answer_counts[last] > 0


def test_stock_runtime_obeys_output_filter(server: ModelServer):
    with caller_to(server.target) as caller:
        request = predict_request("scale", {"x": X}, output_filter=["version"])
        response = caller.predict(request)
    assert {name: array(tensor) for name, tensor in response.outputs.items()} == {"version": 1}


def test_stock_runtime_has_no_arena_and_no_jemalloc(
    server: ModelServer, scale_model: ScaleModel, base_path: Path
):
    available = wait_for_log(server, "version_available", version=1)
    assert "take_arena_seconds" not in available
    assert not any("jemalloc" in name for name in mapped_files(server.process_id))
    scale_model.write(base_path, 2)
    assert wait_for_log(server, "version_unloaded", version=1)["arena_live_bytes"] == 0


def test_stock_runtime_refuses_damaged_checkpoint(
    server: ModelServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 2, offset_count=1_000, prepare=_damage)
    with Client(server.target) as client:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
        (status,) = client.model_status("scale", 2)
        assert status.error_code == StatusCode.DATA_LOSS
        assert client.predict("scale", {"x": X}).version == 1


def _damage(directory: Path) -> None:
    exports.flip_a_byte(directory / exports.LARGE_SHARD, 2_000)


def test_stock_runtime_serves_tables_and_strings_right(
    start_server: StartServer, export_path: Path, base_path: Path
):
    drop(exports.export_tables(export_path / "stock-tables"), base_path, 1)
    server = start_server(model_name="tables", base_path=base_path, **STOCK)
    server.wait_until_available("tables", 1)
    with Client(server.target) as client:
        words = np.array([b"word-999", b"nobody"], object)
        outputs = client.predict("tables", {"words": words}).outputs
    assert outputs["name"].tolist() == [exports.table_word(999), b"?"]
    assert outputs["count"].tolist() == [999_000, -1]


def test_load_pool_needs_stock_runtime(base_path: Path, tmp_path: Path):
    server = ModelServer(
        base_path=base_path, log_path=tmp_path / "server.log", tensorflow_load_pool=True
    )
    with pytest.raises(Unavailable, match="--tensorflow_runtime=stock"):
        server.start()

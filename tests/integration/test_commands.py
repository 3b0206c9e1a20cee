"""ModelServer, `millpond status` and `millpond predict` on a real server with the CTR model."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from serving import ModelServer
from serving.base.errors import InvalidArgument, NotFound, Unavailable
from serving.client import Client
from serving.commands.ctr_export import export_ctr_model
from serving.commands.ctr_model import reference_answer, request_inputs
from serving.core.servable import AVAILABLE
from tests.integration.processes import millpond

TABLE_ROWS = 100


@pytest.fixture(scope="module")
def base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base_path = tmp_path_factory.mktemp("ctr")
    export_ctr_model(base_path, 3, table_rows=TABLE_ROWS)
    return base_path


@pytest.fixture(scope="module")
def server(base_path: Path) -> Iterator[ModelServer]:
    with ModelServer(model_name="ctr", base_path=base_path) as server:
        server.wait_until_available("ctr", 3)
        yield server


def test_client_predict_returns_reference_answer(server: ModelServer):
    inputs = request_inputs(1, 20, TABLE_ROWS)
    with Client(server.target) as client:
        prediction = client.predict("ctr", inputs)
    assert prediction.version == 3
    expected = reference_answer(3, inputs, TABLE_ROWS)
    np.testing.assert_allclose(prediction.outputs["ctr"], expected, atol=1e-5)


def test_client_errors_have_their_class(server: ModelServer):
    with Client(server.target) as client:
        with pytest.raises(NotFound):
            client.predict("nobody", {})
        with pytest.raises(InvalidArgument):
            client.predict("ctr", {"dense": np.zeros((1, 13), np.float32)})


def test_client_list_models_of_a_real_server(server: ModelServer):
    with Client(server.admin_target) as client:
        ((name, (status,)),) = client.list_models().items()
    assert (name, status.version, status.state) == ("ctr", 3, AVAILABLE)


@pytest.mark.parametrize("model", [[], ["ctr"]])
def test_status_command_on_a_real_server(server: ModelServer, model: list[str]):
    result = millpond("status", *model, "--target", server.admin_target)
    (row,) = [line.split("\t") for line in result.stdout.splitlines()[1:]]
    assert (row[:3], row[5:]) == (["ctr", "3", "AVAILABLE"], ["default", ""]), result.stderr
    assert row[3].endswith((" s", " min"))
    assert float(row[4]) > 0


def test_predict_command_on_a_real_server(server: ModelServer, tmp_path: Path):
    path = tmp_path / "request.json"
    inputs = request_inputs(1, 2, TABLE_ROWS)
    path.write_text(json.dumps({"inputs": {name: a.tolist() for name, a in inputs.items()}}))
    for arguments in ([f"--input_json={path}"], ["--rows=2"]):
        result = millpond("predict", "ctr", "--target", server.target, *arguments)
        assert result.returncode == 0, result.stderr
        assert "model ctr, version 3" in result.stdout
        assert "ctr: float32[2, 1]" in result.stdout


def test_model_server_serves_on_jemalloc(server: ModelServer):
    assert "libjemalloc" in Path(f"/proc/{server.process_id}/maps").read_text()


def test_model_server_serves_without_jemalloc(base_path: Path):
    with ModelServer(
        model_name="ctr", base_path=base_path, allocator="glibc", arena=False
    ) as server:
        server.wait_until_available("ctr")
        assert "libjemalloc" not in Path(f"/proc/{server.process_id}/maps").read_text()


def test_model_server_refused_flag_raises_reason(base_path: Path, tmp_path: Path):
    log_path = tmp_path / "server.log"
    server = ModelServer(base_path=base_path, log_path=log_path, use_alts_credentials=True)
    with pytest.raises(Unavailable, match="--use_alts_credentials is refused"):
        server.start()

"""Refused configurations and the statistics of the open inference protocol, as clients see them."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from serving.base.protos import model_management_pb2
from tests.integration.clients import Caller, caller_to, refusal_with_reason
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

X = {"x": np.ones(1, np.float32)}
RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"


@pytest.fixture
def caller(start_server: StartServer, base_path: Path) -> Iterator[Caller]:
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_for_event(lambda line: line["event"] == "no_version_in_base_path", 120)
    with caller_to(server.target) as found:
        yield found


def test_reload_without_a_model_is_invalid(caller: Caller) -> None:
    request = model_management_pb2.ReloadConfigRequest()
    empty = request.SerializeToString()
    request.config.model_config_list.SetInParent()
    for body in (empty, request.SerializeToString()):
        code, message = refusal_with_reason(lambda: caller.send_bytes(RELOAD, body))  # noqa: B023
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "no model in it" in message


def test_bad_config_file_stops_start_with_known_text(tmp_path: Path) -> None:
    path = tmp_path / "models.config"
    path.write_text("improperly formatted file")
    result = subprocess.run(
        [
            *(sys.executable, "-m", "serving", "serve", f"--model_config_file={path}"),
            *("--port=0", "--rest_api_port=0"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode != 0
    assert f"{path}: Error parsing text-format tensorflow.serving.ModelServerConfig: 1:" in (
        result.stderr
    )


def test_tritons_clients_read_statistics(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    scale_model.write(base_path, 3)
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 3)
    with caller_to(server.target) as caller:
        for _ in range(5):
            caller.outputs("scale", X)
        refusal_with_reason(lambda: caller.outputs("scale", {"unknown": np.ones(1, np.float32)}))
    over_http = tritonclient.http.InferenceServerClient(server.url.removeprefix("http://"))
    over_grpc = tritonclient.grpc.InferenceServerClient(server.target)
    with over_http, over_grpc:
        for client, options in ((over_http, {}), (over_grpc, {"as_json": True})):
            for asked in ((), ("scale",), ("scale", "3")):
                document = client.get_inference_statistics(*asked, **options)
                (row,) = document["model_stats"]
                assert (row["name"], row["version"]) == ("scale", "3")
                stats = row["inference_stats"]
                # Protobuf's JSON writes 64-bit numbers as text.
                assert int(row["inference_count"]) == int(stats["success"]["count"]) == 5
                assert int(stats["fail"]["count"]) == 1
                assert 0 < int(stats["compute_infer"]["ns"]) <= int(stats["success"]["ns"])
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{server.url}/v2/models/unknown/stats", timeout=60)
    assert error.value.code == 404
    assert "not configured" in json.loads(error.value.read())["error"]

"""Refusals that name their reason, waits for a first version, and statistics, as clients see them."""

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from serving import ModelServer
from serving.protos import model_management_pb2
from tests.integration.clients import Caller, caller_to
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

X = {"x": np.ones(1, np.float32)}
NOT_FOUND, UNAVAILABLE = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE
RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    failed: Any = error.value
    message: str = failed.details()
    assert message == message.strip() != ""
    return failed.code(), message


def wait_until_noted(server: ModelServer, event: str) -> None:
    server.wait_for_event(lambda line: line["event"] == event, 120)


@pytest.fixture
def caller(start_server: StartServer, base_path: Path) -> Iterator[Caller]:
    server = start_server(model_name="scale", base_path=base_path)
    wait_until_noted(server, "no_version_in_base_path")
    with caller_to(server.target) as found:
        yield found


# --- NOT_FOUND ------------------------------------------------------------------------------------


def test_not_found_of_an_empty_base_path_has_the_reason(caller: Caller) -> None:
    code, message = refusal(lambda: caller.outputs("scale", X))
    assert code == NOT_FOUND
    assert message.startswith("Servable not found for request: Latest(scale)")
    assert message.endswith("base path holds no version directory")
    code, message = refusal(lambda: caller.outputs("scale", X, version=3))
    assert message.startswith("Servable not found for request: Specific(scale, 3)")
    assert message.endswith("base path holds no version directory")
    assert refusal(lambda: caller.outputs("other", X))[0] == NOT_FOUND


def test_not_found_of_a_half_copied_version_names_the_file(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
) -> None:
    copy = scale_model.write(tmp_path / "whole", 3)
    (target := base_path / "3").mkdir()
    shutil.copy(copy / "saved_model.pb", target)
    shutil.copytree(copy / "variables", target / "variables")
    for data in (target / "variables").glob("variables.data-*"):
        data.unlink()
    server = start_server(model_name="scale", base_path=base_path)
    wait_until_noted(server, "version_incomplete")
    with caller_to(server.target) as caller:
        code, message = refusal(lambda: caller.outputs("scale", X))
        assert code == NOT_FOUND
        assert "version 3 is being copied: " in message
        assert "variables.data-" in message
        assert refusal(lambda: caller.outputs("scale", X, version=3))[1].endswith(
            message.partition("; available versions: none; ")[2]
        )


def test_not_found_of_a_failed_version_has_its_error(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    directory = scale_model.write(base_path, 3)
    for data in (directory / "variables").glob("variables.data-*"):
        data.write_bytes(b"\x00" * data.stat().st_size)
    server = start_server(model_name="scale", base_path=base_path)
    wait_until_noted(server, "ready")
    with caller_to(server.target) as caller:
        for version in (None, 3):
            code, message = refusal(lambda: caller.outputs("scale", X, version=version))  # noqa: B023
            assert code == NOT_FOUND
            assert "version 3 failed: " in message


# --- The first version ----------------------------------------------------------------------------


def test_requests_wait_for_the_first_version(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    server = start_server(model_name="scale", base_path=base_path, first_version_wait_seconds=120)
    wait_until_noted(server, "no_version_in_base_path")
    scale_model.write(base_path, 1)
    # From here on the version settles and loads, unless it has done so already.
    server.wait_for_event(lambda line: line["event"] in ("version_settling", "aspired"), 120)
    with caller_to(server.target) as caller:
        assert caller.outputs("scale", X)["y"].tolist() == [2.0]


def test_wait_for_the_first_version_ends_with_the_stage(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        first_version_wait_seconds=0.05,
        restore_bytes_per_second=1,
    )
    code, message = NOT_FOUND, ""
    with caller_to(server.target) as caller:
        while "stage restore" not in message:
            code, message = refusal(lambda: caller.outputs("scale", X))
            assert code in (NOT_FOUND, UNAVAILABLE)
    assert (code, message) == (UNAVAILABLE, "model 'scale': version 1 is loading, stage restore")


# --- Configuration --------------------------------------------------------------------------------


def test_reload_without_a_model_is_invalid(caller: Caller) -> None:
    request = model_management_pb2.ReloadConfigRequest()
    empty = request.SerializeToString()
    request.config.model_config_list.SetInParent()
    for body in (empty, request.SerializeToString()):
        code, message = refusal(lambda: caller.send_bytes(RELOAD, body))  # noqa: B023
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "no model in it" in message


def test_bad_config_file_ends_the_start_with_the_known_text(tmp_path: Path) -> None:
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


# --- Unknown methods and statistics ---------------------------------------------------------------


def test_every_unimplemented_has_a_message(caller: Caller) -> None:
    for method in ("/inference.GRPCInferenceService/TraceSetting", "/a.B/C", "/no_slash"):
        code, message = refusal(lambda: caller.send_bytes(method, b""))  # noqa: B023
        assert (code, message) == (
            grpc.StatusCode.UNIMPLEMENTED,
            f"this server has no method {method}",
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
        refusal(lambda: caller.outputs("scale", {"unknown": np.ones(1, np.float32)}))
    over_http = tritonclient.http.InferenceServerClient(server.url.removeprefix("http://"))
    over_grpc = tritonclient.grpc.InferenceServerClient(server.target)
    with over_http, over_grpc:
        for client, options in ((over_http, {}), (over_grpc, {"as_json": True})):
            for asked in ((), ("scale",), ("scale", "3")):
                document = client.get_inference_statistics(*asked, **options)
                (row,) = document["model_stats"]
                assert (row["name"], row["version"]) == ("scale", "3")
                stats = row["inference_stats"]
                # JSON of protobuf has 64-bit numbers as text.
                assert int(row["inference_count"]) == int(stats["success"]["count"]) == 5
                assert int(stats["fail"]["count"]) == 1
                assert 0 < int(stats["compute_infer"]["ns"]) <= int(stats["success"]["ns"])
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{server.url}/v2/models/unknown/stats", timeout=60)
    assert error.value.code == 404
    assert "not configured" in json.loads(error.value.read())["error"]

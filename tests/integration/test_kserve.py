"""The open inference protocol, spoken by Triton's own client: `tritonclient`, unmodified."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from tritonclient.utils import InferenceServerException

from serving import ModelServer
from tests.integration import exports
from tests.integration.clients import (
    TIMEOUT_SECONDS,
    caller_to,
    refusal_with_reason,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.kserve_clients import (
    DENSE,
    IDS,
    MODULES,
    client_of,
    echo_inputs,
    tensor,
    url_of,
)
from tests.integration.model_host import ModelHost
from tests.integration.real_models import fetched

DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
]


@pytest.fixture(scope="module")
def echo_server(module_host: ModelHost, echo_export: Path) -> ModelServer:
    return module_host.model(name="echo").serve(echo_export).server


@pytest.fixture(params=list(MODULES))
def triton(request: pytest.FixtureRequest) -> Any:
    return MODULES[request.param]


@pytest.fixture
def client(triton: Any, echo_server: ModelServer) -> Iterator[Any]:
    with client_of(triton, echo_server) as client:
        yield client


def is_refused(action: Any, status: str) -> str:
    with pytest.raises(InferenceServerException) as refused:
        action()
    message: str = refused.value.message()
    assert refused.value.status() == status, message
    return message


def codes(triton: Any, code: str, http: int) -> str:
    return f"StatusCode.{code}" if triton is triton_grpc else str(http)


def test_health_and_metadata_are_as_clients_expect(triton: Any, client: Any) -> None:
    as_json = {"as_json": True} if triton is triton_grpc else {}
    assert client.is_server_live()
    # A thread of its own looks at all models.
    wait_until(client.is_server_ready, "the server to be ready")
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    assert not client.is_model_ready("echo", "2")
    assert not client.is_model_ready("nowhere")
    server = client.get_server_metadata(**as_json)
    assert server["name"] == "millpond"
    assert "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("echo", **as_json)
    assert (model["name"], model["versions"]) == ("echo", ["1"])
    assert model["platform"] == "tensorflow_savedmodel"
    assert [(item["name"], item["datatype"]) for item in model["inputs"]] == [
        ("dense", "FP32"),
        ("ids", "INT64"),
    ]
    assert [int(size) for size in model["inputs"][0]["shape"]] == [-1, 3]
    assert [item["datatype"] for item in model["outputs"]] == ["BYTES", "INT64", "FP32"]
    config = client.get_model_config("echo", "1", **as_json)
    config = config.get("config", config)
    assert [item["data_type"] for item in config["input"]] == ["TYPE_FP32", "TYPE_INT64"]


def test_metadata_of_unknown_names_lists_known(triton: Any, client: Any) -> None:
    not_found = codes(triton, "NOT_FOUND", 404)
    assert "echo" in is_refused(lambda: client.get_model_metadata("nowhere"), not_found)
    assert "available: 1" in is_refused(lambda: client.get_model_metadata("echo", "9"), not_found)


def test_infer_answers_all_outputs_and_echoes_the_id(triton: Any, client: Any) -> None:
    result = client.infer("echo", echo_inputs(triton), request_id="r-1")
    np.testing.assert_array_equal(result.as_numpy("sum"), [6, 15])
    np.testing.assert_array_equal(result.as_numpy("next"), [8, 9])
    assert result.as_numpy("kind").item() == b"echo"
    response = result.get_response(as_json=True) if triton is triton_grpc else result.get_response()
    assert (response["id"], response["model_name"]) == ("r-1", "echo")
    assert response["model_version"] == "1"


def test_infer_returns_only_requested_outputs(triton: Any, client: Any) -> None:
    outputs = [triton.InferRequestedOutput("next")]
    result = client.infer("echo", echo_inputs(triton), model_version="1", outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("next"), [8, 9])
    assert result.as_numpy("sum") is None


def test_infer_gives_back_every_datatype(triton: Any, client: Any) -> None:
    for dtype in DTYPES:
        sent = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
        parameters = {"signature_name": f"echo_{dtype}"}
        result = client.infer("echo", [tensor(triton, "x", sent)], parameters=parameters)
        got = result.as_numpy("y")
        assert got.dtype == sent.dtype
        np.testing.assert_array_equal(got, sent, dtype)


@pytest.mark.parametrize("shape", [(4,), (2, 2), (0,), (0, 3)])
def test_infer_gives_back_strings_of_any_bytes(triton: Any, client: Any, shape: Any) -> None:
    words = [b"", b"one", b"\xff\x00\xfe", "über".encode()]
    sent = np.array(words[: int(np.prod(shape))], object).reshape(shape)
    parameters = {"signature_name": "echo_string"}
    result = client.infer("echo", [tensor(triton, "x", sent)], parameters=parameters)
    np.testing.assert_array_equal(result.as_numpy("y"), sent)


def test_infer_refuses_with_codes_and_reasons(triton: Any, client: Any) -> None:
    invalid, not_found = codes(triton, "INVALID_ARGUMENT", 400), codes(triton, "NOT_FOUND", 404)
    inputs = echo_inputs(triton)
    assert "nowhere" in is_refused(lambda: client.infer("nowhere", inputs), not_found)
    assert "9" in is_refused(lambda: client.infer("echo", inputs, model_version="9"), not_found)
    label = is_refused(lambda: client.infer("echo", inputs, model_version="stable"), invalid)
    assert "label: stable" in label
    assert "Missing but required: {ids}" in is_refused(
        lambda: client.infer("echo", inputs[:1]), invalid
    )
    wrong = [tensor(triton, "dense", DENSE.astype(np.float64)), inputs[1]]
    assert "expected float32[?,3], got float64[2,3]" in is_refused(
        lambda: client.infer("echo", wrong), invalid
    )
    outputs = [triton.InferRequestedOutput("nothing")]
    assert "'nothing'" in is_refused(lambda: client.infer("echo", inputs, outputs=outputs), invalid)
    outputs = [triton.InferRequestedOutput("sum", class_count=2)]
    unimplemented = codes(triton, "UNIMPLEMENTED", 501)
    assert "'classification'" in is_refused(
        lambda: client.infer("echo", inputs, outputs=outputs), unimplemented
    )
    shared = triton.InferInput("dense", [2, 3], "FP32")
    shared.set_shared_memory("region", 24)
    # The request has two such parameters in a map, which has no order.
    assert "parameter 'shared_memory_" in is_refused(
        lambda: client.infer("echo", [shared, inputs[1]]), unimplemented
    )


def test_http_infer_handles_json_and_binary_data(echo_server: ModelServer) -> None:
    with client_of(triton_http, echo_server) as client:
        outputs = [
            triton_http.InferRequestedOutput("sum", binary_data=False),
            triton_http.InferRequestedOutput("kind", binary_data=False),
            triton_http.InferRequestedOutput("next", binary_data=True),
        ]
        inputs = echo_inputs(triton_http, binary_data=False)
        result = client.infer("echo", inputs, outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("sum"), [6, 15])
    np.testing.assert_array_equal(result.as_numpy("next"), [8, 9])
    assert result.get_output("kind")["data"] == ["echo"]
    assert "data" not in result.get_output("next")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_http_infer_takes_and_gives_compressed_bodies(
    echo_server: ModelServer, algorithm: str
) -> None:
    many = np.arange(6_000, dtype=np.float32)
    with client_of(triton_http, echo_server) as client:
        result = client.infer(
            "echo",
            [tensor(triton_http, "x", many)],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
            parameters={"signature_name": "echo_float32"},
        )
    np.testing.assert_array_equal(result.as_numpy("y"), many)


def test_grpc_infer_takes_compressed_messages(echo_server: ModelServer) -> None:
    with client_of(triton_grpc, echo_server) as client:
        result = client.infer("echo", echo_inputs(triton_grpc), compression_algorithm="gzip")
    np.testing.assert_array_equal(result.as_numpy("sum"), [6, 15])


def test_grpc_infer_takes_typed_contents(echo_server: ModelServer) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="echo")
    dense = request.inputs.add(name="dense", datatype="FP32", shape=[2, 3])
    dense.contents.fp32_contents.extend(DENSE.ravel().tolist())
    ids = request.inputs.add(name="ids", datatype="INT64", shape=[2])
    ids.contents.int64_contents.extend(IDS.tolist())
    request.outputs.add(name="next")
    with grpc.insecure_channel(echo_server.target) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(request, timeout=TIMEOUT_SECONDS)
    assert response.raw_output_contents == [np.array([8, 9], np.int64).tobytes()]


def test_asyncio_clients_are_answered(echo_server: ModelServer) -> None:
    async def ask(module: Any, triton: Any, transport: str) -> None:
        client = module.InferenceServerClient(url_of(echo_server, transport))
        try:
            assert await client.is_server_ready()
            inputs = echo_inputs(triton)
            results = await asyncio.gather(*(client.infer("echo", inputs) for _ in range(8)))
            for result in results:
                np.testing.assert_array_equal(result.as_numpy("sum"), [6, 15])
        finally:
            await client.close()

    asyncio.run(ask(triton_grpc_aio, triton_grpc, "grpc"))
    asyncio.run(ask(triton_http_aio, triton_http, "http"))


def test_guesslang_maps_strings_to_languages(triton: Any, host: ModelHost) -> None:
    model = host.model(fetched("guesslang"), prefix="guesslang")
    model.wait_until_available(1)
    sources = np.array([b"def main():\n    print('hello')\n", b"#include <stdio.h>\n"], object)
    with client_of(triton, model.server) as client:
        (reply,) = client.get_model_metadata(
            model.name, **({"as_json": True} if triton is triton_grpc else {})
        )["inputs"]
        assert reply["datatype"] == "BYTES"
        result = client.infer(model.name, [tensor(triton, reply["name"], sources)])
    best = result.as_numpy("scores").argmax(axis=1)
    assert result.as_numpy("classes").shape[0] == len(sources)
    assert result.as_numpy("classes")[0, best[0]] == b"py"


@pytest.fixture(scope="module")
def controlled_host(
    start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> ModelHost:
    directory = tmp_path_factory.mktemp("controlled")
    return ModelHost(start_module_server, directory, allow_repository_control=True)


def test_client_controls_index_load_and_unload(
    triton: Any, controlled_host: ModelHost, echo_export: Path
) -> None:
    model = controlled_host.model(prefix="echo").serve(echo_export)
    as_json = {"as_json": True} if triton is triton_grpc else {}

    def index(client: Any) -> list[tuple[str, str]]:
        reply = client.get_model_repository_index(**as_json)
        rows = reply.get("models", []) if triton is triton_grpc else reply
        return [(row.get("version", ""), row["state"]) for row in rows if row["name"] == model.name]

    with client_of(triton, model.server) as client:
        assert index(client) == [("1", "READY")]
        client.unload_model(model.name)
        assert not client.is_model_ready(model.name)
        is_refused(
            lambda: client.infer(model.name, echo_inputs(triton)), codes(triton, "NOT_FOUND", 404)
        )
        # A version that comes in the meantime is not loaded either.
        exports.drop(echo_export, model.base_path, 2)
        client.load_model(model.name)
        assert client.is_model_ready(model.name)
        client.infer(model.name, echo_inputs(triton))
        assert {("2", "READY"), ("1", "READY")} & set(index(client))
        refused = is_refused(lambda: client.load_model("other"), codes(triton, "NOT_FOUND", 404))
        assert "configured: " in refused
        refused = is_refused(
            lambda: client.load_model(model.name, config="{}"),
            codes(triton, "UNIMPLEMENTED", 501),
        )
        assert "config" in refused


def test_load_and_unload_need_flag(triton: Any, client: Any) -> None:
    denied = codes(triton, "PERMISSION_DENIED", 403)
    assert "--allow_repository_control" in is_refused(lambda: client.unload_model("echo"), denied)
    assert client.is_model_ready("echo")


def test_requests_during_swaps_get_one_version_each(
    triton: Any, host: ModelHost, scale_model: ScaleModel
) -> None:
    model = host.model(prefix="scale")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    x = np.array([1, 2, 3], np.float32)
    is_over, seen, wrong = threading.Event(), set(), []

    def ask() -> None:
        with client_of(triton, model.server) as client:
            while not is_over.is_set():
                result = client.infer(model.name, [tensor(triton, "x", x)])
                version = int(result.as_numpy("version"))
                if not np.array_equal(result.as_numpy("y"), scale_model.answer(version, x)):
                    wrong.append(version)
                seen.add(version)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for version in (2, 3):
            scale_model.write(model.base_path, version)
            model.wait_until_available(version)
    finally:
        is_over.set()
        thread.join(TIMEOUT_SECONDS)
    assert not thread.is_alive()
    assert not wrong
    assert seen >= {1, 2}


def test_clients_read_statistics(triton: Any, host: ModelHost, scale_model: ScaleModel) -> None:
    model = host.model(prefix="counted")
    scale_model.write(model.base_path, 3)
    model.wait_until_available(3)
    with caller_to(model.server.target) as caller:
        for _ in range(5):
            caller.outputs(model.name, {"x": np.ones(3, np.float32)})
        unknown = {"unknown": np.ones(1, np.float32)}
        refusal_with_reason(lambda: caller.outputs(model.name, unknown))
    options = {"as_json": True} if triton is triton_grpc else {}
    with client_of(triton, model.server) as client:
        for asked in ((), (model.name,), (model.name, "3")):
            rows = client.get_inference_statistics(*asked, **options)["model_stats"]
            (row,) = [row for row in rows if row["name"] == model.name]
            assert row["version"] == "3"
            stats = row["inference_stats"]
            # Protobuf's JSON writes 64-bit numbers as text.
            assert int(row["execution_count"]) == int(stats["success"]["count"]) == 5
            assert int(row["inference_count"]) == 15
            assert int(stats["fail"]["count"]) == 1
            assert 0 < int(stats["compute_infer"]["ns"]) <= int(stats["success"]["ns"])
        unknown_model = is_refused(
            lambda: client.get_inference_statistics("nowhere"), codes(triton, "NOT_FOUND", 404)
        )
        assert "not configured" in unknown_model

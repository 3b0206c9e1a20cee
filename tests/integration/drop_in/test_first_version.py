"""Requests over each protocol for a model while its first version loads.

`tests/native/first_version_wait_test.cc` has each end of a wait.
"""

import http.client
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.base.protos import get_model_metadata_pb2, get_model_status_pb2, predict_pb2
from serving.core.servable import LOADING
from tests.integration.clients import TIMEOUT_SECONDS, caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import wait_for_log
from tests.integration.model_host import HostedModel, ModelHost

WAIT_SECONDS = 10 * TIMEOUT_SECONDS
"""No wait ends by itself."""

ENDLESS_OFFSET_COUNT = 1_000_000
"""The load of such a version takes an hour at the rate of `FLAGS`. Without offsets it takes a moment."""

FLAGS = {
    "restore_bytes_per_second": 1_000,
    "first_version_wait_seconds": WAIT_SECONDS,
    "rest_api_timeout_in_ms": round(1000 * WAIT_SECONDS),
    "rest_api_port": "auto",
}

Answer = tuple[str, str]
"""The name of the expected code, and the message."""


def request_to(model: HostedModel) -> predict_pb2.PredictRequest:
    return predict_request(model.name, {"x": np.ones(1, np.float32)})


def grpc_answer(call: Callable[[], Any]) -> Answer:
    try:
        call()
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code().name, failed.details()
    return "OK", ""


def over_grpc(model: HostedModel) -> Answer:
    with caller_to(model.server.target) as caller:
        return grpc_answer(lambda: caller.predict(request_to(model), timeout=WAIT_SECONDS))


def metadata_over_grpc(model: HostedModel) -> Answer:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = model.name
    with caller_to(model.server.target) as caller:
        return grpc_answer(lambda: caller.metadata(request))


def over_triton(model: HostedModel) -> Answer:
    x = triton_grpc.InferInput("x", [1], "FP32")
    x.set_data_from_numpy(np.ones(1, np.float32))
    with closing(triton_grpc.InferenceServerClient(model.server.target)) as client:
        try:
            client.infer(model.name, [x])
        except InferenceServerException as error:
            return error.status().removeprefix("StatusCode."), error.message()
    return "OK", ""


def http_answer(response: httpx.Response) -> Answer:
    codes = {200: "OK", 404: "NOT_FOUND", 503: "UNAVAILABLE"}
    code = codes.get(response.status_code, str(response.status_code))
    return code, "" if code == "OK" else response.json()["error"]


def over_rest(model: HostedModel) -> Answer:
    url, body = f"{model.server.url}/v1/models/{model.name}:predict", {"inputs": {"x": [1.0]}}
    return http_answer(httpx.post(url, json=body, timeout=WAIT_SECONDS))


def over_kserve(model: HostedModel) -> Answer:
    x = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
    url = f"{model.server.url}/v2/models/{model.name}/infer"
    return http_answer(httpx.post(url, json={"inputs": [x]}, timeout=WAIT_SECONDS))


PROTOCOLS: list[Callable[[HostedModel], Answer]] = [over_grpc, over_triton, over_rest, over_kserve]


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return FLAGS


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(len(PROTOCOLS)) as threads:
        yield threads


def load_endlessly(host: ModelHost, scale_model: ScaleModel) -> HostedModel:
    """Adds a model whose version 1 is being loaded, for longer than any test."""
    model = host.model(prefix="scale")
    scale_model.write(model.base_path, 1, offset_count=ENDLESS_OFFSET_COUNT)
    model.wait_for_log("aspired")
    return model


def wait_until_in_flight(server: ModelServer, count: int) -> None:
    pages = ServerPages(server.url)
    in_flight = "serving_in_flight_requests"
    wait_until(lambda: pages.metrics().total(in_flight) == count, f"{count} in flight")


def begin(threads: ThreadPoolExecutor, model: HostedModel) -> list[Future[Answer]]:
    """Sends a request over each protocol and waits until all have reached the server."""
    answers = [threads.submit(ask, model) for ask in PROTOCOLS]
    wait_until_in_flight(model.server, len(PROTOCOLS))
    return answers


def test_every_protocol_waits_for_the_first_version(
    host: ModelHost, scale_model: ScaleModel, threads: ThreadPoolExecutor
) -> None:
    model = host.model(prefix="scale")
    model.wait_for_log("no_version_in_base_path")
    scale_model.write(model.base_path, 1)
    # From here on the version settles and loads, unless it already has.
    model.server.wait_for_event(
        lambda line: (
            line["event"] in ("version_settling", "aspired") and line.get("model") == model.name
        ),
        TIMEOUT_SECONDS,
    )
    asks = [*PROTOCOLS, metadata_over_grpc]
    assert list(threads.map(lambda ask: ask(model), asks)) == [("OK", "")] * len(asks)


def test_questions_about_a_loading_model_do_not_wait(
    host: ModelHost, scale_model: ScaleModel
) -> None:
    model = load_endlessly(host, scale_model)
    with httpx.Client(base_url=model.server.url, timeout=TIMEOUT_SECONDS) as http:
        metadata = http.get(f"/v1/models/{model.name}/metadata")
        assert http_answer(metadata)[0] == "UNAVAILABLE"
        assert "version 1 is loading" in metadata.json()["error"]
        assert http_answer(http.get(f"/v2/models/{model.name}"))[0] == "UNAVAILABLE"
        assert http.get(f"/v2/models/{model.name}/ready").json()["ready"] is False
        # NOT_FOUND until the manager has the version, which is a moment after the source has it.
        status_of = f"/v1/models/{model.name}"
        wait_until(lambda: http.get(status_of).status_code == 200, "a status")
        (version,) = http.get(status_of).json()["model_version_status"]
        assert version["state"] in ("START", "LOADING")
        # A model that is not configured does not wait either.
        answer = http.post("/v1/models/none:predict", json={"instances": [1.0]})
        assert http_answer(answer)[0] == "NOT_FOUND"
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = model.name
    with caller_to(model.server.target) as caller:
        (status,) = caller.model_status(request).model_version_status
        assert status.state <= LOADING.value


def test_a_cancelled_wait_frees_its_place(host: ModelHost, scale_model: ScaleModel) -> None:
    model = load_endlessly(host, scale_model)
    with caller_to(model.server.target) as caller:
        call = caller.start_predict(request_to(model), timeout=WAIT_SECONDS)
        wait_until_in_flight(model.server, 1)
        call.cancel()
        wait_until_in_flight(model.server, 0)
    address = urlsplit(model.server.url).netloc
    with closing(http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)) as connection:
        connection.request("POST", f"/v1/models/{model.name}:predict", b'{"instances": [1.0]}')
        wait_until_in_flight(model.server, 1)
    wait_until_in_flight(model.server, 0)


def test_removal_of_the_model_ends_the_waits(
    host: ModelHost, scale_model: ScaleModel, threads: ThreadPoolExecutor
) -> None:
    model = load_endlessly(host, scale_model)
    answers = begin(threads, model)
    # A configuration without any model would be refused.
    host.model(prefix="other")
    host.remove(model.name)
    assert {answer.result(TIMEOUT_SECONDS)[0] for answer in answers} == {"NOT_FOUND"}


def test_sigterm_ends_the_waits_over_every_protocol(
    start_server: StartServer, tmp_path: Path, scale_model: ScaleModel, threads: ThreadPoolExecutor
) -> None:
    host = ModelHost(start_server, tmp_path, **FLAGS, drain_seconds=WAIT_SECONDS)
    model = load_endlessly(host, scale_model)
    answers = begin(threads, model)
    os.kill(model.server.process_id, signal.SIGTERM)
    for answer in answers:
        code, message = answer.result(TIMEOUT_SECONDS)
        assert code == "UNAVAILABLE"
        assert message.startswith(f"model '{model.name}': version 1 is loading")
    wait_for_log(model.server, "stopped")
    model.server.kill()  # The server has ended by itself, which the fixture would report as a crash.

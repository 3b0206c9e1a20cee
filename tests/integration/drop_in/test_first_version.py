"""Requests over each protocol for a model while its first version loads."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.base.protos import get_model_metadata_pb2, get_model_status_pb2
from serving.core.servable import LOADING
from tests.integration.clients import caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

WAIT_SECONDS = 240
LOADING_MESSAGE = "model 'scale': version 1 is loading, stage restore"

Answer = tuple[str, str]
"""The name of the expected code, and the message."""


REQUEST = predict_request("scale", {"x": np.ones(1, np.float32)})


def over_grpc(server: ModelServer) -> Answer:
    with caller_to(server.target) as caller:
        try:
            caller.predict(REQUEST, timeout=WAIT_SECONDS)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code().name, failed.details()
    return "OK", ""


def metadata_over_grpc(server: ModelServer) -> Answer:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "scale"
    with caller_to(server.target) as caller:
        try:
            caller.metadata(request)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code().name, failed.details()
    return "OK", ""


def over_triton(server: ModelServer) -> Answer:
    x = triton_grpc.InferInput("x", [1], "FP32")
    x.set_data_from_numpy(np.ones(1, np.float32))
    with closing(triton_grpc.InferenceServerClient(server.target)) as client:
        try:
            client.infer("scale", [x])
        except InferenceServerException as error:
            return error.status().removeprefix("StatusCode."), error.message()
    return "OK", ""


def http_answer(response: httpx.Response) -> Answer:
    codes = {200: "OK", 404: "NOT_FOUND", 503: "UNAVAILABLE"}
    code = codes.get(response.status_code, str(response.status_code))
    return code, "" if code == "OK" else response.json()["error"]


def over_rest(server: ModelServer) -> Answer:
    path, body = "/v1/models/scale:predict", {"inputs": {"x": [1.0]}}
    return http_answer(httpx.post(server.url + path, json=body, timeout=WAIT_SECONDS))


def over_kserve(server: ModelServer) -> Answer:
    x = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
    path, body = "/v2/models/scale/infer", {"inputs": [x]}
    return http_answer(httpx.post(server.url + path, json=body, timeout=WAIT_SECONDS))


PROTOCOLS: list[Callable[[ModelServer], Answer]] = [over_grpc, over_triton, over_rest, over_kserve]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(len(PROTOCOLS)) as threads:
        yield threads


def configure(directory: Path, name: str, base_path: Path) -> Path:
    """Writes a config file of one model by an atomic replacement."""
    file = directory / "models.config"
    beside = file.with_suffix(".partial")
    beside.write_text(
        f'model_config_list {{ config {{ name: "{name}" base_path: "{base_path}" }} }}'
    )
    return beside.rename(file)


def write_endless(scale_model: ScaleModel, base_path: Path) -> None:
    """Writes a version with a load of one byte per second, which takes a day."""
    scale_model.write(base_path, 1, offset_count=25_000)


def started(start_server: StartServer, base_path: Path, **flags: object) -> ModelServer:
    """Starts a server that has found version 1 and never finishes its load."""
    server = start_server(
        model_config_file=configure(base_path, "scale", base_path),
        model_config_file_poll_wait_seconds=0.1,
        rest_api_port="auto",
        restore_bytes_per_second=1,
        **flags,
    )
    server.wait_for_event(lambda line: line["event"] == "aspired", WAIT_SECONDS)
    return server


def wait_until_in_flight(server: ModelServer, count: int) -> None:
    pages = ServerPages(server.url)
    in_flight = "serving_in_flight_requests"
    wait_until(
        lambda: pages.metrics().total(in_flight) == count, f"{count} in flight", WAIT_SECONDS
    )


def begin(threads: ThreadPoolExecutor, server: ModelServer) -> list[Future[Answer]]:
    """Sends a request over each protocol and waits until all have reached the server."""
    answers = [threads.submit(ask, server) for ask in PROTOCOLS]
    wait_until_in_flight(server, len(PROTOCOLS))
    return answers


def test_every_protocol_waits_for_the_first_version(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, threads: ThreadPoolExecutor
) -> None:
    server = start_server(
        model_name="scale",
        base_path=base_path,
        rest_api_port="auto",
        first_version_wait_seconds=WAIT_SECONDS,
        rest_api_timeout_in_ms=WAIT_SECONDS * 1000,
    )
    server.wait_for_event(lambda line: line["event"] == "no_version_in_base_path", WAIT_SECONDS)
    scale_model.write(base_path, 1)
    server.wait_for_event(
        lambda line: line["event"] in ("version_settling", "aspired"), WAIT_SECONDS
    )
    asks = [*PROTOCOLS, metadata_over_grpc]
    assert list(threads.map(lambda ask: ask(server), asks)) == [("OK", "")] * len(asks)


def test_every_protocol_names_the_stage_after_the_wait(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    write_endless(scale_model, base_path)
    server = started(start_server, base_path, first_version_wait_seconds=0.05)
    for ask in [*PROTOCOLS, metadata_over_grpc]:
        wait_until(lambda: ask(server)[1] == LOADING_MESSAGE, "the stage", WAIT_SECONDS)  # noqa: B023
        assert ask(server) == ("UNAVAILABLE", LOADING_MESSAGE)


def test_questions_about_a_loading_model_do_not_wait(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    write_endless(scale_model, base_path)
    server = started(start_server, base_path, first_version_wait_seconds=10 * WAIT_SECONDS)
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS) as http:
        metadata = http.get("/v1/models/scale/metadata")
        assert http_answer(metadata)[0] == "UNAVAILABLE"
        assert "version 1 is loading" in metadata.json()["error"]
        assert http_answer(http.get("/v2/models/scale"))[0] == "UNAVAILABLE"
        assert http.get("/v2/models/scale/ready").json()["ready"] is False
        # NOT_FOUND until the manager has the version, which is a moment after the source has it.
        status_of = "/v1/models/scale"
        wait_until(lambda: http.get(status_of).status_code == 200, "a status", WAIT_SECONDS)
        (version,) = http.get(status_of).json()["model_version_status"]
        assert version["state"] in ("START", "LOADING")
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "scale"
    with caller_to(server.target) as caller:
        (status,) = caller.model_status(request).model_version_status
        assert status.state <= LOADING.value
    # A model that is not configured does not wait either.
    answer = httpx.post(server.url + "/v1/models/none:predict", json={"instances": [1.0]})
    assert http_answer(answer)[0] == "NOT_FOUND"


def test_a_cancelled_wait_frees_its_place(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    write_endless(scale_model, base_path)
    server = started(start_server, base_path, first_version_wait_seconds=10 * WAIT_SECONDS)
    with caller_to(server.target) as caller:
        call = caller.start_predict(REQUEST, timeout=10 * WAIT_SECONDS)
        wait_until_in_flight(server, 1)
        call.cancel()
        wait_until_in_flight(server, 0)
    with pytest.raises(httpx.TimeoutException):
        httpx.post(server.url + "/v1/models/scale:predict", json={"instances": [1.0]}, timeout=5)
    wait_until_in_flight(server, 0)


def test_sigterm_ends_the_waits_over_every_protocol(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, threads: ThreadPoolExecutor
) -> None:
    write_endless(scale_model, base_path)
    server = started(
        start_server,
        base_path,
        first_version_wait_seconds=10 * WAIT_SECONDS,
        rest_api_timeout_in_ms=10_000 * WAIT_SECONDS,
        drain_seconds=10 * WAIT_SECONDS,
    )
    answers = begin(threads, server)
    os.kill(server.process_id, signal.SIGTERM)
    for answer in answers:
        code, message = answer.result(WAIT_SECONDS)
        assert code == "UNAVAILABLE"
        assert message.startswith("model 'scale': version 1 is loading")
    server.wait_for_event(lambda line: line["event"] == "stopped", WAIT_SECONDS)
    server.kill()  # The server has ended by itself, which the fixture would report as a crash.


def test_removal_of_the_model_ends_the_waits(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, threads: ThreadPoolExecutor
) -> None:
    write_endless(scale_model, base_path)
    server = started(
        start_server,
        base_path,
        first_version_wait_seconds=10 * WAIT_SECONDS,
        rest_api_timeout_in_ms=10_000 * WAIT_SECONDS,
    )
    answers = begin(threads, server)
    (base_path / "other").mkdir()
    configure(base_path, "other", base_path / "other")
    assert {answer.result(WAIT_SECONDS)[0] for answer in answers} == {"NOT_FOUND"}

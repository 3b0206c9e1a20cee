"""Tests of gRPC's retries, and of the server that gets them, with both clients' service config.

The servers are grpcio's, and the pauses are short or far beyond the deadline.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import grpc
import pytest

from serving.base.errors import (
    InvalidArgument,
    MillpondError,
    NotFound,
    ResourceExhausted,
    StatusCode,
    Unavailable,
)
from serving.base.protos import predict_pb2
from serving.client import AsyncClient, Client, RetryPolicy, Tls
from serving.client.service_config import service_config
from serving.core.operator_api import CAPTURE_WARM_UP, GET_CONFIG, LIST_MODELS
from tests.unit.fakes.client import UNAVAILABLE, GrpcServer, Refusal

PREDICT = "/tensorflow.serving.PredictionService/Predict"
ANSWER = predict_pb2.PredictResponse().SerializeToString()
SHORT_PAUSES = RetryPolicy(pause_seconds_first=0.01)
# A test passes only if the pause of the server replaces these.
LONG_PAUSES = RetryPolicy(pause_seconds_first=600, pause_seconds_max=600)
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED

Run = Callable[..., Any]


def run_blocking(target: Any, method: str, *arguments: Any, **options: Any) -> Any:
    timeout_seconds = options.pop("timeout_seconds", 60)
    with Client(target, timeout_seconds=timeout_seconds, **options) as client:
        return getattr(client, method)(*arguments)


def run_asyncio(target: Any, method: str, *arguments: Any, **options: Any) -> Any:
    async def in_loop() -> Any:
        timeout_seconds = options.pop("timeout_seconds", 60)
        async with AsyncClient(target, timeout_seconds=timeout_seconds, **options) as client:
            return await getattr(client, method)(*arguments)

    return asyncio.run(in_loop())


@pytest.fixture(params=[run_blocking, run_asyncio])
def run(request: pytest.FixtureRequest) -> Run:
    kind: Run = request.param
    return kind


@pytest.fixture
def start() -> Iterator[Callable[..., GrpcServer]]:
    with ExitStack() as stack:
        yield lambda *answers, **settings: stack.enter_context(GrpcServer(*answers, **settings))


# --- Retries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED"])
def test_call_is_tried_again(code: str, run: Run, start: Callable[..., GrpcServer]):
    refusal = Refusal(grpc.StatusCode[code])
    server = start(refusal, refusal, ANSWER)
    run(server.target, "predict", "m", {}, retries=SHORT_PAUSES)
    assert server.paths == [PREDICT] * 3


def test_large_request_is_tried_again(run: Run, start: Callable[..., GrpcServer]):
    server = start(UNAVAILABLE, ANSWER)
    run(server.target, "predict", "m", {"x": b"x" * 3_000_000}, retries=SHORT_PAUSES)
    assert server.paths == [PREDICT] * 2


def test_attempts_end_at_their_limit(run: Run, start: Callable[..., GrpcServer]):
    server = start(UNAVAILABLE)
    policy = RetryPolicy(attempt_count_max=3, pause_seconds_first=0.01)
    with pytest.raises(Unavailable, match=f"no server answers at {server.target}"):
        run(server.target, "predict", "m", {}, retries=policy)
    assert len(server.paths) == 3


def test_single_attempt_is_not_tried_again(run: Run, start: Callable[..., GrpcServer]):
    server = start(UNAVAILABLE, ANSWER)
    with pytest.raises(Unavailable):
        run(server.target, "predict", "m", {}, retries=RetryPolicy(attempt_count_max=1))
    assert len(server.paths) == 1


def test_refusal_is_not_tried_again(run: Run, start: Callable[..., GrpcServer]):
    server = start(Refusal(grpc.StatusCode.NOT_FOUND), ANSWER)
    with pytest.raises(NotFound):
        run(server.target, "predict", "m", {}, retries=SHORT_PAUSES)
    assert len(server.paths) == 1


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_pause_of_the_server_is_kept(code: str, run: Run, start: Callable[..., GrpcServer]):
    server = start(Refusal(grpc.StatusCode[code], pushback_ms="50"), ANSWER)
    run(server.target, "predict", "m", {}, retries=LONG_PAUSES)
    assert len(server.paths) == 2


def test_server_can_forbid_another_attempt(run: Run, start: Callable[..., GrpcServer]):
    server = start(Refusal(FULL, pushback_ms="-1"), ANSWER)
    with pytest.raises(ResourceExhausted):
        run(server.target, "predict", "m", {}, retries=SHORT_PAUSES)
    assert len(server.paths) == 1


def test_no_attempt_begins_after_the_deadline(run: Run, start: Callable[..., GrpcServer]):
    server = start(Refusal(FULL, pushback_ms="600000"), ANSWER)
    with pytest.raises(MillpondError, match=r"no answer from .* in 0\.2 s") as raised:
        run(server.target, "predict", "m", {}, timeout_seconds=0.2)
    assert raised.value.code is StatusCode.DEADLINE_EXCEEDED
    assert len(server.paths) <= 1


def test_call_that_close_cancels_is_not_tried_again():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        client = Client(f"127.0.0.1:{silent.getsockname()[1]}")

        def close_when_connected() -> None:
            with silent.accept()[0]:
                client.close()

        connected = threading.Thread(target=close_when_connected)
        connected.start()
        with pytest.raises(MillpondError, match="Channel closed") as raised:
            client.predict("m", {})
        connected.join()
    assert raised.value.code is StatusCode.CANCELLED


@pytest.mark.parametrize(
    ("call", "is_repeated"),
    [
        (lambda client: client.describe(), True),
        (lambda client: client.model_status("m"), True),
        (lambda client: client.rollback("m"), False),
        (lambda client: client.promote("m"), False),
        (lambda client: client.allow("m", 1), False),
        (lambda client: client.reload_config(b""), False),
    ],
    ids=["describe", "model_status", "rollback", "promote", "allow", "reload_config"],
)
def test_call_that_changes_the_server_is_sent_once(
    call: Callable[[Client], object], is_repeated: bool, start: Callable[..., GrpcServer]
):
    server = start(UNAVAILABLE)
    with Client(server.target, retries=SHORT_PAUSES) as client, pytest.raises(Unavailable):
        call(client)
    assert len(server.paths) == (5 if is_repeated else 1)


@pytest.mark.parametrize("path", [LIST_MODELS, GET_CONFIG, CAPTURE_WARM_UP])
def test_reading_operator_call_is_repeatable(path: str):
    config = json.loads(service_config(RetryPolicy(), is_balanced=False, health_service=""))
    _, service, method = path.split("/")
    assert {"service": service, "method": method} in config["methodConfig"][0]["name"]


@pytest.mark.parametrize(
    "settings",
    [
        {"attempt_count_max": 0},
        {"attempt_count_max": 6},
        {"pause_seconds_first": 0.009},
        {"pause_seconds_first": 2.0, "pause_seconds_max": 1.0},
    ],
)
def test_impossible_retry_policy_is_refused(settings: dict[str, Any]):
    with pytest.raises(InvalidArgument, match=str(next(iter(settings.values())))):
        RetryPolicy(**settings)


# --- Several servers ------------------------------------------------------------------------------------


def call_until(client: Client, *servers: GrpcServer) -> None:
    """Predicts until each of the servers has answered."""
    while not all(server.paths for server in servers):
        client.predict("m", {})


def test_servers_take_turns(start: Callable[..., GrpcServer]):
    servers = [start(ANSWER), start(ANSWER)]
    with Client([server.target for server in servers]) as client:
        call_until(client, *servers)
        for server in servers:
            server.paths.clear()
        for _ in range(10):
            client.predict("m", {})
    assert [len(server.paths) for server in servers] == [5, 5]


def test_asyncio_client_calls_servers_in_turn(start: Callable[..., GrpcServer]):
    servers = [start(ANSWER), start(ANSWER)]

    async def call_both() -> None:
        async with AsyncClient([server.target for server in servers]) as client:
            while not all(server.paths for server in servers):
                await client.predict("m", {})

    asyncio.run(call_both())


def test_failed_call_moves_to_another_server(run: Run, start: Callable[..., GrpcServer]):
    failing, answering = start(UNAVAILABLE), start(ANSWER)
    policy = RetryPolicy(pause_seconds_first=0.1)
    for _ in range(4):
        run([failing.target, answering.target], "predict", "m", {}, retries=policy)
    assert len(answering.paths) == 4


def test_server_without_health_service_takes_turns(start: Callable[..., GrpcServer]):
    servers = [start(ANSWER, health="no_service"), start(ANSWER)]
    with Client([server.target for server in servers]) as client:
        call_until(client, *servers)


def test_server_that_does_not_serve_gets_no_call(start: Callable[..., GrpcServer]):
    serving, draining = start(ANSWER), start(ANSWER, health="not_serving")
    with Client([draining.target, serving.target]) as client:
        for _ in range(20):
            client.predict("m", {})
    assert (len(serving.paths), len(draining.paths)) == (20, 0)


def test_server_that_is_down_gets_no_call(run: Run, start: Callable[..., GrpcServer]):
    server = start(ANSWER)
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        run([f"127.0.0.1:{bound.getsockname()[1]}", server.target], "predict", "m", {})
    assert len(server.paths) == 1


def test_health_of_a_model_can_be_watched(run: Run, start: Callable[..., GrpcServer]):
    servers = [start(ANSWER), start(ANSWER)]
    run([server.target for server in servers], "predict", "m", {}, health_service="ctr")
    assert b"\x0a\x03ctr" in servers[0].watched + servers[1].watched


def test_error_names_servers_if_none_serves(run: Run, start: Callable[..., GrpcServer]):
    servers = [start(ANSWER, health="not_serving") for _ in range(2)]
    targets = [server.target for server in servers]
    with pytest.raises(Unavailable, match=f"no server of {', '.join(targets)} reports") as raised:
        run(targets, "predict", "m", {}, retries=SHORT_PAUSES)
    assert "health_service=MODEL" in raised.value.message


def test_single_server_is_not_watched(run: Run, start: Callable[..., GrpcServer]):
    server = start(ANSWER, health="not_serving")
    run(server.target, "predict", "m", {})
    assert (len(server.paths), server.watched) == (1, [])


def test_operators_call_to_several_servers_is_refused():
    with (
        Client(["10.0.0.1:1", "10.0.0.2:1"]) as client,
        pytest.raises(InvalidArgument, match=r"has 2: 10\.0\.0\.1:1, 10\.0\.0\.2:1"),
    ):
        client.rollback("m")


def test_several_tls_servers_need_one_name():
    with pytest.raises(InvalidArgument, match="server_name"):
        Client(["10.0.0.1:1", "10.0.0.2:1"], tls=Tls())

"""The service config that a fleet has for stock clients, with a stock client of grpcio."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from fleet.commands.command import run
from fleet.files.service_config import dns_text, stock_service_config
from tests.unit.fakes.client import UNAVAILABLE, GrpcServer

PREDICT = "/tensorflow.serving.PredictionService/Predict"
ROLLBACK = "/millpond.v1.Admin/Rollback"


@pytest.fixture
def start() -> Iterator[Callable[..., GrpcServer]]:
    with ExitStack() as stack:
        yield lambda *answers, **settings: stack.enter_context(GrpcServer(*answers, **settings))


def channel_to(*servers: GrpcServer, config: str) -> Any:
    """Returns a `grpc.Channel`, whose types do not know methods of bytes."""
    target = f"ipv4:{','.join(server.target for server in servers)}"
    return grpc.insecure_channel(target, [("grpc.service_config", config)])


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["service-config", *arguments]) == 0
    return capsys.readouterr().out


def test_stock_client_with_it_balances_and_retries(
    start: Callable[..., GrpcServer], capsys: pytest.CaptureFixture[str]
) -> None:
    healthy, failing, draining = (
        start(b"yes"),
        start(UNAVAILABLE),
        start(b"no", health="not_serving"),
    )
    with channel_to(healthy, failing, draining, config=printed(capsys)) as channel:
        call = channel.unary_unary(PREDICT)
        answers = [call(b"", timeout=60) for _ in range(6)]
        while not failing.paths:
            answers.append(call(b"", timeout=60))
    assert set(answers) == {b"yes"}
    assert draining.paths == []


def test_stock_client_repeats_no_operators_call(
    start: Callable[..., GrpcServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(UNAVAILABLE)
    with channel_to(server, config=printed(capsys)) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(ROLLBACK)(b"", timeout=60)
    assert len(server.paths) == 1


def test_health_of_a_model_may_decide(
    start: Callable[..., GrpcServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server = start(b"yes")
    with channel_to(server, server, config=printed(capsys, "--health_service=ctr")) as channel:
        channel.unary_unary(PREDICT)(b"", timeout=60)
    assert server.watched[0].endswith(b"ctr")


def test_record_of_dns_has_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--dns").strip()
    key, _, document = text.partition("=")
    choices: list[Any] = json.loads(document)
    assert (key, choices) == ("grpc_config", [{"serviceConfig": stock_service_config()}])
    assert text == dns_text(stock_service_config())


def test_retries_are_throttled_late() -> None:
    throttling = stock_service_config()["retryThrottling"]
    assert 0 < throttling["maxTokens"] <= 1_000
    assert throttling["tokenRatio"] > 0

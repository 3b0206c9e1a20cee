"""A canary is judged by every request that runs the model, whatever the protocol and method."""

from collections.abc import Callable

import numpy as np
import pytest

from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import wait_until
from tests.integration.exports import ScaleModel
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.rest_clients import RestClient

REQUEST_COUNT = 50

Ask = Callable[[RestClient, str, bool], int]
"""Sends one request to a model and returns the HTTP status.

If the argument is true, version 2 refuses the request.
"""


def ask_rest(client: RestClient, name: str, is_bad: bool) -> int:
    version = "/versions/2" if is_bad else ""
    values = ["no number"] if is_bad else [1.0, 2.5]
    body = {"inputs": {"x": values}}
    return client.ask("POST", f"/v1/models/{name}{version}:predict", body)[0]


def ask_kserve(client: RestClient, name: str, is_bad: bool) -> int:
    version = "/versions/2" if is_bad else ""
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.5]}
    if is_bad:
        tensor["name"] = "no_input"
    return client.ask("POST", f"/v2/models/{name}{version}/infer", {"inputs": [tensor]})[0]


PROTOCOLS = pytest.mark.parametrize("ask", [ask_rest, ask_kserve], ids=["rest", "kserve"])


@pytest.fixture
def model(host: ModelHost, scale_model: ScaleModel) -> HostedModel:
    """Serves version 1, and version 2 as its canary."""
    canary = {"weight": 0.5, "request_count": REQUEST_COUNT}
    model = host.model(prefix="scale", settings={"canary": canary})
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    scale_model.write(model.base_path, 2)
    model.wait_for_states({1: AVAILABLE, 2: AVAILABLE})
    return model


def ask_until(model: HostedModel, event: str, ask: Callable[[], int], *statuses: int) -> None:
    """Sends requests until the log has `event`; each answer has one of `statuses`."""

    def is_logged() -> bool:
        assert ask() in statuses
        return bool(model.logged(event))

    wait_until(is_logged, event)


@PROTOCOLS
def test_canary_gets_its_verdict_over_http_alone(model: HostedModel, ask: Ask):
    rest = RestClient(model.server)
    ask_until(model, "canary_promoted", lambda: ask(rest, model.name, False), 200)
    model.wait_for_states({1: END, 2: AVAILABLE})
    with Client(model.server.admin_target) as client:
        described = client.describe_models()[model.name]["versions"]
    (verdict,) = [item for row in described for item in row["verdicts"] if item["gate"] == "canary"]
    assert verdict["is_passed"]
    assert verdict["figures"]["request_count"] >= REQUEST_COUNT
    assert verdict["figures"]["failed_count"] == 0
    # The unloaded version is reported with all requests that it answered.
    unloaded = model.wait_for_log("version_unloaded")
    assert unloaded["version"] == 1
    assert unloaded["request_count"] > 0
    assert unloaded["latency_seconds_p50"] > 0


@PROTOCOLS
def test_bad_canary_is_rolled_back_over_http_alone(model: HostedModel, ask: Ask):
    rest = RestClient(model.server)
    # The version is gone (404) a moment before the log is read.
    ask_until(model, "canary_failed", lambda: ask(rest, model.name, True), 400, 404)
    model.wait_for_states({1: AVAILABLE, 2: END})
    unloaded = model.wait_for_log("version_unloaded")
    assert unloaded["version"] == 2
    assert unloaded["failed_count"] >= REQUEST_COUNT


def test_status_counts_requests_of_every_protocol_once(model: HostedModel):
    rest = RestClient(model.server)
    with Client(model.server.admin_target) as client:

        def request_count() -> int:
            rows = client.describe_models()[model.name]["versions"]
            return sum(row.get("request_count") or 0 for row in rows)

        before = request_count()
        for ask in (ask_rest, ask_kserve):
            assert ask(rest, model.name, False) == 200
        client.predict(model.name, {"x": np.ones(2, np.float32)})
        assert request_count() == before + 3

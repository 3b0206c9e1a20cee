"""A canary is judged by every request that runs the model, whatever the protocol and method."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged
from tests.integration.rest_clients import RestClient

REQUEST_COUNT = 50
# A few hundred requests, on a machine that is busy with other tests.
VERDICT_TIMEOUT_SECONDS = 120

Ask = Callable[[RestClient, bool], int]
"""Sends one request and returns the HTTP status.

If the argument is true, version 2 refuses the request.
"""


def ask_rest(client: RestClient, is_bad: bool) -> int:
    version = "/versions/2" if is_bad else ""
    values = ["no number"] if is_bad else [1.0, 2.5]
    body = {"inputs": {"x": values}}
    return client.ask("POST", f"/v1/models/scale{version}:predict", body)[0]


def ask_kserve(client: RestClient, is_bad: bool) -> int:
    version = "/versions/2" if is_bad else ""
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.5]}
    if is_bad:
        tensor["name"] = "no_input"
    return client.ask("POST", f"/v2/models/scale{version}/infer", {"inputs": [tensor]})[0]


PROTOCOLS = pytest.mark.parametrize("ask", [ask_rest, ask_kserve], ids=["rest", "kserve"])


@pytest.fixture
def server(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
) -> ModelServer:
    """Serves version 1, and version 2 as its canary."""
    settings = tmp_path / "settings.toml"
    settings.write_text(
        f"[models.scale]\ncanary = {{ weight = 0.5, request_count = {REQUEST_COUNT} }}\n"
    )
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, model_settings_file=settings)
    server.wait_until_available("scale", 1)
    scale_model.write(base_path, 2)
    with Client(server.admin_target) as client:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: AVAILABLE})
    return server


def ask_until(server: ModelServer, event: str, ask: Callable[[], int], *statuses: int) -> None:
    """Sends requests until the log has `event`; each answer has one of `statuses`."""

    def is_logged() -> bool:
        assert ask() in statuses
        return bool(logged(server, event))

    wait_until(is_logged, event, VERDICT_TIMEOUT_SECONDS)


@PROTOCOLS
def test_canary_gets_its_verdict_over_http_alone(server: ModelServer, ask: Ask):
    rest = RestClient(server)
    ask_until(server, "canary_promoted", lambda: ask(rest, False), 200)
    with Client(server.admin_target) as client:
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        described = client.describe_models()["scale"]["versions"]
    (verdict,) = [item for row in described for item in row["verdicts"] if item["gate"] == "canary"]
    assert verdict["is_passed"]
    assert verdict["figures"]["request_count"] >= REQUEST_COUNT
    assert verdict["figures"]["failed_count"] == 0
    # The unloaded version is reported with all requests that it answered.
    (unloaded,) = logged(server, "version_unloaded")
    assert unloaded["version"] == 1
    assert unloaded["request_count"] > 0
    assert unloaded["latency_seconds_p50"] > 0


@PROTOCOLS
def test_bad_canary_is_rolled_back_over_http_alone(server: ModelServer, ask: Ask):
    rest = RestClient(server)
    # The version is gone (404) a moment before the log is read.
    ask_until(server, "canary_failed", lambda: ask(rest, True), 400, 404)
    with Client(server.admin_target) as client:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
    (unloaded,) = logged(server, "version_unloaded")
    assert unloaded["version"] == 2
    assert unloaded["failed_count"] >= REQUEST_COUNT


def test_status_counts_requests_of_every_protocol_once(server: ModelServer):
    rest = RestClient(server)
    with Client(server.admin_target) as client:

        def request_count() -> int:
            rows = client.describe_models()["scale"]["versions"]
            return sum(row.get("request_count") or 0 for row in rows)

        before = request_count()
        for ask in (ask_rest, ask_kserve):
            assert ask(rest, False) == 200
        client.predict("scale", {"x": np.ones(2, np.float32)})
        assert request_count() == before + 3

"""Requests that reach no version count as requests of the model that they name."""

from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np

from serving import ModelServer
from tests.integration.clients import caller_to, predict_request, refusal, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

REQUEST_COUNT = 5


def page_of(server: ModelServer, model: str) -> Any:
    return httpx.get(f"{server.url}/v1/page", params={"model": model}).json()


def test_failures_are_put_on_the_model_that_is_named(
    start_server: StartServer, scale_model: ScaleModel, tmp_path: Path
):
    for name in ("scale", "empty"):
        (tmp_path / name).mkdir()
    scale_model.write(tmp_path / "scale", 1)
    config = tmp_path / "models.config"
    models = "".join(
        f'config {{ name: "{name}" base_path: "{tmp_path / name}" model_platform: "tensorflow" }}'
        for name in ("scale", "empty")
    )
    config.write_text(f"model_config_list {{ {models} }}")
    server = start_server(model_config_file=str(config), listen_before_ready=True)
    server.wait_until_available("scale", 1)
    with caller_to(server.target) as caller:
        for name in ("scale", "empty", "unknown"):
            request = predict_request(name, {"x": np.ones(1, np.float32)})
            for _ in range(REQUEST_COUNT):
                if name == "scale":
                    caller.predict(request)
                else:
                    code, _ = refusal(partial(caller.predict, request))
                    assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
    wait_until(
        lambda: sum(page_of(server, "empty")["codes"].values()) == REQUEST_COUNT,
        "the failures of the model without a version",
    )
    assert page_of(server, "scale")["codes"] == {"OK": REQUEST_COUNT}
    (waiting,) = page_of(server, "empty")["waiting"]
    assert "no version" in waiting["reason"]
    assert waiting["base_path"] == str(tmp_path / "empty")
    wait_until(
        lambda: any(page_of(server, "empty")["points"]["failed_per_second"]),
        "failures in the model's chart",
    )

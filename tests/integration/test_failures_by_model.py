"""Requests that reach no version count as requests of the model that they name."""

from functools import partial
from typing import Any

import grpc
import httpx
import numpy as np

from serving import ModelServer
from tests.integration.clients import caller_to, predict_request, refusal, wait_until
from tests.integration.exports import ScaleModel
from tests.integration.model_host import ModelHost

REQUEST_COUNT = 5


def page_of(server: ModelServer, model: str) -> Any:
    return httpx.get(f"{server.url}/v1/page", params={"model": model}).json()


def test_failures_are_put_on_the_model_that_is_named(host: ModelHost, scale_model: ScaleModel):
    scale, empty = host.model(prefix="scale"), host.model(prefix="empty")
    scale_model.write(scale.base_path, 1)
    scale.wait_until_available(1)
    server = scale.server
    with caller_to(server.target) as caller:
        for name in (scale.name, empty.name, "unknown"):
            request = predict_request(name, {"x": np.ones(1, np.float32)})
            for _ in range(REQUEST_COUNT):
                if name == scale.name:
                    caller.predict(request)
                else:
                    code, _ = refusal(partial(caller.predict, request))
                    assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
    wait_until(
        lambda: sum(page_of(server, empty.name)["codes"].values()) == REQUEST_COUNT,
        "the failures of the model without a version",
    )
    assert page_of(server, scale.name)["codes"] == {"OK": REQUEST_COUNT}
    (waiting,) = page_of(server, empty.name)["waiting"]
    assert "no version" in waiting["reason"]
    assert waiting["base_path"] == str(empty.base_path)
    wait_until(
        lambda: any(page_of(server, empty.name)["points"]["failed_per_second"]),
        "failures in the model's chart",
    )

"""REST during swaps: one version parses, runs and answers each request, and the reply names it."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.steady_clients import SteadyThreads

X = np.array([1, 2, 3], np.float32)
BODY = {"inputs": X.tolist()}
PATH = "/v1/models/scale:predict"
VERSION_COUNT = 6


class Requests(SteadyThreads):
    """Threads that post the same body over and over, each on its own connection."""

    def __init__(self, url: str) -> None:
        super().__init__(count=4)
        self._url = url

    def run(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as http:
            while not self.is_stopping:
                response = http.post(PATH, json=BODY)
                if response.status_code != 200:
                    self.failures.append(response.text)
                    return
                self._check(int(response.headers["x-millpond-model-version"]), response.json())

    def _check(self, version: int, document: Any) -> None:
        expected = {"y": ScaleModel.answer(version, X).tolist(), "version": version}
        if document == {"outputs": expected}:
            self.answer_counts[version] += 1
        else:
            self.failures.append(f"version {version}: {document}")


def test_rest_requests_during_swaps_never_fail(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    """Mends: TensorFlow Serving looks up the version twice, for the signature and for the run."""
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 1)
    with Requests(server.url).running() as requests:
        for version in range(1, VERSION_COUNT + 1):
            if version > 1:
                scale_model.write(base_path, version)
            requests.wait_for_answers_of(version)
    assert not requests.failures, requests.failures[:3]
    assert set(requests.answer_counts) == set(range(1, VERSION_COUNT + 1))

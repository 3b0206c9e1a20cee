"""REST during swaps: one version parses, runs and answers each request, and the reply names it."""

import threading
from pathlib import Path

import httpx
import numpy as np

from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

X = np.array([1, 2, 3], np.float32)
BODY = {"inputs": X.tolist()}
PATH = "/v1/models/scale:predict"
VERSION_COUNT = 6


class Requests:
    """Threads that post the same body over and over, each on its own connection."""

    def __init__(self, url: str, count: int = 4) -> None:
        self.versions: set[int] = set()
        self.failures: list[str] = []
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> "Requests":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as http:
            while not self._stop.is_set():
                response = http.post(PATH, json=BODY)
                if fault := self._fault(response):
                    self.failures.append(fault)
                    return

    def _fault(self, response: httpx.Response) -> str:
        if response.status_code != 200:
            return response.text
        version = int(response.headers["x-millpond-model-version"])
        outputs = response.json()["outputs"]
        if outputs != {"y": ScaleModel.answer(version, X).tolist(), "version": version}:
            return f"version {version}: {outputs}"
        self.versions.add(version)
        return ""


def test_rest_requests_during_swaps_never_fail(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    """Mends: TensorFlow Serving looks up the version twice, for the signature and for the run."""
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 1)
    with Requests(server.url) as requests:
        for version in range(1, VERSION_COUNT + 1):
            if version > 1:
                scale_model.write(base_path, version)
            wait_until(
                lambda version=version: version in requests.versions or requests.failures,  # type: ignore[misc]
                f"an answer of version {version}",
            )
    assert not requests.failures, requests.failures[:3]
    assert requests.versions == set(range(1, VERSION_COUNT + 1))

"""`serving.client` with one real server, and with several."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.base.errors import MillpondError
from serving.client import AsyncClient, Client
from tests.integration.clients import TIMEOUT_SECONDS, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.steady_clients import SteadyThreads

X = np.array([1, 2, 3], np.float32)


class Traffic(SteadyThreads):
    """Threads that predict over one client and check every answer."""

    def __init__(self, client: Client) -> None:
        super().__init__(count=4)
        self._client = client

    def run(self, number: int) -> None:
        while not self.is_stopping:
            self.pause()
            try:
                prediction = self._client.predict(
                    "scale", {"x": X}, timeout_seconds=TIMEOUT_SECONDS
                )
            except MillpondError as error:
                self.failures.append(repr(error))
                continue
            if prediction.outputs["y"].tolist() != ScaleModel.answer(1, X).tolist():
                self.failures.append(str(prediction))
            self.answer_counts[1] += 1


StartScale = Callable[..., ModelServer]


@pytest.fixture(scope="module")
def start_scale(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> StartScale:
    base_path = tmp_path_factory.mktemp("scale")
    scale_model.write(base_path, 1)

    def start(**flags: object) -> ModelServer:
        server = start_module_server(model_name="scale", base_path=base_path, **flags)
        server.wait_until_available("scale", 1)
        return server

    return start


@pytest.fixture(scope="module")
def staying(start_scale: StartScale) -> ModelServer:
    """A server that no test stops."""
    return start_scale()


def test_client_survives_end_of_one_server(staying: ModelServer, start_scale: StartScale):
    leaving = start_scale()
    with (
        Client([staying.target, leaving.target]) as client,
        Traffic(client).running() as traffic,
    ):
        wait_until(lambda: _answered_count(leaving) > 100, "its turns")
        leaving.stop()
        traffic.wait_for_answers_of(1, 200)
        back = start_scale(port=leaving.port)
        wait_until(lambda: _answered_count(back) > 100, "its turns again")
        back.kill()
        traffic.wait_for_answers_of(1, 200)
    assert not traffic.failures


def _answered_count(server: ModelServer) -> int:
    """Returns the number of successful requests, by the server's own count."""
    metrics = ServerPages(server.url).metrics()
    return round(metrics.total("serving_requests_total", method="Predict", code="OK"))


def test_asyncio_client_survives_end_of_one_server(staying: ModelServer, start_scale: StartScale):
    leaving = start_scale()

    async def run() -> int:
        async with AsyncClient([staying.target, leaving.target]) as client:
            await client.wait_until_ready("scale", TIMEOUT_SECONDS)
            is_over = asyncio.Event()
            tasks = [asyncio.create_task(_predict_until(is_over, client)) for _ in range(4)]
            await asyncio.to_thread(wait_until, lambda: _answered_count(leaving) > 100, "its turns")
            await asyncio.to_thread(leaving.stop)
            await client.predict("scale", {"x": X})
            is_over.set()
            return sum(await asyncio.gather(*tasks))

    assert asyncio.run(run()) > 0


async def _predict_until(is_over: asyncio.Event, client: AsyncClient) -> int:
    count = 0
    while not is_over.is_set():
        prediction = await client.predict("scale", {"x": X}, timeout_seconds=TIMEOUT_SECONDS)
        assert prediction.outputs["y"].tolist() == ScaleModel.answer(1, X).tolist()
        count += 1
    return count


def test_compressed_request_is_answered(staying: ModelServer):
    x = np.zeros(100_000, np.float32)
    with Client(staying.target, compression="gzip") as client:
        assert (client.predict("scale", {"x": x}).outputs["y"] == 1).all()

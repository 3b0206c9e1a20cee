"""Ray Serve: a deployment with one replica, on a Ray cluster of this machine alone."""

import os
import signal
import sys
from typing import Any

import ray
import starlette.requests
from ray import serve

from loadtest.drive.peers.peer_model import BATCH_REQUESTS_MAX, BATCH_WAIT_SECONDS, PeerModel


# Above the requests in flight, so that the proxy holds none back.
@serve.deployment(max_ongoing_requests=100)
class CtrDeployment:
    """The model without batches. Its handler is a coroutine, as in Ray's documentation."""

    def __init__(self, export: str) -> None:
        self._model = PeerModel(export)

    async def __call__(self, request: starlette.requests.Request) -> dict[str, Any]:
        """Answers one request."""
        body = await request.json()
        return {"predictions": self._model.predict(body["instances"])}


@serve.deployment(max_ongoing_requests=100)
class BatchedCtrDeployment:
    """The model with Ray Serve's own batches."""

    def __init__(self, export: str) -> None:
        self._model = PeerModel(export)

    @serve.batch(max_batch_size=BATCH_REQUESTS_MAX, batch_wait_timeout_s=BATCH_WAIT_SECONDS)
    async def predict(self, requests: list[Any]) -> list[Any]:
        """Returns the predictions of each request of a batch."""
        return self._model.predict_each(requests)

    async def __call__(self, request: starlette.requests.Request) -> dict[str, Any]:
        """Answers one request from its batch."""
        body = await request.json()
        return {"predictions": await self.predict(body["instances"])}


def main(arguments: list[str]) -> None:
    """Serves until SIGTERM, and then ends all of Ray's processes."""
    export, port, *batch = arguments
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    deployment: Any = BatchedCtrDeployment if batch else CtrDeployment
    signals = {signal.SIGTERM, signal.SIGINT}
    # Blocked from here on in this process alone: Ray's own processes are started already.
    serve.run(deployment.bind(export), route_prefix="/predict")
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    signal.sigwait(signals)
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])

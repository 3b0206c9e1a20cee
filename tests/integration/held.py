"""Requests of `slow_export` that run until the test lets them end."""

from pathlib import Path
from typing import Any

import numpy as np
from tensorflow_serving.apis import predict_pb2

from tests.integration.clients import TIMEOUT_SECONDS, Caller, predict_request

# A request of this length still runs when a wait of a test gives up.
LONG_SECONDS = 2 * TIMEOUT_SECONDS


class Held:
    """Requests of `slow_export` that run until `release`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "release"

    @property
    def inputs(self) -> dict[str, Any]:
        return {"path": np.array(str(self._path).encode())}

    def request(self, name: str = "slow") -> predict_pb2.PredictRequest:
        return predict_request(name, self.inputs, signature_name="held")

    def start(self, caller: Caller, name: str = "slow") -> Any:
        """Starts a call with a deadline that only a hang reaches."""
        return caller.start_predict(self.request(name), timeout=LONG_SECONDS)

    def release(self) -> None:
        self._path.touch()

"""BentoML: a service with one worker process, started by `bentoml serve`."""

import os
import sys
from typing import Any

import bentoml
import pydantic

from loadtest.drive.peers.peer_model import (
    BATCH_REQUESTS_MAX,
    BATCH_VARIABLE,
    EXPORT_VARIABLE,
    PeerModel,
    is_batching,
)

# BentoML counts rows and not requests, and refuses requests that would wait longer.
_BATCH_ROWS_MAX = 100 * BATCH_REQUESTS_MAX
_BATCH_LATENCY_MS_MAX = 10_000


class Row(pydantic.BaseModel):
    """The features of one row."""

    dense: list[float]
    sparse: list[int]


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class CtrService:
    """The model; its batches are of all rows of several requests."""

    def __init__(self) -> None:
        self._model = PeerModel(os.environ[EXPORT_VARIABLE])

    @bentoml.api(
        batchable=is_batching(),
        max_batch_size=_BATCH_ROWS_MAX,
        max_latency_ms=_BATCH_LATENCY_MS_MAX,
    )
    def predict(self, instances: list[Row]) -> list[dict[str, Any]]:
        """Answers `POST /predict` with a prediction for each row."""
        return self._model.predict(
            [{"dense": row.dense, "sparse": row.sparse} for row in instances]
        )


def main(arguments: list[str]) -> None:
    """Becomes `bentoml serve`."""
    export, port, *batch = arguments
    environment = os.environ | {
        EXPORT_VARIABLE: export,
        BATCH_VARIABLE: "1" if batch else "",
        "BENTOML_DO_NOT_TRACK": "True",
    }
    service = "loadtest.drive.peers.bentoml_peer:CtrService"
    command = [sys.executable, "-m", "bentoml", "serve", service, "--host=127.0.0.1"]
    os.execve(sys.executable, [*command, f"--port={port}"], environment)


if __name__ == "__main__":
    main(sys.argv[1:])

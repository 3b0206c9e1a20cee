"""LitServe: a LitAPI with one worker process, behind its HTTP process."""

import sys
from typing import Any

import litserve

from loadtest.drive.peers.peer_model import BATCH_REQUESTS_MAX, BATCH_WAIT_SECONDS, PeerModel


class CtrApi(litserve.LitAPI):
    """The model without batches."""

    def __init__(self, export: str, **options: Any) -> None:
        super().__init__(**options)
        self._export = export

    def setup(self, device: str) -> None:
        """Loads the model in the worker process."""
        del device
        self._model = PeerModel(self._export)

    def decode_request(self, request: dict[str, Any]) -> Any:
        """Returns the rows."""
        return request["instances"]

    def predict(self, x: Any) -> Any:
        """Returns the predictions of one request."""
        return self._model.predict(x)

    def encode_response(self, output: Any) -> dict[str, Any]:
        """Returns the reply's body."""
        return {"predictions": output}


class BatchedCtrApi(CtrApi):
    """The model with LitServe's own batches."""

    def batch(self, inputs: list[Any]) -> Any:
        """Keeps the requests apart: they may have different numbers of rows."""
        return inputs

    def predict(self, x: Any) -> Any:
        """Returns the predictions of each request of a batch."""
        return self._model.predict_each(x)

    def unbatch(self, output: Any) -> Any:
        """Returns the predictions by request, as `predict` does."""
        return output


def main(arguments: list[str]) -> None:
    """Serves until a signal stops it."""
    export, port, *batch = arguments
    api = (
        BatchedCtrApi(export, max_batch_size=BATCH_REQUESTS_MAX, batch_timeout=BATCH_WAIT_SECONDS)
        if batch
        else CtrApi(export)
    )
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(host="127.0.0.1", port=int(port), log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main(sys.argv[1:])

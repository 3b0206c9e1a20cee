"""The baseline, a typical server without a model server: FastAPI around a `tf.function`, with
uvicorn.

`python -m loadtest.drive.rest_baseline EXPORT PORT` serves `POST /predict` with TensorFlow Serving's body
in rows, in one process. It follows FastAPI's documentation: the body is a pydantic model, and the
handler is a plain function, which FastAPI runs on its threads. Imports TensorFlow (5 s).
"""

import sys
from typing import Any

import fastapi
import numpy as np
import pydantic
import tensorflow as tf
import uvicorn


class Row(pydantic.BaseModel):
    """The features of one row."""

    dense: list[float]
    sparse: list[int]


class PredictBody(pydantic.BaseModel):
    """The body of a request."""

    instances: list[Row]


class PredictReply(pydantic.BaseModel):
    """The reply: for each row the probability and the version."""

    predictions: list[dict[str, Any]]


def make_app(export: str) -> fastapi.FastAPI:
    """Makes the application for one exported version."""
    predict = tf.saved_model.load(export).signatures["serving_default"]
    app = fastapi.FastAPI()

    @app.post("/predict")
    def answer(body: PredictBody) -> PredictReply:
        outputs = predict(
            dense=tf.constant(np.array([row.dense for row in body.instances], np.float32)),
            sparse=tf.constant(np.array([row.sparse for row in body.instances], np.int64)),
        )
        columns = {name: tensor.numpy().tolist() for name, tensor in outputs.items()}
        rows = zip(*columns.values(), strict=True)
        return PredictReply(predictions=[dict(zip(columns, row, strict=True)) for row in rows])

    return app


def main(arguments: list[str]) -> None:
    """Serves until a signal stops it."""
    export, port = arguments
    uvicorn.run(make_app(export), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])

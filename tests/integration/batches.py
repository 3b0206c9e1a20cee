"""Servers whose requests wait for one another, so that they share runs, and the figures of that."""

from collections.abc import Mapping
from typing import Any

from loadtest.measure.server_pages import Metrics, ServerPages
from serving import ModelServer

# One request thread, for which requests wait.
FLAGS: Mapping[str, object] = {
    "grpc_request_threads": 1,
    "grpc_max_threads": 1,
    "self_warmup_requests": 0,
}
CLIENT_COUNT = 16
# Much longer than the handling of a request, so that requests wait while others run.
RUN_SECONDS = 0.0005


def take_run_seconds() -> Any:
    """Returns the operations that make a run of a model take RUN_SECONDS."""
    import tensorflow as tf

    end = tf.timestamp() + RUN_SECONDS
    return tf.while_loop(
        lambda turn: tf.timestamp() < end,
        lambda turn: (turn + 1,),
        (tf.constant(0, tf.int64),),
    )


def scrape(server: ModelServer) -> Metrics:
    return ServerPages(server.url).metrics()


def answered_count(metrics: Metrics, model: str, version: int) -> float:
    """Returns the requests that the version answered with OK."""
    labels = {"model": model, "version": str(version)}
    return metrics.total("serving_requests_total", method="Predict", code="OK", **labels)

"""Servers whose requests wait for one another, so that they share runs, and the figures of that."""

from pathlib import Path
from typing import Any

from loadtest.measure.server_pages import Metrics, ServerPages
from serving import ModelServer
from tests.integration.conftest import StartServer
from tests.integration.exports import drop

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


def starter(start_server: StartServer, path: Path, base_path: Path) -> StartServer:
    """Returns a starter of servers with one request thread, for which requests wait."""
    drop(path, base_path, 1)

    def start(**flags: object) -> ModelServer:
        server = start_server(
            model_name="m",
            base_path=base_path,
            grpc_completion_queue_count=1,
            grpc_max_threads=1,
            self_warmup_requests=0,
            **flags,
        )
        server.wait_until_available("m", 1)
        return server

    return start


def scrape(server: ModelServer) -> Metrics:
    return ServerPages(server.url).metrics()


def answered_count(metrics: Metrics, version: int | None = None) -> float:
    """Returns the requests that were answered with OK."""
    labels = {} if version is None else {"version": str(version)}
    return metrics.total("serving_requests_total", method="Predict", code="OK", **labels)

"""Measures REST beside FastAPI around a `tf.function`, which is how the same model is served without a
model server.

Both servers run at the same time and get load in turn, so that disturbances of the machine affect
both.
"""

import http.client
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.rest_load import closed_loop_rate, rows_body, steady_load
from loadtest.drive.shell_server import free_port
from loadtest.measure.latency import figures
from serving.base.clock import NS_PER_SECOND, Clock, pause
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer

# The counts of requests, by rows: some seconds each.
_REQUEST_COUNTS = {1: 20_000, 100: 8_000}
_BASELINE_REQUEST_COUNTS = {1: 4_000, 100: 1_000}
# 6,000 requests: a p999 needs 5,000.
_ALONE_RATE, _ALONE_SECONDS = 300, 20
_READY_SECONDS = 120
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class RestFigure:
    """Medians over the rounds, for requests of `rows` rows, and latencies at 300 requests/s."""

    rows: int
    requests_per_second: float
    baseline_per_second: float
    latency: dict[str, Any]

    @property
    def ratio(self) -> float:
        """Requests per second, divided by those of FastAPI on the same cores."""
        return self.requests_per_second / self.baseline_per_second


def rest_figures(
    model: DemoModel, table_rows: int, round_count: int, clock: Clock, say: Callable[[str], None]
) -> list[RestFigure]:
    """Measures REST and the baseline. Raises FailedPrecondition without h2load, Unavailable."""
    rates: dict[tuple[int, bool], list[float]] = {}
    latencies: dict[int, list[int]] = {}
    bodies = {rows: rows_body(rows, table_rows, seed=1) for rows in _REQUEST_COUNTS}
    with ModelServer(model_name=MODEL_NAME, base_path=model.base_path) as server:
        server.wait_until_available(MODEL_NAME, 1)
        url = f"{server.url}/v1/models/{MODEL_NAME}:predict"
        with _baseline(model.base_path / "1", clock) as baseline_url:
            for number in range(1, round_count + 1):
                say(f"REST and FastAPI, round {number} of {round_count}")
                for rows, body in bodies.items():
                    of = closed_loop_rate(url, body, _REQUEST_COUNTS[rows])
                    rates.setdefault((rows, True), []).append(of)
                    of = closed_loop_rate(baseline_url, body, _BASELINE_REQUEST_COUNTS[rows])
                    rates.setdefault((rows, False), []).append(of)
        for rows, body in bodies.items():
            with steady_load(url, body, _ALONE_RATE, _ALONE_SECONDS, clock) as load:
                pass
            latencies[rows] = load.latencies_ns
    return [
        RestFigure(
            rows,
            statistics.median(rates[rows, True]),
            statistics.median(rates[rows, False]),
            figures(latencies[rows]),
        )
        for rows in bodies
    ]


@contextmanager
def _baseline(export: Path, clock: Clock) -> Iterator[str]:
    """Yields the URL of its Predict. Raises Unavailable if it does not listen in time."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtest.drive.rest_baseline", str(export), str(port)]
    )
    try:
        _wait_until_listening(port, clock)
        yield f"http://127.0.0.1:{port}/predict"
    finally:
        process.terminate()
        process.wait()


def _wait_until_listening(port: int, clock: Clock) -> None:
    deadline_ns = clock.now_ns() + _READY_SECONDS * NS_PER_SECOND
    while clock.now_ns() < deadline_ns:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/openapi.json")
            connection.getresponse().read()
        except OSError:
            pause(clock, _POLL_SECONDS)
        else:
            return
        finally:
            connection.close()
    raise Unavailable(f"the FastAPI server does not listen after {_READY_SECONDS} s; see above")

"""The server that `bench` measures: one of Millpond, or any other server of the PredictionService."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import grpc

from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.first_answer import wait_for_answer
from loadtest.drive.shell_server import ShellServer, filled_in, free_port
from loadtest.measure.h2load import Throughput, framed
from loadtest.measure.swaps import check_all_succeeded
from serving.base.clock import Clock
from serving.base.errors import Unavailable
from serving.server.model_server import ModelServer

_TIMEOUT_SECONDS = 120
# The pause between two tries to get a first answer, which is the error of the figure.
_TRY_SECONDS = 0.005


class BenchServer(Protocol):
    """A running server inside `with`."""

    @property
    def target(self) -> str:
        """`HOST:PORT`, for a gRPC channel."""
        ...

    def wait_for_answer(self, request: bytes) -> None:
        """Waits until a serialized PredictRequest is answered with OK. Raises Unavailable."""
        ...

    def check_answered(self, request: bytes, runs: Sequence[tuple[int, Throughput]]) -> None:
        """Raises Unavailable unless all requests were answered with OK. May stop the server.

        `runs` has, for each run, the count of all requests that were sent and h2load's figures, which do
        not show gRPC's status.
        """
        ...


BenchServers = Callable[[], AbstractContextManager[BenchServer]]
"""Starts another server of the same kind."""


class MillpondBenchServer:
    """A running ModelServer as a `BenchServer`."""

    def __init__(self, server: ModelServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    @property
    def target(self) -> str:
        return self._server.target

    def wait_for_answer(self, request: bytes) -> None:
        wait_for_answer(
            self.target,
            request,
            self._clock,
            timeout_seconds=_TIMEOUT_SECONDS,
            pause_seconds=_TRY_SECONDS,
        )

    def check_answered(self, request: bytes, runs: Sequence[tuple[int, Throughput]]) -> None:
        """See `BenchServer`; the version's own counts have the failures."""
        self._server.stop()
        # One more request than h2load's, because one was sent to wait for the server.
        check_all_succeeded(self._server.events(), 1 + sum(count for count, _ in runs))


class ForeignBenchServer:
    """A running ShellServer as a `BenchServer`."""

    def __init__(self, server: ShellServer) -> None:
        self._server = server

    @property
    def target(self) -> str:
        return self._server.target

    def wait_for_answer(self, request: bytes) -> None:
        self._server.wait_until_ready(request, _TRY_SECONDS)

    def check_answered(self, request: bytes, runs: Sequence[tuple[int, Throughput]]) -> None:
        """See `BenchServer`; a failure has no DATA, so the bytes of DATA have the answers."""
        with grpc.insecure_channel(self.target) as channel:
            predict: Callable[..., bytes] = channel.unary_unary(
                "/tensorflow.serving.PredictionService/Predict"
            )
            answer = predict(request, timeout=_TIMEOUT_SECONDS)
        for request_count, run in runs:
            check_data(request_count, len(framed(answer)), run.data_bytes)


def check_data(request_count: int, answer_bytes: int, data_bytes: int) -> None:
    """Raises Unavailable unless the bytes of DATA are those of the answers to all requests."""
    if data_bytes != request_count * answer_bytes:
        raise Unavailable(
            f"{request_count} requests got {data_bytes} bytes of DATA, but an answer has "
            f"{answer_bytes}: about {request_count - data_bytes // answer_bytes} failed"
        )


def bench_servers(model: DemoModel, command: str | None, clock: Clock) -> BenchServers:
    """Makes the function that starts servers of a shell command, or of Millpond if the command is None."""

    @contextmanager
    def millpond() -> Iterator[BenchServer]:
        with ModelServer(
            model_name=MODEL_NAME, base_path=model.base_path, file_system_poll_wait_seconds=0.1
        ) as server:
            yield MillpondBenchServer(server, clock)

    @contextmanager
    def foreign() -> Iterator[BenchServer]:
        assert command is not None
        port = free_port()
        filled = filled_in(command, port=port, model_name=MODEL_NAME, base_path=model.base_path)
        with (
            tempfile.TemporaryDirectory(prefix="millpond-bench-") as logs,
            ShellServer("command", filled, port, Path(logs, "log"), clock) as server,
        ):
            yield ForeignBenchServer(server)

    return millpond if command is None else foreign

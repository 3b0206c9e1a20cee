"""Clients that send requests over and over and check every answer."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import numpy as np
from typing_extensions import Self

from serving.base.clock import SystemClock, pause
from serving.base.protos import predict_pb2
from tests.integration.clients import array, caller_to, is_right, predict_request, wait_until
from tests.integration.exports import ScaleModel

Steady = TypeVar("Steady", bound="SteadyThreads")

Exchange = tuple[predict_pb2.PredictRequest, Callable[[Any], str]]
"""A request, and a function that returns the fault of an answer to it, or "" if it is right."""


# Two hundred requests per second and client: without a pause, the clients would take all cores.
_PAUSE_SECONDS = 0.004
_clock = SystemClock()


class SteadyThreads:
    """Threads that run until the end of `with`. A subclass has `run`, the work of a thread."""

    def __init__(self, count: int) -> None:
        self.answer_counts: Counter[int] = Counter()
        """The number of right answers by version."""
        self.failures: list[str] = []
        self.is_stopping = False
        self._threads = [
            threading.Thread(target=self.run, args=(number,), name=f"client-{number}")
            for number in range(count)
        ]

    def run(self, number: int) -> None:
        """Sends requests until `is_stopping`; counts the right answers and keeps the failures."""
        raise NotImplementedError

    def pause(self) -> None:
        """Leaves the cores to others for a moment. For `run`, before each request of a load that need not be dense."""
        pause(_clock, _PAUSE_SECONDS)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Sends requests until the end of `with`."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self.is_stopping = True
            for thread in self._threads:
                thread.join()

    def wait_for_answers_of(self, version: int, count: int = 1) -> None:
        """Waits for `count` more answers of `version`; fails at once after any wrong answer."""
        wanted = self.answer_counts[version] + count
        wait_until(
            lambda: self.answer_counts[version] >= wanted or self.failures,
            f"{count} more answers of version {version}",
        )
        assert not self.failures, self.failures[:3]


class SteadyClients(SteadyThreads):
    """Stock stubs: each of `exchanges` is the request of one client."""

    def __init__(self, target: str, exchanges: Sequence[Exchange]) -> None:
        super().__init__(len(exchanges))
        self._target = target
        self._exchanges = exchanges

    def run(self, number: int) -> None:
        request, fault = self._exchanges[number]
        with caller_to(self._target) as caller:
            while not self.is_stopping:
                self.pause()
                try:
                    response = caller.predict(request)
                except grpc.RpcError as error:
                    self.failures.append(str(error))
                    continue
                if found := fault(response):
                    self.failures.append(found)
                else:
                    self.answer_counts[response.model_spec.version.value] += 1


def scale_clients(target: str, name: str = "scale", count: int = 3) -> SteadyClients:
    """Returns clients of a `ScaleModel`. Each sends values of its own."""
    return SteadyClients(
        target,
        [
            scale_exchange(np.array([number, 1.0, -7.5], np.float32), name)
            for number in range(count)
        ],
    )


def scale_exchange(x: Any, name: str = "scale") -> Exchange:
    """Returns a request for `x` to a `ScaleModel`, and the check of its answer."""

    def fault(response: Any) -> str:
        version = response.model_spec.version.value
        is_of_version = array(response.outputs["version"]) == version
        if is_of_version and is_right(array(response.outputs["y"]), ScaleModel.answer(version, x)):
            return ""
        return f"wrong answer for version {version}: {response}"

    return predict_request(name, {"x": x}), fault

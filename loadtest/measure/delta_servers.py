"""The servers of a soak of deltas, one after the other, each with requests until its end."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

import numpy as np
from typing_extensions import Self

from loadtest.drive.delta_series import MODEL_NAME, Array, DeltaSeries
from loadtest.drive.generator import Generator
from loadtest.measure.process_memory import resident
from loadtest.plan.delta_load import has_same_bits
from loadtest.plan.plan import Outcome, Plan
from serving.base.clock import NS_PER_SECOND, Clock, pause
from serving.base.errors import Unavailable
from serving.base.tensor_proto import from_tensor_proto
from serving.client import Client
from serving.commands.ctr_request import predict_request
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.02
# Longer than the slowest answer of any swap.
_ANSWER_SECONDS = 30


@dataclass(frozen=True)
class ServerEnd:
    """The requests and the log of a server that has ended. `resident_bytes` were sampled after each delta."""

    outcome: Outcome
    events: Sequence[LogEvent]
    resident_bytes: Sequence[int]


@dataclass
class _Running:
    server: ModelServer
    generator: Generator
    client: Client
    stack: ExitStack
    resident_bytes: list[int] = field(default_factory=list)


class DeltaServers:
    """Serves the versions of `series` inside `with`, and sends the requests of `plan` to the server.

    `make_server` makes a server that is not started. `ends` has the servers that have ended. `faults` says which
    whole answers were wrong: those to all ids, which are compared when a version begins to serve.
    """

    def __init__(
        self,
        series: DeltaSeries,
        make_server: Callable[[], ModelServer],
        plan: Plan,
        clock: Clock,
        tensorflow_each: int,
    ) -> None:
        self.ends: list[ServerEnd] = []
        self.faults: list[str] = []
        self.available_seconds: list[float] = []
        self.compared_count = 0
        self.compared_with_tensorflow_count = 0
        self._series = series
        self._make_server = make_server
        self._plan = plan
        self._clock = clock
        self._tensorflow_each = tensorflow_each
        self._all_ids = np.arange(series.row_count)
        self._running: _Running | None = None

    def __enter__(self) -> Self:
        self._running = self._started(self._series.newest)
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is None:
            self._end(self._now())
        elif self._running is not None:
            self._running.stack.__exit__(exception_type, exception, traceback)

    @property
    def admin_target(self) -> str:
        """The address of the present server's admin listener."""
        return self._now().server.admin_target

    def wait_for(self, version: int) -> None:
        """Waits until the newest sound version answers, and compares its answer to all ids."""
        published_ns = self._clock.now_ns()
        self._wait_for_event("version_available", version)
        self.available_seconds.append((self._clock.now_ns() - published_ns) / NS_PER_SECOND)
        self._compare(self.wait_for_answer_of(version), version)
        memory = resident(self._now().server.process_id, self._clock)
        if memory is None:
            raise Unavailable("the server ended")
        self._now().resident_bytes.append(memory.anonymous_bytes)

    def wait_for_failure(self, version: int) -> None:
        """Waits until the load of a version has failed."""
        self._wait_for_event("load_failed", version)

    def wait_for_answer_of(self, version: int) -> Array:
        """Waits until requests are answered by a version, and returns its answer to all ids."""
        request = predict_request(MODEL_NAME, {"ids": self._all_ids})
        deadline_ns = self._clock.now_ns() + round(_TIMEOUT_SECONDS * NS_PER_SECOND)
        while self._clock.now_ns() < deadline_ns:
            response = self._now().client.predict_message(request, timeout_seconds=_ANSWER_SECONDS)
            if response.model_spec.version.value == version:
                return from_tensor_proto(response.outputs["y"])
            pause(self._clock, _POLL_SECONDS)
        raise Unavailable(f"version {version} does not answer after {_TIMEOUT_SECONDS} s")

    def take_over(self, version: int) -> None:
        """Starts another server, moves the requests to it once it has `version`, and stops the one before."""
        before = self._now()
        self._running = self._started(version)
        self._end(before)
        self._compare(self.wait_for_answer_of(version), version)

    def _compare(self, answer: Array, version: int) -> None:
        self.compared_count += 1
        if not has_same_bits(answer, self._series.answer(self._all_ids)):
            self.faults.append(f"version {version}: wrong answer to all ids")
        if version % self._tensorflow_each == 0:
            self.compared_with_tensorflow_count += 1
            if not has_same_bits(answer, self._series.answer_of_tensorflow(version)):
                self.faults.append(f"version {version}: another answer than TensorFlow's")

    def _started(self, version: int) -> _Running:
        with ExitStack() as stack:
            server = stack.enter_context(self._make_server())
            server.wait_until_available(MODEL_NAME, version, _TIMEOUT_SECONDS)
            client = stack.enter_context(Client(server.target))
            generator = stack.enter_context(Generator(self._plan, server.target))
            return _Running(server, generator, client, stack.pop_all())

    def _end(self, running: _Running) -> None:
        with running.stack:
            outcome = running.generator.stop()
            running.server.stop()
            events = running.server.events()
        self.ends.append(ServerEnd(outcome, events, running.resident_bytes))

    def _now(self) -> _Running:
        if self._running is None:
            raise Unavailable("no server runs: use `with`")
        return self._running

    def _wait_for_event(self, name: str, version: int) -> None:
        self._now().server.wait_for_event(
            partial(_is_event, name=name, version=version), _TIMEOUT_SECONDS
        )


def _is_event(event: LogEvent, name: str, version: int) -> bool:
    return event["event"] == name and event.get("version") == version


def resident_mb(ends: Sequence[ServerEnd]) -> Sequence[Sequence[float]]:
    """The anonymous memory of each server in MB after its deltas: first, median, highest and last. Pure."""
    return [
        [
            value / 1e6
            for value in (
                end.resident_bytes[0],
                statistics.median(end.resident_bytes),
                max(end.resident_bytes),
                end.resident_bytes[-1],
            )
        ]
        for end in ends
        if end.resident_bytes
    ]

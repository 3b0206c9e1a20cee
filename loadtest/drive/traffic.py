"""The demo's clients: send requests at a constant rate in the background and check each answer.

They are Python threads with a stock stub, enough for a few hundred requests a second. Measurements
of tails use the native generator.
"""

import gc
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Unavailable


@dataclass(frozen=True)
class Answer:
    """The answer to one request: the version that answered, and if it was right."""

    version: int
    is_right: bool


@dataclass(frozen=True)
class Outcome:
    """One request. If it failed, `answer` is None and `error` has the reason."""

    scheduled_ns: int
    completed_ns: int
    answer: Answer | None
    error: str = ""

    @property
    def latency_ns(self) -> int:
        """The latency from its due time, so that a stalled client does not hide a slow server."""
        return self.completed_ns - self.scheduled_ns


Send = Callable[[int], Answer]
"""Sends request number n and waits for its answer; any exception makes it a failed request."""


class Traffic:
    """Calls `send` `rate_per_second` times a second from `thread_count` threads, inside `with`.

    A request is due at its own time, even if earlier requests are not answered yet. If no thread is free,
    it is sent late, and the wait counts as latency. The garbage collector leaves out the objects that exist
    before, because with TensorFlow and Ray a full collection holds all threads for 0.16 s, which would
    count as latency of the server.
    """

    def __init__(
        self, send: Send, *, rate_per_second: float, thread_count: int, clock: Clock
    ) -> None:
        self._send = send
        self._interval_ns = round(NS_PER_SECOND / rate_per_second)
        self._clock = clock
        self._changed = threading.Condition()
        self._outcomes: list[Outcome] = []
        self._numbers = itertools.count()
        self._started_ns = 0
        self._is_stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"traffic-{i}", daemon=True)
            for i in range(thread_count)
        ]

    def __enter__(self) -> "Traffic":
        gc.collect()
        gc.freeze()
        self._started_ns = self._clock.now_ns()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        gc.unfreeze()

    def outcomes(self) -> Sequence[Outcome]:
        """The requests completed until now, in the order of their completion."""
        with self._changed:
            return tuple(self._outcomes)

    def wait_for_answer_from(self, version: int, timeout_seconds: float) -> None:
        """Waits for an answer of `version` to a request completed from now on. Raises
        Unavailable.
        """
        seen_count = len(self.outcomes())

        def is_answered() -> bool:
            new = self._outcomes[seen_count:]
            return any(o.answer is not None and o.answer.version == version for o in new)

        self._wait_for(is_answered, f"an answer of version {version}", timeout_seconds)

    def wait_for_count(self, request_count: int, timeout_seconds: float) -> None:
        """Waits until `request_count` requests are completed in all. Raises Unavailable."""
        self._wait_for(
            lambda: len(self._outcomes) >= request_count,
            f"{request_count} completed requests",
            timeout_seconds,
        )

    def _wait_for(self, is_there: Callable[[], bool], what: str, timeout_seconds: float) -> None:
        deadline_ns = self._clock.now_ns() + round(timeout_seconds * NS_PER_SECOND)
        with self._changed:
            while not is_there():
                left_seconds = (deadline_ns - self._clock.now_ns()) / NS_PER_SECOND
                if left_seconds <= 0:
                    raise Unavailable(
                        f"waited {timeout_seconds} s for {what}; {len(self._outcomes)} requests "
                        f"were completed, the last one {self._outcomes[-1:]}"
                    )
                self._clock.wait(self._changed, left_seconds)

    def _run(self) -> None:
        while (scheduled_ns := self._wait_until_due(number := self._next_number())) is not None:
            outcome = self._outcome(number, scheduled_ns)
            with self._changed:
                self._outcomes.append(outcome)
                self._changed.notify_all()

    def _next_number(self) -> int:
        with self._changed:
            return next(self._numbers)

    def _wait_until_due(self, number: int) -> int | None:
        """Waits for the scheduled time of request `number` and returns it; returns None to stop."""
        scheduled_ns = self._started_ns + number * self._interval_ns
        with self._changed:
            while not self._is_stopping:
                left_ns = scheduled_ns - self._clock.now_ns()
                if left_ns <= 0:
                    return scheduled_ns
                self._clock.wait(self._changed, left_ns / NS_PER_SECOND)
        return None

    def _outcome(self, number: int, scheduled_ns: int) -> Outcome:
        try:
            answer = self._send(number)
        except Exception as error:  # noqa: BLE001 - whatever it was, the request has failed
            return Outcome(scheduled_ns, self._clock.now_ns(), None, str(error))
        return Outcome(scheduled_ns, self._clock.now_ns(), answer)

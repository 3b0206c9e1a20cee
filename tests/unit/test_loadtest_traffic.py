import threading
from collections.abc import Callable, Sequence

import pytest

from loadtest.drive.traffic import Answer, Outcome, Traffic
from serving.base.clock import NS_PER_SECOND, Clock, SystemClock
from serving.base.errors import Unavailable


class ImpatientClock:
    """A clock that ends every wait at once and advances by its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ns = 0

    def now_ns(self) -> int:
        with self._lock:
            return self._ns

    def wall_ns(self) -> int:
        return self.now_ns()

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        assert timeout_seconds is not None
        with self._lock:
            self._ns += round(timeout_seconds * NS_PER_SECOND)
        return False


def traffic_of(send: Callable[[int], Answer], *, thread_count: int = 1) -> Traffic:
    return Traffic(send, rate_per_second=10_000, thread_count=thread_count, clock=SystemClock())


def test_traffic_sends_in_turn_and_keeps_every_answer():
    with traffic_of(lambda number: Answer(number, is_right=number != 1)) as traffic:
        traffic.wait_for_count(3, timeout_seconds=10)
    answers = [outcome.answer for outcome in traffic.outcomes()[:3]]
    assert answers == [Answer(0, True), Answer(1, False), Answer(2, True)]


def test_traffic_failed_request_keeps_its_error():
    def fail(number: int) -> Answer:
        raise ValueError("no route")

    with traffic_of(fail, thread_count=2) as traffic:
        traffic.wait_for_count(5, timeout_seconds=10)
    assert {(o.answer, o.error) for o in traffic.outcomes()} == {(None, "no route")}


def test_traffic_wait_for_answer_counts_from_now_on():
    is_new = threading.Event()
    with traffic_of(lambda number: Answer(2 if is_new.is_set() else 1, True)) as traffic:
        traffic.wait_for_answer_from(1, timeout_seconds=10)
        is_new.set()
        traffic.wait_for_answer_from(2, timeout_seconds=10)
    versions = [o.answer.version for o in traffic.outcomes() if o.answer]
    assert versions == sorted(versions)


def test_traffic_wait_without_answer_times_out():
    traffic = Traffic(
        lambda number: Answer(1, True), rate_per_second=1, thread_count=0, clock=ImpatientClock()
    )
    with traffic, pytest.raises(Unavailable, match="waited 3 s for an answer of version 2"):
        traffic.wait_for_answer_from(2, timeout_seconds=3)


def outcomes_of_first(
    request_count: int, send: Callable[[int], Answer], *, rate_per_second: float, clock: Clock
) -> Sequence[Outcome]:
    """Runs one thread until it has completed `request_count` requests."""
    is_enough = threading.Event()

    def counted_send(number: int) -> Answer:
        if number == request_count:
            is_enough.set()
        return send(number)

    with Traffic(
        counted_send, rate_per_second=rate_per_second, thread_count=1, clock=clock
    ) as traffic:
        assert is_enough.wait(10)
    return traffic.outcomes()[:request_count]


def test_traffic_requests_are_scheduled_at_the_rate():
    outcomes = outcomes_of_first(
        4, lambda number: Answer(1, True), rate_per_second=4, clock=ImpatientClock()
    )
    assert [o.scheduled_ns / NS_PER_SECOND for o in outcomes] == [0, 0.25, 0.5, 0.75]


def test_traffic_latency_counts_from_due_time():
    clock = ImpatientClock()

    def slow(number: int) -> Answer:
        clock.wait(threading.Condition(), 1.0)
        return Answer(1, True)

    outcomes = outcomes_of_first(3, slow, rate_per_second=2, clock=clock)
    # Each takes 1 s and one is due every 0.5 s: the second goes out 0.5 s late, the third 1 s.
    assert [o.latency_ns / NS_PER_SECOND for o in outcomes] == [1.0, 1.5, 2.0]

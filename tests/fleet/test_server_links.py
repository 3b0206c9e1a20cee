import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleet.lead.server_links import PROMPT_SECONDS, WAIT_ROUNDS_MAX, ServerLinks
from fleet.rollout.reports import Grant, ServerReport
from serving.base.errors import StatusCode, Unavailable, from_status
from tests.unit.fakes.clocks import FakeClock

EMPTY = {"incarnation": 1, "is_draining": False, "free_bytes": 0, "models": {}}
WAIT_SECONDS = 20


class FakeClient:
    """A server that answers, fails, or holds its calls.

    While `may_answer` is clear, a call with a short deadline ends with it at once, and one with a
    long deadline waits for the test. While `may_begin` is clear, each call waits for the test.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.grants: list[tuple[str, int | None, int]] = []
        self.report_count = 0
        self.is_down = False
        self.answer_seconds = 0.0
        self.granted: int | None = None
        self.may_begin, self.may_answer = threading.Event(), threading.Event()
        self.may_begin.set()
        self.may_answer.set()
        self.has_begun, self.is_held = threading.Event(), threading.Event()
        self.is_closed = False

    def fleet_report(
        self, latency_edges_ns: Sequence[int], *, timeout_seconds: float = 10
    ) -> dict[str, Any]:
        self.report_count += 1
        self._answer(timeout_seconds)
        return EMPTY

    def grant(
        self, name: str, version: int | None, order: int, *, timeout_seconds: float = 10
    ) -> int | None:
        self._answer(timeout_seconds)
        self.grants.append((name, version, order))
        return version if self.granted is None else self.granted

    def close(self) -> None:
        self.is_closed = True

    def _answer(self, timeout_seconds: float) -> None:
        self.has_begun.set()
        if self.is_down:
            self.clock.advance(self.answer_seconds)
            raise Unavailable("no server answers")
        assert self.may_begin.wait(WAIT_SECONDS)
        is_late = self.answer_seconds > timeout_seconds
        if not self.may_answer.is_set() and timeout_seconds > PROMPT_SECONDS:
            self.is_held.set()
            assert self.may_answer.wait(WAIT_SECONDS)
        elif is_late or not self.may_answer.is_set():
            raise from_status(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self.clock.advance(self.answer_seconds)


class World:
    """Servers that are fake, and the links to them."""

    def __init__(self, names: str = "a", thread_count: int = 2) -> None:
        self.clock = FakeClock()
        self.clients = {name: FakeClient(self.clock) for name in names}
        self.received: list[str] = []
        self.connected: list[str] = []
        self.may_send = True
        self.changed = threading.Condition()
        self.links = ServerLinks(
            connect=self.connect,
            receive=self.receive,
            thread_count=thread_count,
            may_send=lambda: self.may_send,
            expects_end=lambda server: False,
            clock=self.clock,
        )
        self.links.set_targets({name: f"{name}:1" for name in names})

    @property
    def client(self) -> FakeClient:
        return self.clients["a"]

    def connect(self, target: str) -> FakeClient:
        self.connected.append(target)
        return self.clients[target.partition(":")[0]]

    def receive(self, name: str, target: str, report: ServerReport) -> None:
        assert target.startswith(name)
        del report
        with self.changed:
            self.received.append(name)
            self.changed.notify_all()

    def wait_for(self, is_so: Callable[[], bool]) -> bool:
        """Waits until `is_so`, which a report makes true."""
        with self.changed:
            return self.changed.wait_for(is_so, WAIT_SECONDS)

    def end(self) -> None:
        """Waits for the calls under way. No further call is possible."""
        for pools in (self.links._prompt, self.links._patient):
            for pool in pools.values():
                pool.shutdown()

    def settle(self) -> None:
        """Waits for the calls under way. None of them may be held."""
        for pools in (self.links._prompt, self.links._patient):
            for pool in pools.values():
                # Passed when each thread of the pool has ended the call that it had.
                barrier = threading.Barrier(pool._max_workers + 1)
                for _ in range(pool._max_workers):
                    pool.submit(barrier.wait, WAIT_SECONDS)
                barrier.wait(WAIT_SECONDS)

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *exception: object) -> None:
        for client in self.clients.values():
            client.may_begin.set()
            client.may_answer.set()
        self.links.stop()


def test_poll_passes_the_report_on() -> None:
    with World() as world:
        world.links.poll()
        world.end()
        assert world.received == ["a"]


def test_grant_is_followed_by_a_report() -> None:
    with World() as world:
        world.links.send([Grant("a", "m", 7, 3)])
        world.end()
        assert world.client.grants == [("m", 7, 3)]
        assert len(world.received) == 1


def test_server_is_connected_once_and_closed() -> None:
    with World() as world:
        world.links.poll()
        world.links.send([Grant("a", "m", 7, 3)])
        world.end()
        world.links.stop()
        assert world.connected == ["a:1"]
        assert world.client.is_closed


def test_slow_server_is_asked_once_at_a_time() -> None:
    with World() as world:
        world.client.may_begin.clear()
        world.links.poll()
        assert world.client.has_begun.wait(WAIT_SECONDS)
        world.links.poll()
        world.client.may_begin.set()
        world.end()
        assert len(world.received) == 1


def test_server_that_is_down_gives_no_report() -> None:
    with World() as world, capture_logs() as logs:
        world.client.is_down = True
        world.links.poll()
        world.settle()
        world.links.poll()
        world.end()
        assert world.received == []
        assert [line["event"] for line in logs] == ["fleet_server_unreachable"]


def test_grant_of_a_lost_lead_is_not_sent() -> None:
    with World() as world:
        world.may_send = False
        world.links.send([Grant("a", "m", 7, 3)])
        world.end()
        assert world.client.grants == []


def test_server_that_left_is_closed_and_not_asked() -> None:
    with World() as world:
        world.links.poll()
        assert world.wait_for(lambda: len(world.received) == 1)
        world.links.set_targets({})
        assert world.client.is_closed
        world.links.send([Grant("a", "m", 7, 3)])
        world.end()
        assert world.client.grants == []


def test_server_with_a_new_address_is_connected_again() -> None:
    with World() as world:
        world.links.send([Grant("a", "m", 7, 3)])
        world.links.set_targets({"a": "a:2"})
        world.links.send([Grant("a", "n", 7, 3)])
        world.end()
        assert world.connected[-1] == "a:2"


def test_grant_that_waits_is_not_for_the_next_server() -> None:
    with World("ab", thread_count=1) as world:
        world.clients["b"].may_begin.clear()
        world.links.send([Grant("b", "m", 7, 3)])
        assert world.clients["b"].has_begun.wait(WAIT_SECONDS)
        world.links.send([Grant("a", "m", 7, 3)])
        world.links.set_targets({"a": "a:2", "b": "b:1"})
        world.clients["b"].may_begin.set()
        world.end()
        assert world.clients["a"].grants == []
        assert world.clients["b"].grants == [("m", 7, 3)]


def hang(world: World, names: str) -> None:
    for name in names:
        world.clients[name].may_answer.clear()


def counts(world: World, names: str) -> Mapping[str, int]:
    return {name: world.received.count(name) for name in names}


def is_over(world: World, names: str, wanted: Mapping[str, int]) -> bool:
    """Returns True once each of `names` has reported as often, and its calls have ended."""
    running = {key.server for key in [*world.links._running]}
    return counts(world, names) == wanted and not running & {*names}


def test_hung_servers_leave_the_others_polled() -> None:
    with World("abcdefgh") as world:
        hang(world, "abcdef")
        for round_ in range(1, 12):
            world.links.poll()
            full = dict.fromkeys("gh", round_)
            assert world.wait_for(lambda full=full: is_over(world, "gh", full))  # type: ignore[misc]
        # A thread of theirs waits for one of those that hang.
        assert world.wait_for(
            lambda: any(world.clients[name].is_held.is_set() for name in "abcdef")
        )


def test_grant_does_not_wait_for_reports() -> None:
    with World("abc") as world:
        for name in "ab":
            world.clients[name].may_begin.clear()
        world.links.poll()
        assert all(world.clients[name].has_begun.wait(WAIT_SECONDS) for name in "ab")
        world.links.send([Grant("c", "m", 7, 3)])
        assert world.wait_for(lambda: "c" in world.received)
        assert world.clients["c"].grants == [("m", 7, 3)]


def test_hung_servers_leave_the_others_granted() -> None:
    with World("abcdefgh") as world:
        hang(world, "abcdef")
        for order in range(1, 12):
            world.links.send([Grant(name, "m", 7, order) for name in world.clients])
            sent = [("m", 7, number) for number in range(1, order + 1)]
            full = dict.fromkeys("gh", order)
            assert world.wait_for(lambda full=full: is_over(world, "gh", full))  # type: ignore[misc]
            assert world.clients["g"].grants == world.clients["h"].grants == sent


def test_server_that_recovers_is_prompt_again() -> None:
    with World("ab", thread_count=1) as world:
        hang(world, "a")
        world.links.poll()
        world.settle()
        world.links.poll()
        assert world.client.is_held.wait(WAIT_SECONDS)
        world.client.may_answer.set()
        assert world.wait_for(lambda: "a" in world.received)
        world.settle()
        # The slow threads are taken, and it needs them no more.
        blocked = threading.Event()
        world.links._patient["report"].submit(blocked.wait, WAIT_SECONDS)
        world.links.poll()
        assert world.wait_for(lambda: world.received.count("a") == 2)
        blocked.set()


def test_server_that_is_slow_stays_with_the_slow() -> None:
    with World("a") as world, capture_logs() as logs:
        world.client.answer_seconds = 2 * PROMPT_SECONDS
        for _ in range(4):
            world.links.poll()
            world.settle()
        world.end()
        # The first call is late. Each later one succeeds, and none is made twice.
        assert (world.client.report_count, len(world.received)) == (4, 3)
        assert logs == []


def test_late_call_is_no_failure_yet() -> None:
    with World("a") as world, capture_logs() as logs:
        # A client may have another error for a deadline.
        world.client.is_down, world.client.answer_seconds = True, PROMPT_SECONDS
        world.links.poll()
        world.settle()
        assert logs == []
        world.links.poll()
        world.settle()
        assert [line["event"] for line in logs] == ["fleet_server_unreachable"]


def test_server_that_is_down_is_asked_less_often() -> None:
    with World("a") as world:
        world.client.is_down = True
        asked = []
        for round_ in range(1, 17):
            before = world.client.report_count
            world.links.poll()
            world.settle()
            if world.client.report_count > before:
                asked.append(round_)
        assert asked == [1, 2, 4, 8, 12, 16]
        assert asked[-1] - asked[-2] == WAIT_ROUNDS_MAX


def test_waiting_grant_gives_way_to_a_later_one() -> None:
    with World("ab", thread_count=1) as world:
        world.clients["a"].may_begin.clear()
        world.links.send([Grant("a", "m", 8, 5), Grant("b", "m", 8, 5)])
        assert world.clients["a"].has_begun.wait(WAIT_SECONDS)
        world.links.send([Grant("b", "m", 7, 6)])
        world.clients["a"].may_begin.set()
        world.end()
        assert world.clients["b"].grants == [("m", 7, 6)]


def test_ignored_grant_is_logged_once() -> None:
    with World("a") as world, capture_logs() as logs:
        world.client.granted = 9
        for order in (3, 4):
            world.links.send([Grant("a", "m", 7, order)])
            assert world.wait_for(lambda order=order: len(world.received) == order - 2)  # type: ignore[misc]
            world.settle()
        (line,) = logs
        assert line["event"] == "fleet_grant_ignored"
        assert (line["server"], line["version"], line["granted"]) == ("a", 7, 9)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("no socket")])
def test_call_that_raises_ends_no_thread(error: Exception) -> None:
    with World("a", thread_count=1) as world:

        def fail(*arguments: object, **values: object) -> dict[str, Any]:
            raise error

        world.client.fleet_report = fail  # type: ignore[method-assign]
        world.links.poll()
        world.settle()
        del world.client.fleet_report
        world.links.poll()
        world.end()
        assert world.received == ["a"]

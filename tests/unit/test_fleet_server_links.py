import threading
from collections.abc import Sequence
from typing import Any

from serving.base.errors import Unavailable
from serving.fleet.reports import Grant, ServerReport
from serving.fleet.server_links import ServerLinks

EMPTY = {"incarnation": 1, "is_draining": False, "free_bytes": 0, "models": {}}


class FakeClient:
    """A server that answers, fails, or holds its calls."""

    def __init__(self) -> None:
        self.grants: list[tuple[str, int | None, int]] = []
        self.is_down = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.has_begun = threading.Event()
        self.is_closed = False

    def fleet_report(
        self, latency_edges_ns: Sequence[int], *, timeout_seconds: float = 10
    ) -> dict[str, Any]:
        self.has_begun.set()
        self.may_answer.wait()
        if self.is_down:
            raise Unavailable("no server answers")
        return EMPTY

    def grant(
        self, name: str, version: int | None, order: int, *, timeout_seconds: float = 10
    ) -> int | None:
        self.grants.append((name, version, order))
        return version

    def close(self) -> None:
        self.is_closed = True


class World:
    def __init__(self) -> None:
        self.client = FakeClient()
        self.received: list[tuple[str, ServerReport]] = []
        self.connected: list[str] = []
        self.may_send = True
        self.links = ServerLinks(
            connect=self.connect,
            receive=lambda name, report: self.received.append((name, report)),
            thread_count=2,
            may_send=lambda: self.may_send,
        )
        self.links.set_targets({"a": "h:1"})

    def connect(self, target: str) -> FakeClient:
        self.connected.append(target)
        return self.client


def test_poll_passes_the_report_on() -> None:
    world = World()
    world.links.poll()
    world.links._executor.shutdown()
    assert [name for name, _ in world.received] == ["a"]


def test_grant_is_followed_by_a_report() -> None:
    world = World()
    world.links.send([Grant("a", "m", 7, 3)])
    world.links._executor.shutdown()
    assert world.client.grants == [("m", 7, 3)]
    assert len(world.received) == 1


def test_server_is_connected_once_and_closed() -> None:
    world = World()
    world.links.poll()
    world.client.has_begun.wait(5)
    world.links.send([Grant("a", "m", 7, 3)])
    world.links.stop()
    assert world.connected == ["h:1"]
    assert world.client.is_closed


def test_slow_server_is_asked_once_at_a_time() -> None:
    world = World()
    world.client.may_answer.clear()
    world.links.poll()
    assert world.client.has_begun.wait(5)
    world.links.poll()
    world.client.may_answer.set()
    world.links._executor.shutdown()
    assert len(world.received) == 1


def test_server_that_is_down_gives_no_report() -> None:
    world = World()
    world.client.is_down = True
    world.links.poll()
    world.links._executor.shutdown()
    assert world.received == []
    assert world.links._failing == {("a", "report")}


def test_grant_of_a_lost_lead_is_not_sent() -> None:
    world = World()
    world.may_send = False
    world.links.send([Grant("a", "m", 7, 3)])
    world.links._executor.shutdown()
    assert world.client.grants == []


def test_server_that_left_is_closed_and_not_asked() -> None:
    world = World()
    world.links.poll()
    assert world.client.has_begun.wait(5)
    world.links.set_targets({})
    assert world.client.is_closed
    world.links.send([Grant("a", "m", 7, 3)])
    world.links._executor.shutdown()
    assert world.client.grants == []


def test_server_with_a_new_address_is_connected_again() -> None:
    world = World()
    world.links.send([Grant("a", "m", 7, 3)])
    world.links.set_targets({"a": "h:2"})
    world.links.send([Grant("a", "n", 7, 3)])
    world.links._executor.shutdown()
    assert world.connected[-1] == "h:2"

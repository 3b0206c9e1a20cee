"""Watch: it looks at its items while there are any, and not afterwards."""

import threading
from collections.abc import Mapping

from serving.base.clock import SystemClock
from serving.base.periodic_thread import Watch
from tests.unit.fakes.clocks import FakeClock


def test_watch_looks_only_at_watched_items() -> None:
    seen: list[dict[str, int]] = []
    watch = Watch[str, int](
        "watch", lambda items: seen.append(dict(items)), period_seconds=1, clock=FakeClock()
    )
    with watch.watching("a", 1):
        watch.look_now()
        with watch.watching("b", 2):
            watch.look_now()
    watch.look_now()
    assert seen == [{"a": 1}, {"a": 1, "b": 2}, {}]


def test_an_item_is_let_go_when_the_body_raises() -> None:
    seen: list[int] = []
    watch = Watch[str, int](
        "watch", lambda items: seen.append(len(items)), period_seconds=1, clock=FakeClock()
    )
    try:
        with watch.watching("a", 1):
            raise KeyError("a")
    except KeyError:
        watch.look_now()
    assert seen == [0]


def test_removed_item_is_returned_once() -> None:
    watch = Watch[str, int]("watch", lambda items: None, period_seconds=1, clock=FakeClock())
    watch.add("a", 1)
    assert [watch.remove("a"), watch.remove("a")] == [1, None]


def test_the_thread_looks_by_itself_and_ends_at_stop() -> None:
    has_looked = threading.Event()

    def look(items: Mapping[str, int]) -> None:
        if items:
            has_looked.set()

    watch = Watch[str, int]("test-watch", look, period_seconds=60, clock=SystemClock())
    watch.start()
    with watch.watching("a", 1):
        assert has_looked.wait(10)
    watch.stop()
    assert "test-watch" not in {thread.name for thread in threading.enumerate()}


def test_stop_without_start_returns() -> None:
    Watch[str, int]("watch", lambda items: None, period_seconds=1, clock=SystemClock()).stop()


def test_item_beside_others_waits_for_its_turn() -> None:
    looks: list[int] = []
    has_looked = threading.Event()

    def look(items: Mapping[str, int]) -> None:
        looks.append(len(items))
        has_looked.set()

    watch = Watch[str, int]("test-watch", look, period_seconds=3_600, clock=SystemClock())
    watch.start()
    with watch.watching("a", 1):
        assert has_looked.wait(60)
        for _ in range(100):
            watch.add("a", 1)
            watch.add("b", 2)
    watch.stop()
    # One look at the first item, and one as the thread ends.
    assert len(looks) <= 2

"""Terms of coordinators that are stopped, or late, at any call to the store of the cluster."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from tests.unit.fakes.clocks import FakeClock

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from fleet.ray.key_value_store import Deposed, StoredTerm, StoredText
from tests.fleet.fakes.ray_store import FakeStore

WRITES = 3


class Killed(BaseException):
    """Ends a coordinator at a call, as SIGKILL does."""


class TurnStore(FakeStore):
    """A store of one coordinator, which waits for its turn at each call."""

    def __init__(self, values: dict[str, str], turn: Callable[[], None]) -> None:
        super().__init__(values)
        self._turn = turn

    def call(self) -> None:
        self._turn()


class Racer:
    """A coordinator on a thread of its own, which goes on by one call to the store in each turn.

    It takes the state over, and adds its writes to it. `acted` gets the order and the state of each write
    that it would act on.
    """

    def __init__(self, name: int, values: dict[str, str], acted: "list[Act]") -> None:
        self._name = name
        self._acted = acted
        self._is_killed = False
        self._may_go, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._store: Any = TurnStore(values, self._wait)
        self.is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._has_stopped.acquire()

    def go(self) -> None:
        if not self.is_over:
            self._may_go.release()
            self._has_stopped.acquire()

    def kill(self) -> None:
        self._is_killed = True
        self.go()
        self._thread.join()

    def _wait(self) -> None:
        self._has_stopped.release()
        self._may_go.acquire()
        if self._is_killed:
            raise Killed

    def _run(self) -> None:
        try:
            self._lead()
        except (Deposed, Killed):
            pass
        finally:
            self.is_over = True
            self._has_stopped.release()

    def _lead(self) -> None:
        term = StoredTerm(self._store, FakeClock())
        text = StoredText(self._store, term, "state")
        rows = json.loads(text.read() or "[]")
        order = term.order_min
        for count in range(WRITES):
            rows = [*rows, [self._name, count]]
            text.write(json.dumps(rows))
            self._acted.append((term.number, order + count, rows))


Act = tuple[int, int, list[list[int]]]


def run(schedule: list[int], racers: int) -> list[Act]:
    """Gives turns to coordinators in the order of the schedule, and kills them then."""
    acted: list[Act] = []
    values: dict[str, str] = {}
    made = [Racer(name, values, acted) for name in range(racers)]
    for name in schedule:
        made[name].go()
    for racer in made:
        racer.kill()
    return acted


def check(acted: list[Act]) -> None:
    """Each decision that was acted on is in all later ones, and has the highest order until then."""
    for (term, order, rows), (later_term, later_order, later_rows) in zip(
        acted, acted[1:], strict=False
    ):
        assert later_term >= term
        assert later_order > order
        assert later_rows[: len(rows)] == rows


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=150))
def test_decisions_of_terms_form_one_line(schedule: list[int]) -> None:
    check(run(schedule, 5))


def turns_alone() -> int:
    """Returns the calls of a coordinator that nobody disturbs."""
    count = 0
    while len(run([0] * count, 1)) < WRITES:
        count += 1
    return count


@pytest.mark.parametrize("late", [1, 3])
def test_second_term_at_any_call_ends_the_first(late: int) -> None:
    whole = turns_alone() + 10
    for first in range(whole):
        for second in range(whole):
            # The first one stops after `first` calls, the second after `second`, and both go on.
            schedule = [0] * first + [1] * second + [0] * late + [1] * whole + [0] * whole
            acted = run(schedule, 2)
            check(acted)
            assert len({term for term, _, _ in acted}) <= 2


def test_coordinator_alone_acts() -> None:
    acted = run([0] * 50, 1)
    assert [order for _, order, _ in acted] == [(1 << 28) + count for count in range(WRITES)]


def test_term_starts_above_those_of_a_lost_store() -> None:
    store: Any = FakeStore()
    assert StoredTerm(store, FakeClock(), 1_700_000_000).number == 1_700_000_000
    assert StoredTerm(store, FakeClock(), 5).number == 1_700_000_001


@given(st.lists(st.sampled_from(["begin", "begin", "delete_terms", "delete_all"]), max_size=30))
def test_one_term_is_valid_after_keys_are_deleted(events: list[str]) -> None:
    store: Any = FakeStore()
    clock = FakeClock()
    begun: list[StoredTerm] = []
    over: set[int] = set()
    for event in events:
        clock.advance(1)
        if event == "begin":
            begun.append(StoredTerm(store, clock, clock.wall_ns() // NS_PER_SECOND))
            assert all(begun[-1].number > term.number for term in begun[:-1])
        else:
            gone = [key for key in store.values if event == "delete_all" or key.startswith("term/")]
            for key in gone:
                del store.values[key]
        valid = {index for index, term in enumerate(begun) if term.is_valid()}
        assert len(valid) <= 1
        assert not valid & over
        over |= {*range(len(begun))} - valid


def test_term_that_comes_again_is_not_that_of_before() -> None:
    store: Any = FakeStore()
    clock = FakeClock()
    first = StoredTerm(store, clock)
    store.values.clear()
    second = StoredTerm(store, clock)
    assert second.number == first.number
    with pytest.raises(Deposed, match="deleted"):
        first.check()
    second.check()


def test_validity_is_looked_up_once_a_second() -> None:
    store: Any = FakeStore()
    clock = FakeClock()
    term = StoredTerm(store, clock)
    StoredTerm(store, clock)
    calls = store.calls
    assert term.is_valid()
    assert store.calls == calls
    clock.ns += NS_PER_SECOND
    assert not term.is_valid()
    store.values.clear()
    clock.ns += NS_PER_SECOND
    # It never leads again.
    assert not term.is_valid()


def test_store_that_is_down_gives_no_right_to_send() -> None:
    store: Any = FakeStore()
    clock = FakeClock()
    term = StoredTerm(store, clock)
    clock.ns += NS_PER_SECOND
    store.is_down = True
    assert not term.is_valid()
    store.is_down = False
    assert term.is_valid()


def test_old_keys_are_removed() -> None:
    store: Any = FakeStore()
    for _ in range(9):
        StoredText(store, StoredTerm(store, FakeClock()), "state").write("x")
    assert sorted(key for key in store.values if "." not in key) == [
        f"{name}/{n}" for name in ("state", "term") for n in (6, 7, 8, 9)
    ]
    # Beside each term its mark.
    assert sum("." in key for key in store.values) == 4

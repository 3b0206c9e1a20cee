import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.loading.restore_pace import (
    FixedPace,
    GuardedPace,
    GuardSettings,
    next_bytes_per_second,
)
from tests.unit.fakes import FakeLatencyWindow

MB = 1_000_000
FASTEST = 4_096 * MB
SETTINGS = GuardSettings(factor=1.5)


class Load:
    """Keeps every pace it is given; `given` is set at each."""

    def __init__(self) -> None:
        self.paces: list[int] = []
        self.changed = threading.Condition()

    def set_restore_bytes_per_second(self, bytes_per_second: int) -> None:
        with self.changed:
            self.paces.append(bytes_per_second)
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.paces) >= count, timeout=30)


class QuickClock:
    """Waits no longer than it takes to give the lock to others."""

    def now_ns(self) -> int:
        return 0

    def wall_ns(self) -> int:
        return 0

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        assert timeout_seconds is not None
        return condition.wait(0.0001)


def test_fixed_pace_is_given_to_the_load() -> None:
    load = Load()
    with FixedPace(7).applied_to(load):
        assert load.paces == [7]


def test_next_pace_is_halved_while_requests_are_slow() -> None:
    pace = next_bytes_per_second(800 * MB, p99_ns=151, baseline_ns=100, settings=SETTINGS)
    assert pace == 400 * MB


def test_next_pace_rises_stepwise_after_recovery() -> None:
    pace = next_bytes_per_second(400 * MB, p99_ns=150, baseline_ns=100, settings=SETTINGS)
    assert pace == 528 * MB


def test_next_pace_without_requests_is_the_fastest() -> None:
    assert next_bytes_per_second(MB, p99_ns=0, baseline_ns=9, settings=SETTINGS) == FASTEST
    assert next_bytes_per_second(MB, p99_ns=9, baseline_ns=0, settings=SETTINGS) == FASTEST


@given(
    st.integers(1, FASTEST), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, FASTEST)
)
def test_next_pace_stays_between_crawl_and_limit(
    current: int, p99_ns: int, baseline_ns: int, limit: int
) -> None:
    settings = GuardSettings(factor=1.2, bytes_per_second_max=limit)
    pace = next_bytes_per_second(current, p99_ns=p99_ns, baseline_ns=baseline_ns, settings=settings)
    assert 0 < pace <= (limit or FASTEST)
    assert pace >= min(16 * MB, limit or FASTEST)


@pytest.fixture
def make_guard() -> Iterator[Callable[[FakeLatencyWindow], GuardedPace]]:
    guards: list[GuardedPace] = []

    def make(window: FakeLatencyWindow) -> GuardedPace:
        guards.append(GuardedPace(SETTINGS, window=window, clock=QuickClock()))
        return guards[-1]

    yield make
    for guard in guards:
        guard.stop()
    assert "swap-guard" not in [thread.name for thread in threading.enumerate()]


MakeGuard = Callable[[FakeLatencyWindow], GuardedPace]


def test_guarded_pace_slows_restore_above_p99_guard(make_guard: MakeGuard) -> None:
    load = Load()
    window = FakeLatencyWindow(since_start_ns=100, last_second_ns=[400])
    with make_guard(window).applied_to(load):
        load.wait_for(4)
    assert load.paces[:4] == [FASTEST, FASTEST // 2, FASTEST // 4, FASTEST // 8]


def test_guarded_pace_recovers_with_fast_requests(make_guard: MakeGuard) -> None:
    load = Load()
    window = FakeLatencyWindow(since_start_ns=100, last_second_ns=[400, 100])
    with make_guard(window).applied_to(load):
        load.wait_for(3)
    assert load.paces[:3] == [FASTEST, FASTEST // 2, FASTEST // 2 + 128 * MB]


def test_guarded_pace_serves_restores_in_turn(make_guard: MakeGuard) -> None:
    guard = make_guard(FakeLatencyWindow(since_start_ns=100, last_second_ns=[400]))
    for load in (Load(), Load()):
        with guard.applied_to(load):
            load.wait_for(2)
        assert load.paces[:2] == [FASTEST, FASTEST // 2]


def test_guarded_pace_does_nothing_between_restores(make_guard: MakeGuard) -> None:
    load = Load()
    guard = make_guard(FakeLatencyWindow(since_start_ns=100, last_second_ns=[400]))
    with guard.applied_to(load):
        load.wait_for(2)
    count = len(load.paces)
    with guard.applied_to(Load()):
        pass
    assert len(load.paces) == count

import threading

from serving.base.clock import NS_PER_SECOND, SystemClock, seconds_since
from tests.unit.fakes.clocks import FakeClock


def test_system_clock_now_never_goes_back() -> None:
    clock = SystemClock()
    assert clock.now_ns() <= clock.now_ns()


def test_system_clock_wall_is_after_2020() -> None:
    assert SystemClock().wall_ns() > 1_577_836_800 * NS_PER_SECOND


def test_system_clock_wait_at_timeout_is_false() -> None:
    condition = threading.Condition()
    with condition:
        assert not SystemClock().wait(condition, 0)


def test_seconds_since_start_counts_from_it() -> None:
    clock = FakeClock()
    start_ns = clock.now_ns()
    clock.advance(1.5)
    assert seconds_since(clock, start_ns) == 1.5

"""Tests of the choice of a model's devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import FailedPrecondition
from serving.data_plane.loads import AcceleratorState
from serving.loading.device_placement import Device, DevicePlacement, choose_devices
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakeAccelerator

SIZES = st.integers(0, 100)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    taken_bytes = draw(SIZES)
    return Device(
        limit_bytes=draw(SIZES),
        taken_bytes=taken_bytes,
        idle_bytes=draw(st.integers(0, taken_bytes)),
        busy_ratio=draw(st.floats(0, 1)),
        is_failing=draw(st.booleans()),
    )


def chosen_of(
    *found: Device, size: int = 10, count: int = 1, before: tuple[int, ...] = ()
) -> tuple[int, ...]:
    every = range(len(found))
    return choose_devices(found, size, allowed=every, replica_count=count, before=before)


@given(st.lists(devices(), min_size=1, max_size=4), SIZES, st.integers(0, 5), st.data())
def test_no_device_is_beyond_its_memory_without_need(
    found: list[Device], size: int, count: int, data: st.DataObject
) -> None:
    place = st.sampled_from(range(len(found)))
    allowed = sorted(data.draw(st.sets(place, min_size=1)))
    before = data.draw(st.sets(place))
    chosen = choose_devices(found, size, allowed=allowed, replica_count=count, before=before)
    assert len(set(chosen)) == len(chosen) == min(count or len(allowed), len(allowed))
    assert set(chosen) <= set(allowed)
    left = [found[place] for place in allowed if place not in chosen]
    for device in (found[place] for place in chosen):
        if not device.has_room(size, with_drops=True):
            assert not any(
                other.has_room(size, with_drops=True) and other.is_failing <= device.is_failing
                for other in left
            )
        if device.is_failing:
            assert all(other.is_failing for other in left)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_equal_rooms_leave_the_least_busy(ratios: list[float]) -> None:
    (chosen,) = chosen_of(*(Device(100, 0, busy_ratio=ratio) for ratio in ratios))
    assert ratios[chosen] - min(ratios) <= 0.1


def test_model_stays_while_there_is_room() -> None:
    empty, fuller, full = Device(100, 0), Device(100, 80, busy_ratio=0.9), Device(100, 95)
    assert chosen_of(empty, fuller, before=(1,)) == (1,)
    assert chosen_of(empty, full, before=(1,)) == (0,)
    # Idle parameters there, like its predecessor's, give way.
    assert chosen_of(empty, Device(100, 95, idle_bytes=95), before=(1,)) == (1,)


def test_new_model_drops_no_idle_one_without_need() -> None:
    assert chosen_of(Device(100, 95, idle_bytes=95), Device(100, 90)) == (1,)
    assert chosen_of(Device(100, 95, idle_bytes=95), Device(100, 96)) == (0,)


def test_failing_device_is_the_last_choice() -> None:
    assert chosen_of(Device(0, 0, is_failing=True), Device(100, 200), before=(0,)) == (1,)


def test_loads_at_once_take_different_devices() -> None:
    accelerators = [FakeAccelerator(name=str(place)) for place in range(2)]
    placement = DevicePlacement(accelerators, FakeClock())
    with placement.place("a", 10, allowed=(), replica_count=1) as of_a:
        with placement.place("b", 10, allowed=(), replica_count=1) as of_b:
            assert [*of_a, *of_b] == accelerators
        with placement.place("all", 10, allowed=(), replica_count=0) as of_all:
            assert of_all == accelerators
        with placement.place("one", 10, allowed=(1,), replica_count=0) as of_one:
            assert of_one == accelerators[1:]
    with placement.place("c", 10, allowed=(), replica_count=1) as of_c:
        assert of_c == accelerators[:1]


def test_devices_that_do_not_exist_are_refused() -> None:
    placement = DevicePlacement(
        [FakeAccelerator(name=str(place)) for place in range(2)], FakeClock()
    )
    placement.check("m", (0, 1))
    placement.check("m", ())
    message = "model 'm' has devices 2, 7, and this server has devices 0, 1;"
    with pytest.raises(FailedPrecondition, match=message):
        placement.check("m", (7, 1, 2))


def test_busy_device_is_left_to_its_models() -> None:
    busy = AcceleratorState(0, 0, 0, 900_000_000, is_failing=False)
    accelerators = [FakeAccelerator(state_figures=busy), FakeAccelerator(name="1")]
    clock = FakeClock()
    placement = DevicePlacement(accelerators, clock)
    clock.advance(1.0)
    with placement.place("m", 10, allowed=(), replica_count=1) as chosen:
        assert chosen == accelerators[1:]

"""Tests of the choice between the CPU and the accelerator: its promises for any times."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from serving.data_plane.servables import SizeTimes
from serving.loading.side_policy import PROBE_ONE_OF, SWITCH_RATIO, SideChoice, choose_sides

NS = st.one_of(st.just(0), st.integers(1, 10**11))
SIZES = st.lists(
    st.builds(
        SizeTimes,
        rows=st.integers(1, 10**6),
        cpu_ns=NS,
        accelerator_ns=NS,
        is_on_accelerator=st.booleans(),
    ),
    unique_by=lambda size: size.rows,
).map(lambda sizes: sorted(sizes, key=lambda size: size.rows))


def times(rows: int, cpu_us: int, accelerator_us: int, *, is_there: bool = True) -> SizeTimes:
    return SizeTimes(rows, cpu_us * 1_000, accelerator_us * 1_000, is_there)


def taken(sizes: Sequence[SizeTimes], choices: Sequence[SideChoice]) -> list[SizeTimes]:
    """The sizes once the choices are made."""
    return [
        replace(size, is_on_accelerator=choice.is_on_accelerator)
        for size, choice in zip(sizes, choices, strict=True)
    ]


def is_known(size: SizeTimes) -> bool:
    return size.cpu_ns > 0 and size.accelerator_ns > 0


def chosen_and_other(size: SizeTimes) -> tuple[int, int]:
    pair = (size.accelerator_ns, size.cpu_ns)
    return pair if size.is_on_accelerator else (pair[1], pair[0])


def test_the_ctr_model_on_an_h200_splits_by_rows() -> None:
    sizes = [times(1, 554, 801), times(32, 899, 915), times(512, 2785, 1054)]
    first = choose_sides(sizes, is_first=True)
    assert [choice.is_on_accelerator for choice in first] == [False, False, True]
    assert [choice.probe_one_of for choice in first] == [2962, 2085, 5412]


def test_a_little_faster_changes_nothing_later() -> None:
    for is_there, slower, faster in ((True, 79, 81), (False, 79, 81)):
        for other_us, moves in ((slower, True), (faster, False)):
            cpu_us, there_us = (other_us, 100) if is_there else (100, other_us)
            (choice,) = choose_sides([times(8, cpu_us, there_us, is_there=is_there)])
            assert (choice.is_on_accelerator != is_there) is moves


@given(SIZES, st.booleans())
def test_each_size_has_one_choice(sizes: list[SizeTimes], is_first: bool) -> None:
    choices = choose_sides(sizes, is_first=is_first)
    assert [choice.rows for choice in choices] == [size.rows for size in sizes]


@given(SIZES, st.booleans())
def test_a_size_without_times_stays(sizes: list[SizeTimes], is_first: bool) -> None:
    for size, choice in zip(sizes, choose_sides(sizes, is_first=is_first), strict=True):
        if not is_known(size):
            assert choice.is_on_accelerator == size.is_on_accelerator


@given(SIZES)
def test_the_first_choice_is_the_faster_side(sizes: list[SizeTimes]) -> None:
    for size in taken(sizes, choose_sides(sizes, is_first=True)):
        if is_known(size):
            chosen_ns, other_ns = chosen_and_other(size)
            assert chosen_ns <= other_ns


@given(SIZES)
def test_a_change_needs_a_clear_gain(sizes: list[SizeTimes]) -> None:
    for size, after in zip(sizes, taken(sizes, choose_sides(sizes)), strict=True):
        if is_known(size):
            chosen_ns, other_ns = chosen_and_other(size)
            has_changed = after.is_on_accelerator != size.is_on_accelerator
            assert has_changed == (other_ns < SWITCH_RATIO * chosen_ns)


@given(SIZES, st.booleans())
def test_equal_times_change_nothing_twice(sizes: list[SizeTimes], is_first: bool) -> None:
    once = taken(sizes, choose_sides(sizes, is_first=is_first))
    assert taken(once, choose_sides(once)) == once


@given(SIZES, st.integers(2, 100))
def test_a_faster_accelerator_loses_no_size(sizes: list[SizeTimes], factor: int) -> None:
    faster = [
        replace(size, accelerator_ns=max(1, size.accelerator_ns // factor))
        if is_known(size)
        else size
        for size in sizes
    ]
    for before, after in zip(choose_sides(sizes), choose_sides(faster), strict=True):
        assert after.is_on_accelerator or not before.is_on_accelerator


@given(SIZES, st.booleans())
def test_probes_take_little_time(sizes: list[SizeTimes], is_first: bool) -> None:
    choices = choose_sides(sizes, is_first=is_first)
    for size, choice in zip(taken(sizes, choices), choices, strict=True):
        assert choice.probe_one_of >= PROBE_ONE_OF
        if is_known(size):
            chosen_ns, other_ns = chosen_and_other(size)
            share = other_ns / (chosen_ns * choice.probe_one_of)
            assert share <= 1.001 / PROBE_ONE_OF


def test_an_unknown_side_is_as_slow_as_with_fewer_rows() -> None:
    sizes = [times(1, 3_000, 1_000), times(8, 0, 1_000), times(32, 1_000, 1_000)]
    assert [choice.probe_one_of for choice in choose_sides(sizes)] == [6144, 6144, 2048]

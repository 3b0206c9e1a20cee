"""Tests of SideChoices: at the load and while requests come."""

from collections.abc import Mapping, Sequence
from typing import Any

from structlog.testing import capture_logs

from serving.core.servable import END, ServableId, ServableStatus
from serving.data_plane.servables import AcceleratedSignature, SizeTimes
from serving.loading.side_choices import MEASURE_SECONDS_MAX, SideChoices, has_choice
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.servables import FakeServable

ID = ServableId("ctr", 7)


def servable_with(*sizes: tuple[int, int, int]) -> FakeServable:
    servable = FakeServable(ID)
    set_times(servable, *sizes)
    return servable


def set_times(servable: FakeServable, *sizes: tuple[int, int, int]) -> None:
    """Sets the rows, the µs on the CPU and those on the accelerator of each size."""
    known = {size.rows: size for item in servable.accelerated for size in item.sizes}
    servable.accelerated = [
        AcceleratedSignature(
            name="serving_default",
            rows=[rows for rows, _, _ in sizes],
            reason="",
            host_ops=(),
            host_tables=(),
            sizes=[
                SizeTimes(
                    rows,
                    cpu * 1_000,
                    there * 1_000,
                    known[rows].is_on_accelerator if rows in known else True,
                )
                for rows, cpu, there in sizes
            ],
        )
    ]


def sides_of(servable: FakeServable) -> list[bool]:
    (signature,) = servable.accelerated
    return [size.is_on_accelerator for size in signature.sizes]


def measured(servable: FakeServable) -> tuple[SideChoices, Sequence[Mapping[str, Any]]]:
    choices = SideChoices(FakeClock(), StatusError)
    with capture_logs() as logs:
        choices.measure(ID, servable)
    return choices, logs


def test_a_load_measures_and_chooses() -> None:
    servable = servable_with((1, 554, 801), (512, 2785, 1054))
    _, logs = measured(servable)
    assert servable.measured_seconds_max == MEASURE_SECONDS_MAX
    assert sides_of(servable) == [False, True]
    assert servable.probes == {("serving_default", 1): 2962, ("serving_default", 512): 5412}
    assert logs == [
        {
            "event": "sides_chosen",
            "log_level": "info",
            "model": "ctr",
            "version": 7,
            "signature": "serving_default",
            "rows_on_cpu": [1],
            "rows": [1, 512],
            "cpu_us": [554, 2785],
            "accelerator_us": [801, 1054],
        }
    ]


def test_later_times_change_the_choice_both_ways() -> None:
    servable = servable_with((1, 554, 801), (512, 2785, 1054))
    choices, _ = measured(servable)
    with capture_logs() as logs:
        choices.look()
        assert logs == []
        set_times(servable, (1, 1_100, 801), (512, 800, 1_054))
        choices.look()
    assert sides_of(servable) == [True, False]
    assert [line["rows_on_cpu"] for line in logs] == [[512]]


def test_an_ended_version_is_left_alone() -> None:
    servable = servable_with((1, 554, 801))
    choices, _ = measured(servable)
    servable.is_destroyed = True
    choices.look()
    choices.on_status(ServableStatus(id=ID, state=END))
    servable.is_destroyed = False
    set_times(servable, (1, 2_000, 801))
    choices.look()
    assert sides_of(servable) == [False]


def test_only_a_version_with_sizes_has_the_choice() -> None:
    assert has_choice(servable_with((1, 0, 0)))
    assert not has_choice(servable_with())
    assert not has_choice(FakeServable(ID))

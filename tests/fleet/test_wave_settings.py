import pytest

from fleet.rollout.wave_settings import WaveSettings, WaveSize
from serving.base.errors import InvalidConfig


@pytest.mark.parametrize(
    ("size", "fleet_size", "quota"),
    [
        (WaveSize(1), 10, 1),
        (WaveSize(3), 2, 2),
        (WaveSize(share=0.1), 10, 1),
        (WaveSize(share=0.1), 11, 2),
        (WaveSize(share=0.1), 10_000, 1_000),
        (WaveSize(5, share=0.1), 10, 5),
        (WaveSize(1), 0, 1),
    ],
)
def test_quota_of_a_wave(size: WaveSize, fleet_size: int, quota: int) -> None:
    assert size.quota(fleet_size) == quota


def test_last_wave_has_the_whole_fleet() -> None:
    settings = WaveSettings(sizes=(WaveSize(1),))
    assert (settings.is_last(0), settings.is_last(1)) == (False, True)
    assert (settings.quota(0, 7), settings.quota(1, 7)) == (1, 7)


@pytest.mark.parametrize(("quota", "count"), [(1, 1), (10, 1), (25, 2), (1_000, 100)])
def test_one_failed_server_is_always_allowed(quota: int, count: int) -> None:
    assert WaveSettings().failed_server_count_max(quota) == count


@pytest.mark.parametrize("values", [{"server_count": 0}, {"share": 1.0}, {"share": -0.1}])
def test_wave_that_is_no_part_of_a_fleet_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(InvalidConfig):
        WaveSize(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"load_count_max": 0},
        {"judged_seconds": 0},
        {"lost_seconds": -1},
        {"load_seconds_max": float("nan")},
        {"setback_share_max": 1.0},
        {"warned_gates": "stop"},
    ],
)
def test_wave_settings_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        WaveSettings(**values)  # type: ignore[arg-type]

import pytest

from loadtest.measure.swaps import Swap, check_all_succeeded, is_unloaded, swaps_in
from serving.base.errors import Unavailable

# The events that serving.manager.manager and serving.loading.unload log.
EVENTS = [
    {"event": "listening", "port": 1},
    {"event": "load_started", "model": "m", "version": 2},
    {
        "event": "version_available",
        "model": "m",
        "version": 2,
        "restore_seconds": 0.5,
        "warm_up_seconds": 0.25,
        "load_seconds": 0.75,
    },
    {
        "event": "version_unloaded",
        "model": "m",
        "version": 1,
        "request_count": 7,
        "failed_count": 0,
        "latency_seconds_p50": 0.001,
        "destroy_seconds": 0.125,
    },
]


def test_swaps_in_log_have_their_stages_in_order():
    assert swaps_in(EVENTS) == [
        Swap("load", 2, {"restore": 0.5, "warm_up": 0.25, "total": 0.75}),
        Swap("unload", 1, {"destroy": 0.125}),
    ]


def test_swaps_in_log_without_swaps_are_none():
    assert swaps_in(EVENTS[:2]) == []


def test_is_unloaded_is_true_for_removed_version():
    assert [is_unloaded(event, 1) for event in EVENTS] == [False, False, False, True]
    assert not is_unloaded(EVENTS[3], 2)


def test_check_all_succeeded_accepts_all_answered():
    check_all_succeeded(EVENTS, 7)


@pytest.mark.parametrize(
    "events",
    [
        EVENTS[:3],
        [EVENTS[3] | {"request_count": 6}],
        [EVENTS[3] | {"request_count": 8}],
        [EVENTS[3] | {"failed_count": 1}],
        [EVENTS[3], EVENTS[3]],
    ],
    ids=["not_unloaded", "one_lost", "one_too_many", "one_failed", "unloaded_twice"],
)
def test_check_all_succeeded_otherwise_raises(events: list[dict[str, object]]):
    with pytest.raises(Unavailable, match="7 requests were sent"):
        check_all_succeeded(events, 7)

"""Deltas in a row with all that may happen meanwhile: a short form, and a long one for `make soak`."""

import pytest

from loadtest.commands.delta_soak import DeltaSoakResult, DeltaSoakSetup, delta_soak
from loadtest.measure.delta_events import EVENTS
from serving.base.clock import SystemClock

pytestmark = pytest.mark.usefixtures("warm_load_tests", "patient_load_tests")

SHORT = DeltaSoakSetup(
    delta_count=32,
    seconds_per_delta=0.05,
    base_each=12,
    event_each=3,
    tensorflow_each=1,
    seed=6,
)
LONG = DeltaSoakSetup(delta_count=1000)


def check(result: DeltaSoakResult, setup: DeltaSoakSetup) -> None:
    assert result.faults == []
    assert result.bugs == []
    assert (result.lost_count, result.wrong_count) == (0, 0)
    assert result.is_good
    assert result.done["delta"] + result.done["base"] == setup.delta_count
    assert set(result.done) >= {event.__name__ for event in EVENTS} | {"restart"}
    rolled_back_count = result.done["roll_back"] + result.done["roll_back_and_allow"]
    assert result.loads["rolled_back"] == rolled_back_count
    # The first of two deltas at once may be cancelled.
    assert result.loads["load_failed"] >= result.done["break_delta"] + result.done["spoil_delta"]
    assert len(result.ends) == setup.restart_count + 1
    assert all(len(end.outcome.codes) > 0 for end in result.ends)
    # Each version that waited, and each take-over of a server.
    brought = setup.delta_count + result.done["bring_two"] + result.done["restart"]
    assert result.compared_count == brought
    assert result.restored["kept_bytes"] > 0


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(LONG, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
    ],
)
def test_deltas_in_a_row_lose_no_answer(setup: DeltaSoakSetup) -> None:
    result = delta_soak(setup, SystemClock(), print)
    check(result, setup)
    if setup.tensorflow_each == 1:
        assert result.compared_with_tensorflow_count == result.compared_count

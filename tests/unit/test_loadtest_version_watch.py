"""Versions of a server that is asked for them: the looks, and the swaps that they show."""

import pytest

from loadtest.drive.version_states import answering_version
from loadtest.measure.timeline import Span
from loadtest.measure.version_watch import (
    Look,
    States,
    VersionWatch,
    has_failed,
    has_swapped,
    spans_of,
)
from serving.base.clock import SystemClock
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import to_tensor_proto

OLD = {1: "AVAILABLE"}


def looks(*states: States) -> list[Look]:
    """Returns looks at 0, 10, 20, ... ns."""
    return [Look(10 * number, each) for number, each in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "swapped"),
    [
        ({1: "AVAILABLE"}, False),
        ({1: "AVAILABLE", 2: "LOADING"}, False),
        ({1: "AVAILABLE", 2: "AVAILABLE"}, False),
        ({1: "UNLOADING", 2: "AVAILABLE"}, False),
        ({1: "END", 2: "AVAILABLE"}, True),
        ({2: "AVAILABLE"}, True),
        ({}, False),
    ],
)
def test_swap_is_over_if_new_serves_and_old_is_gone(states: States, swapped: bool):
    assert has_swapped(states, 1) is swapped


def test_ended_version_has_failed_to_load():
    assert has_failed({1: "AVAILABLE", 2: "END"}, 2)
    assert not has_failed({1: "END", 2: "AVAILABLE"}, 2)


def test_windows_reach_from_look_before_to_look_after():
    seen = looks(
        OLD,
        OLD,
        {**OLD, 2: "LOADING"},
        {**OLD, 2: "LOADING"},
        {**OLD, 2: "AVAILABLE"},
        {1: "UNLOADING", 2: "AVAILABLE"},
        {1: "END", 2: "AVAILABLE"},
    )
    (swap,) = spans_of(seen, {2: 5})
    assert (swap.version, swap.load, swap.unload) == (2, Span(10, 40), Span(40, 60))


def test_load_begins_no_earlier_than_its_drop():
    seen = looks(OLD, {**OLD, 2: "LOADING"}, {2: "AVAILABLE"})
    (swap,) = spans_of(seen, {2: 7})
    assert swap.load == Span(7, 20)


def test_version_first_seen_available_loads_from_drop():
    # So it is with looks by answers, which see no load.
    (swap,) = spans_of(looks(OLD, OLD, OLD, {2: "AVAILABLE"}), {2: 5})
    assert (swap.load, swap.unload) == (Span(5, 30), Span(20, 30))


def test_each_dropped_version_has_its_own_swap():
    seen = looks(OLD, {2: "AVAILABLE"}, {2: "AVAILABLE"}, {2: "END", 3: "AVAILABLE"})
    swaps = spans_of(seen, {2: 1, 3: 15})
    assert [(swap.version, swap.unload) for swap in swaps] == [(2, Span(10, 10)), (3, Span(20, 30))]


def test_swap_that_was_not_seen_is_refused():
    with pytest.raises(Unavailable, match="showed the end of 1"):
        spans_of(looks(OLD, {**OLD, 2: "AVAILABLE"}), {2: 5})
    with pytest.raises(Unavailable, match="showed version 2"):
        spans_of(looks(OLD), {2: 5})


def test_watch_waits_for_a_look_that_shows_it():
    left: list[States | None] = [OLD, None, {2: "AVAILABLE"}]
    watch = VersionWatch(lambda: left.pop(0) if left else {2: "AVAILABLE"}, SystemClock(), 0.001)
    with watch:
        assert watch.wait_for(lambda states: has_swapped(states, 1), 30)
    seen = [look.states for look in watch.looks()]
    assert seen[:2] == [OLD, {2: "AVAILABLE"}]


def test_watch_gives_up_at_timeout():
    with VersionWatch(lambda: OLD, SystemClock(), 0.001) as watch:
        assert not watch.wait_for(lambda states: has_swapped(states, 1), 0.01)


def response(version: int | None, output: int | None) -> predict_pb2.PredictResponse:
    answer = predict_pb2.PredictResponse()
    if version is not None:
        answer.model_spec.version.value = version
    if output is not None:
        answer.outputs["version"].CopyFrom(to_tensor_proto([output, output]))
    return answer


@pytest.mark.parametrize(
    ("version", "output", "answering"),
    [
        (3, 1, 3),
        # Version 4 has the content of export 2.
        (None, 2, 4),
        (None, 1, 3),
        (None, None, None),
    ],
)
def test_version_is_that_of_spec_or_output(
    version: int | None, output: int | None, answering: int | None
):
    assert answering_version(response(version, output), last_dropped=4) == answering

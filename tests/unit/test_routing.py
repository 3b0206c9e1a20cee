from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from serving.base.clock import Now
from serving.core.model_settings import CanarySettings, ModelSettings
from serving.core.servable import AVAILABLE, END, Routing
from serving.manager.canary import rule_text
from serving.manager.routing import (
    Canary,
    RoutingRequests,
    canary_after,
    decide_routing,
    end_reason,
)
from serving.manager.turn import Turn
from tests.unit.fakes.errors import permanent
from tests.unit.worlds.manager import CANARY, World, routing, world_with

NOTHING = Routing()
SHARE = Canary(version=3, weight=0.1, header="user")

ROWS: list[tuple[str, Routing, RoutingRequests, set[int], Routing]] = [
    ("nothing is published", NOTHING, RoutingRequests(), set(), NOTHING),
    (
        "the highest version is the default, by name",
        NOTHING,
        RoutingRequests(),
        {1, 2},
        Routing(default_version=2),
    ),
    (
        "a blocked version is not",
        NOTHING,
        RoutingRequests(blocked=frozenset({2})),
        {1, 2},
        Routing(default_version=1),
    ),
    (
        "a blocked version does not answer by being alone",
        NOTHING,
        RoutingRequests(blocked=frozenset({2})),
        {2},
        NOTHING,
    ),
    (
        "a blocked version that answers goes on until another can",
        Routing(default_version=2),
        RoutingRequests(blocked=frozenset({2, 3})),
        {2, 3},
        Routing(default_version=2),
    ),
    (
        "a fallback answers if all are blocked",
        Routing(default_version=2),
        RoutingRequests(blocked=frozenset({1, 2, 3}), fallbacks=frozenset({1})),
        {1, 2, 3},
        Routing(default_version=1),
    ),
    (
        "a fallback does not answer beside a sound version",
        NOTHING,
        RoutingRequests(blocked=frozenset({2}), fallbacks=frozenset({2})),
        {1, 2},
        Routing(default_version=1),
    ),
    (
        "a version that a label keeps is no default beside an aspired one",
        Routing(default_version=2, labels={"stable": 2}),
        RoutingRequests(labels={"stable": 2}, aspired=frozenset({1})),
        {1, 2},
        Routing(default_version=1, labels={"stable": 2}),
    ),
    (
        "a version that is not aspired answers until an aspired one can",
        Routing(default_version=2),
        RoutingRequests(aspired=frozenset({1})),
        {2},
        Routing(default_version=2),
    ),
    (
        "an unverified version is no default though it is aspired",
        NOTHING,
        RoutingRequests(unverified=frozenset({2}), aspired=frozenset({2})),
        {1, 2},
        Routing(default_version=1),
    ),
    (
        "an unverified version is no default beside another",
        NOTHING,
        RoutingRequests(unverified=frozenset({2})),
        {1, 2},
        Routing(default_version=1),
    ),
    (
        "an unverified version answers before a blocked one",
        Routing(default_version=3),
        RoutingRequests(unverified=frozenset({2}), blocked=frozenset({3})),
        {2, 3},
        Routing(default_version=2),
    ),
    (
        "a canary gets its share and another version the rest",
        NOTHING,
        RoutingRequests(canary=SHARE),
        {1, 2, 3},
        Routing(default_version=2, canary_version=3, canary_weight=0.1, canary_header="user"),
    ),
    (
        "a canary alone gets everything",
        NOTHING,
        RoutingRequests(canary=SHARE),
        {3},
        Routing(default_version=3),
    ),
    (
        "a canary that is not published gets nothing",
        NOTHING,
        RoutingRequests(canary=SHARE),
        {1},
        Routing(default_version=1),
    ),
    (
        "a label waits for its version where it was",
        Routing(labels={"stable": 1}),
        RoutingRequests(labels={"stable": 2}),
        {1},
        Routing(default_version=1, labels={"stable": 1}),
    ),
    (
        "a label moves",
        Routing(labels={"stable": 1}),
        RoutingRequests(labels={"stable": 2}),
        {1, 2},
        Routing(default_version=2, labels={"stable": 2}),
    ),
    (
        "a label goes back if its new version goes first",
        Routing(default_version=2, labels={"stable": 2}),
        RoutingRequests(labels={"stable": 2}, former_labels={"stable": 1}),
        {1},
        Routing(default_version=1, labels={"stable": 1}),
    ),
    (
        "a label whose versions are both gone leads nowhere",
        Routing(labels={"stable": 1}),
        RoutingRequests(labels={"stable": 2}),
        {3},
        Routing(default_version=3, awaited_labels={"stable": 2}),
    ),
    (
        "a label that is not wanted goes",
        Routing(labels={"stable": 1}),
        RoutingRequests(),
        {1},
        Routing(default_version=1),
    ),
]


@pytest.mark.parametrize(
    ("before", "routing_requests", "published", "after"),
    [pytest.param(*r[1:], id=r[0]) for r in ROWS],
)
def test_decide_routing(
    before: Routing, routing_requests: RoutingRequests, published: set[int], after: Routing
) -> None:
    assert decide_routing(before, routing_requests, published) == after


VERSIONS = st.integers(1, 5)
DEMANDS = st.builds(
    RoutingRequests,
    labels=st.dictionaries(st.sampled_from("ab"), VERSIONS),
    blocked=st.frozensets(VERSIONS),
    canary=st.none() | st.builds(Canary, version=VERSIONS, weight=st.just(0.1)),
    unverified=st.frozensets(VERSIONS),
    fallbacks=st.frozensets(VERSIONS),
)


@given(DEMANDS, st.lists(st.tuples(DEMANDS, st.sets(VERSIONS))))
def test_every_named_version_is_published(
    first: RoutingRequests, steps: list[tuple[RoutingRequests, set[int]]]
) -> None:
    routing = decide_routing(NOTHING, first, set())
    for routing_requests, published in steps:
        routing = decide_routing(routing, routing_requests, published)
        named = {routing.default_version, routing.canary_version, *routing.labels.values()}
        assert named - {None} <= published
        sound = published - routing_requests.blocked
        if sound:
            assert routing.default_version in sound
        if sound - routing_requests.unverified:
            assert routing.default_version not in routing_requests.unverified


# --- In a stream ----------------------------------------------------------------------------------


def test_map_changes_only_with_the_routing() -> None:
    world = World()
    world.set_labels({"stable": 1})
    # A request with the label is told its version.
    assert world.serving_map.log == ["route m"]
    world.settle(1)
    world.set_labels({"stable": 1})
    assert world.serving_map.log == ["route m", "publish m/1"]
    assert world.serving_map.routings["m"].labels == {"stable": 1}


def test_label_leads_nowhere_once_its_version_retires() -> None:
    world = World()
    world.set_labels({"stable": 1})
    world.settle(1)
    world.settle()
    assert world.streams.labels("m") == {}
    assert world.streams.of("m").labels == {"stable": 1}


def test_label_goes_back_when_its_new_version_retires() -> None:
    world = world_with(CANARY)
    world.settle(1)
    world.set_labels({"stable": 1})
    world.settle(1, 2)
    world.set_labels({"stable": 2})
    world.set_labels({"stable": 2, "old": 1})
    stream = world.streams.of("m")
    assert (stream.routing.labels["stable"], stream.former_labels["stable"]) == (2, 1)
    retired = stream.harnesses[2].begin_unload(Now(0))
    turn = Turn(stream.with_harness(retired), Now(0))
    turn.reroute()
    assert turn.state.routing.labels == {"stable": 1, "old": 1}


def test_retire_that_fails_changes_nothing() -> None:
    world = World()
    world.settle(1)
    with pytest.MonkeyPatch.context() as patch:

        def refuse(name: str, version: int, routing: Routing) -> None:
            raise permanent("refused")

        patch.setattr(world.serving_map, "retire", refuse)
        with capture_logs() as logs:
            world.settle()
        assert [line["event"] for line in logs] == ["control_failed"]
        assert world.states() == {1: AVAILABLE}
        assert world.streams.routing("m") == routing(world) == Routing(default_version=1)
    world.clock.advance(1)
    world.manager.tick()
    world.run_all()
    assert world.states() == {1: END}
    assert world.streams.routing("m") == routing(world) == Routing()


@pytest.mark.parametrize(
    ("sound", "version", "expected"),
    [({1}, 2, SHARE), ({1, 3}, 2, None), ((), 2, None)],
    ids=["highest", "below_another", "alone"],
)
def test_canary_after_a_version_is_published(
    sound: Collection[int], version: int, expected: Canary | None
) -> None:
    assert canary_after(None, sound, version, SHARE) == expected


def test_lower_version_beside_canary_keeps_it() -> None:
    assert canary_after(SHARE, {2, 3}, 1, None) == SHARE


def canary_events(*steps: Callable[[World], object]) -> list[tuple[str, int]]:
    """Returns the events about canaries of versions 2 and then 3, and of `steps`."""
    world = world_with(CANARY)
    with capture_logs() as logs:
        for version in (1, 2, 3):
            world.settle(version)
        for step in steps:
            step(world)
            world.manager.tick()
            world.run_all()
    names = ("canary_started", "canary_changed", "canary_ended")
    return [(log["event"], log["version"]) for log in logs if log["event"] in names]


BEGUN = [("canary_started", 2), ("canary_ended", 2), ("canary_started", 3)]
MORE = ModelSettings(canary=CanarySettings(weight=0.2, header="user"))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], []),
        # The one who ends a canary logs it, under another name.
        ([lambda world: world.manager.promote("m")], []),
        ([lambda world: world.manager.rollback("m")], []),
        ([lambda world: world.settle(1)], [("canary_ended", 3)]),
        ([lambda world: world.settle()], [("canary_ended", 3)]),
        ([lambda world: world.manager.set_settings("m", MORE)], [("canary_changed", 3)]),
    ],
    ids=["runs", "promoted", "rolled_back", "withdrawn", "all_withdrawn", "changed"],
)
def test_each_change_of_a_canary_is_logged_once(
    steps: list[Callable[[World], object]], expected: list[tuple[str, int]]
) -> None:
    assert canary_events(*steps) == BEGUN + expected


@pytest.mark.parametrize(
    ("canary", "published", "expected"),
    [
        (None, {1, 3}, None),
        (replace(SHARE, version=4), {1, 3, 4}, "version 4 takes its place"),
        (SHARE, {1}, "it is unloaded"),
        (SHARE, {3}, "no other version is left"),
    ],
)
def test_reason_of_the_end_of_a_canary(
    canary: Canary | None, published: Collection[int], expected: str | None
) -> None:
    assert end_reason(RoutingRequests(canary=canary), published, 3) == expected


def test_start_of_a_canary_is_logged_with_its_share() -> None:
    settings = CanarySettings(weight=0.05, header="user", request_count=500)
    world = world_with(ModelSettings(canary=settings))
    world.settle(1)
    with capture_logs() as logs:
        world.settle(2)
    (log,) = [log for log in logs if log["event"] == "canary_started"]
    assert log == {
        "event": "canary_started",
        "log_level": "info",
        "model": "m",
        "version": 2,
        "beside": 1,
        "weight": 0.05,
        "header": "user",
        "rule": rule_text(settings),
    }


def test_model_that_is_gone_keeps_its_waiting_labels() -> None:
    world = World()
    world.set_labels({"stable": 1})
    world.settle(1)
    world.settle()
    world.settle(1)
    assert world.streams.routing("m") == Routing(default_version=1, labels={"stable": 1})

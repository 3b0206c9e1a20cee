from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from serving.base.errors import DataLoss
from serving.core.model_settings import CanarySettings
from serving.core.servable import Routing, ServableId
from serving.manager.canary import rule_text
from serving.manager.router import Canary, Router, RoutingRequests, decide_routing
from tests.unit.fakes.errors import permanent
from tests.unit.fakes.servables import FakeServable, FakeServingMap

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
        "a last resort answers if all are blocked",
        Routing(default_version=2),
        RoutingRequests(blocked=frozenset({1, 2, 3}), last_resorts=frozenset({1})),
        {1, 2, 3},
        Routing(default_version=1),
    ),
    (
        "a last resort does not answer beside a sound version",
        NOTHING,
        RoutingRequests(blocked=frozenset({2}), last_resorts=frozenset({2})),
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
        Routing(default_version=3),
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
    last_resorts=st.frozensets(VERSIONS),
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


def publish(router: Router, version: int, canary: Canary | None = None) -> None:
    servable_id = ServableId("m", version)
    router.publish(servable_id, FakeServable(servable_id), canary=canary)


def test_router_updates_map_only_on_changes() -> None:
    serving_map = FakeServingMap()
    router = Router(serving_map)
    router.set_labels("m", {"stable": 1})
    assert serving_map.log == []
    publish(router, 1)
    router.set_labels("m", {"stable": 1})
    assert serving_map.log == ["publish m/1"]
    assert serving_map.routings["m"].labels == {"stable": 1}


def test_label_leads_nowhere_once_its_version_retires() -> None:
    router = Router(FakeServingMap())
    router.set_labels("m", {"stable": 1})
    publish(router, 1)
    router.retire(ServableId("m", 1))
    assert router.labels("m") == {}
    assert router.wanted_labels("m") == {"stable": 1}


def test_label_goes_back_when_its_new_version_retires() -> None:
    router = Router(FakeServingMap())
    publish(router, 1)
    publish(router, 2)
    router.set_labels("m", {"stable": 1})
    router.set_labels("m", {"stable": 2})
    router.retire(ServableId("m", 2))
    assert router.labels("m") == {"stable": 1}
    publish(router, 2)
    assert router.labels("m") == {"stable": 2}


def test_publish_and_routing_change_in_one_step() -> None:
    serving_map = FakeServingMap()
    router = Router(serving_map)
    publish(router, 1)
    publish(router, 3, SHARE)
    router.retire(ServableId("m", 3))
    router.retire(ServableId("m", 1))
    assert serving_map.log == ["publish m/1", "publish m/3", "retire m/3", "retire m/1"]


def test_publish_that_fails_changes_no_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    serving_map = FakeServingMap()
    router = Router(serving_map)
    publish(router, 1)

    def refuse(servable: FakeServable, routing: Routing) -> None:
        raise permanent("published already")

    monkeypatch.setattr(serving_map, "publish", refuse)
    with pytest.raises(DataLoss):
        publish(router, 2)
    assert router.routing("m") == serving_map.routings["m"] == Routing(default_version=1)


def test_retire_that_fails_changes_no_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    serving_map = FakeServingMap()
    router = Router(serving_map)
    publish(router, 1)

    def refuse(name: str, version: int, routing: Routing) -> None:
        raise permanent("not published")

    monkeypatch.setattr(serving_map, "retire", refuse)
    with pytest.raises(DataLoss):
        router.retire(ServableId("m", 1))
    assert router.routing("m") == serving_map.routings["m"] == Routing(default_version=1)


def test_lower_version_beside_canary_keeps_it() -> None:
    router = Router(FakeServingMap())
    publish(router, 2)
    publish(router, 3, SHARE)
    publish(router, 1)
    assert router.routing("m").canary_version == 3


def canary_events(*steps: Callable[[Router], object]) -> list[tuple[str, int]]:
    """Returns the events about canaries of versions 2 and then 3, both published as such, and of
    `steps`.
    """
    router = Router(FakeServingMap())
    with capture_logs() as logs:
        publish(router, 1)
        for version in (2, 3):
            publish(router, version, replace(SHARE, version=version))
        for step in steps:
            step(router)
    return [(log["event"], log["version"]) for log in logs]


BEGUN = [("canary_started", 2), ("canary_ended", 2), ("canary_started", 3)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], []),
        # The caller that ends a canary logs it.
        ([lambda router: router.promote("m")], []),
        ([lambda router: router.set_canary("m", None)], []),
        ([lambda router: router.set_blocked("m", frozenset({3}))], []),
        ([lambda router: router.retire(ServableId("m", 3))], [("canary_ended", 3)]),
        (
            [
                lambda router: router.retire(ServableId("m", 1)),
                lambda router: router.retire(ServableId("m", 2)),
            ],
            [("canary_ended", 3)],
        ),
        (
            [lambda router: router.set_canary("m", replace(SHARE, weight=0.2))],
            [("canary_changed", 3)],
        ),
    ],
    ids=["runs", "promoted", "withdrawn", "rolled_back", "unloaded", "alone", "changed"],
)
def test_router_reports_canary_changes_by_itself(
    steps: list[Callable[[Router], object]], expected: list[tuple[str, int]]
) -> None:
    assert canary_events(*steps) == BEGUN + expected


def test_router_reports_canary_start_with_share() -> None:
    router = Router(FakeServingMap())
    publish(router, 1)
    settings = CanarySettings(weight=0.05, header="user", request_count=500)
    with capture_logs() as logs:
        publish(router, 2, Canary.of(2, settings))
    (log,) = logs
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


def test_router_forgets_model_but_keeps_waiting_labels() -> None:
    router = Router(FakeServingMap())
    router.set_labels("m", {"stable": 1})
    router.set_blocked("m", frozenset({1}))
    router.forget("m")
    publish(router, 1)
    assert router.routing("m") == Routing(default_version=1, labels={"stable": 1})

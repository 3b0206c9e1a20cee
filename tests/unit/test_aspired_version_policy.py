import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.aspired_version_policy import (
    POLICIES,
    Action,
    AvailabilityPreserving,
    Load,
    PressureDriven,
    ResourcePreserving,
    Unload,
    policy_for,
)
from serving.core.model_settings import ModelSettings, PolicyName
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    UNLOADING,
    ServableId,
    ServableSnapshot,
    ServableState,
)


def row(
    version: int,
    state: ServableState,
    *,
    aspired: bool,
    kept: bool = False,
    blocked: bool = False,
    given_up: bool = False,
    pressing: bool = False,
) -> ServableSnapshot:
    return ServableSnapshot(
        ServableId("m", version), state, aspired, kept, blocked, given_up, pressing
    )


def load(version: int) -> Load:
    return Load(ServableId("m", version))


def unload(version: int) -> Unload:
    return Unload(ServableId("m", version))


ROWS: list[tuple[str, list[ServableSnapshot], Action | None]] = [
    ("no versions", [], None),
    (
        "the highest new aspired version is loaded",
        [
            row(1, UNLOADING, aspired=False),
            row(2, END, aspired=False),
            row(3, AVAILABLE, aspired=True),
            row(4, START, aspired=True),
            row(5, START, aspired=True),
        ],
        load(5),
    ),
    (
        "unloads before it loads if that is safe",
        [
            row(1, UNLOADING, aspired=False),
            row(2, END, aspired=False),
            row(3, AVAILABLE, aspired=False),
            row(4, AVAILABLE, aspired=True),
            row(5, START, aspired=True),
        ],
        unload(3),
    ),
    (
        "the last version is unloaded if no version is aspired",
        [
            row(1, END, aspired=False),
            row(2, AVAILABLE, aspired=False),
            row(3, END, aspired=False),
        ],
        unload(2),
    ),
    (
        "nothing to unload and nothing new",
        [
            row(1, AVAILABLE, aspired=True),
            row(2, END, aspired=True),
            row(3, LOADING, aspired=True),
            row(4, UNLOADING, aspired=False),
            row(5, END, aspired=False),
        ],
        None,
    ),
    (
        "a lone old version is kept while its successor loads",
        [row(1, AVAILABLE, aspired=False), row(2, LOADING, aspired=True)],
        None,
    ),
    (
        "a lone old version is kept while its successor is in error",
        [row(1, AVAILABLE, aspired=False), row(2, END, aspired=True)],
        None,
    ),
    (
        "a lone old version is kept while its successor waits to be loaded",
        [row(1, AVAILABLE, aspired=False), row(2, START, aspired=True)],
        load(2),
    ),
    (
        "an old version goes once an aspired one is ready, though another loads",
        [
            row(1, AVAILABLE, aspired=False),
            row(2, LOADING, aspired=True),
            row(3, AVAILABLE, aspired=True),
        ],
        unload(1),
    ),
    (
        "an old version goes once an aspired one is ready, though another is in error",
        [
            row(1, AVAILABLE, aspired=False),
            row(2, END, aspired=True),
            row(3, AVAILABLE, aspired=True),
        ],
        unload(1),
    ),
    (
        "the lower of two old versions is unloaded at once, because one is enough to serve",
        [
            row(2, AVAILABLE, aspired=False),
            row(1, AVAILABLE, aspired=False),
            row(3, END, aspired=True),
            row(4, LOADING, aspired=True),
        ],
        unload(1),
    ),
    (
        "a newer version that is not aspired serves while an older one that is aspired loads",
        [row(1, LOADING, aspired=True), row(2, AVAILABLE, aspired=False)],
        None,
    ),
    (
        "the version that serves meanwhile stays if another is aspired again while it unloads",
        [row(1, AVAILABLE, aspired=False), row(2, UNLOADING, aspired=True)],
        None,
    ),
    (
        "versions above nine are compared as numbers",
        [row(9, START, aspired=True), row(10, START, aspired=True)],
        load(10),
    ),
    (
        "a new version that is not aspired is not loaded",
        [row(1, START, aspired=False)],
        None,
    ),
    (
        "a kept version stays beside one that is aspired and ready",
        [row(1, AVAILABLE, aspired=False, kept=True), row(2, AVAILABLE, aspired=True)],
        None,
    ),
    (
        "a kept version does not count as a version that serves meanwhile",
        [
            row(1, AVAILABLE, aspired=False, kept=True),
            row(2, AVAILABLE, aspired=False),
            row(3, LOADING, aspired=True),
        ],
        None,
    ),
    (
        "of two old versions the blocked one goes",
        [
            row(1, AVAILABLE, aspired=False),
            row(2, AVAILABLE, aspired=False, blocked=True),
            row(3, LOADING, aspired=True),
        ],
        unload(2),
    ),
    (
        "a version that was given up goes beside a kept one",
        [
            row(1, AVAILABLE, aspired=False, given_up=True),
            row(2, AVAILABLE, aspired=False, kept=True),
            row(3, LOADING, aspired=True),
        ],
        unload(1),
    ),
    (
        "a version that was given up and is leaving needs nothing more",
        [
            row(1, UNLOADING, aspired=False, given_up=True),
            row(2, AVAILABLE, aspired=False),
            row(3, LOADING, aspired=True),
        ],
        None,
    ),
]

RESOURCE_ROWS: list[tuple[str, list[ServableSnapshot], Action | None]] = [
    ("no versions", [], None),
    (
        "an old version goes before its successor is loaded",
        [row(1, AVAILABLE, aspired=False), row(2, START, aspired=True)],
        unload(1),
    ),
    (
        "nothing is loaded while an old version unloads",
        [row(1, UNLOADING, aspired=False), row(2, START, aspired=True)],
        None,
    ),
    (
        "nothing is loaded while one that is not aspired any more still loads",
        [row(1, LOADING, aspired=False), row(2, START, aspired=True)],
        None,
    ),
    (
        "an old version answers while the one that comes back is still on its way out",
        [row(1, AVAILABLE, aspired=False), row(2, UNLOADING, aspired=True)],
        None,
    ),
    (
        "the highest new version is loaded once there is room",
        [row(1, END, aspired=False), row(2, START, aspired=True), row(3, START, aspired=True)],
        load(3),
    ),
    (
        "a kept version stays, and is no reason to wait",
        [row(1, AVAILABLE, aspired=False, kept=True), row(2, START, aspired=True)],
        load(2),
    ),
]


@pytest.mark.parametrize(("rows", "expected"), [pytest.param(*r[1:], id=r[0]) for r in ROWS])
def test_policy_action(rows: list[ServableSnapshot], expected: Action | None) -> None:
    assert AvailabilityPreserving().next_action(rows) == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [pytest.param(*r[1:], id=r[0]) for r in RESOURCE_ROWS]
)
def test_resource_policy_action(rows: list[ServableSnapshot], expected: Action | None) -> None:
    assert ResourcePreserving().next_action(rows) == expected


SNAPSHOTS = st.lists(
    st.builds(row, st.integers(0, 12), st.sampled_from(ServableState), aspired=st.booleans()),
    max_size=8,
    unique_by=lambda snapshot: snapshot.id,
)


def ready(rows: list[ServableSnapshot], *, aspired: bool) -> list[ServableId]:
    return [r.id for r in rows if r.state is AVAILABLE and r.is_aspired == aspired]


@given(SNAPSHOTS)
def test_policy_unloads_only_lowest_unaspired_version(
    rows: list[ServableSnapshot],
) -> None:
    action = AvailabilityPreserving().next_action(rows)
    if isinstance(action, Unload):
        assert action.id == min(ready(rows, aspired=False))


@given(SNAPSHOTS)
def test_policy_keeps_last_ready_version_for_aspired(
    rows: list[ServableSnapshot],
) -> None:
    action = AvailabilityPreserving().next_action(rows)
    if isinstance(action, Unload) and any(r.is_aspired for r in rows):
        assert len(ready(rows, aspired=False)) + len(ready(rows, aspired=True)) > 1


@given(SNAPSHOTS)
def test_resource_policy_loads_only_into_free_memory(
    rows: list[ServableSnapshot],
) -> None:
    action = ResourcePreserving().next_action(rows)
    if isinstance(action, Load):
        others = [r for r in rows if not r.is_aspired]
        assert all(r.state in (START, END) for r in others)


@given(SNAPSHOTS)
def test_resource_policy_failed_load_takes_no_version(
    rows: list[ServableSnapshot],
) -> None:
    action = ResourcePreserving().next_action(rows)
    aspired = [r for r in rows if r.is_aspired]
    if isinstance(action, Unload) and aspired and all(r.state is END for r in aspired):
        assert len(ready(rows, aspired=False)) > 1


@given(SNAPSHOTS)
def test_policy_loads_only_highest_new_version(rows: list[ServableSnapshot]) -> None:
    action = AvailabilityPreserving().next_action(rows)
    if isinstance(action, Load):
        assert action.id == max(r.id for r in rows if r.state is START and r.is_aspired)


@given(SNAPSHOTS)
def test_policy_at_rest_keeps_at_most_one_old_version(
    rows: list[ServableSnapshot],
) -> None:
    if AvailabilityPreserving().next_action(rows) is not None:
        return
    serving = ready(rows, aspired=False)
    assert len(serving) <= 1
    assert not (serving and ready(rows, aspired=True))


@given(SNAPSHOTS)
def test_auto_without_pressure_preserves_availability(rows: list[ServableSnapshot]) -> None:
    auto, availability = PressureDriven(), AvailabilityPreserving()
    assert auto.next_action(rows) == availability.next_action(rows)
    assert auto.may_retry(rows) == availability.may_retry(rows)


@given(SNAPSHOTS)
def test_auto_under_pressure_preserves_resources(rows: list[ServableSnapshot]) -> None:
    rows = [*rows, row(99, LOADING, aspired=True, pressing=True)]
    auto, resource = PressureDriven(), ResourcePreserving()
    assert auto.next_action(rows) == resource.next_action(rows)
    assert auto.may_retry(rows) == resource.may_retry(rows)


@pytest.mark.parametrize(
    ("name", "without_pressure", "under_pressure"),
    [
        (PolicyName.AVAILABILITY, False, False),
        (PolicyName.RESOURCE, True, True),
        (PolicyName.AUTO, False, True),
    ],
)
def test_policy_of_each_name_unloads_first(
    name: PolicyName, *, without_pressure: bool, under_pressure: bool
) -> None:
    policy = policy_for(ModelSettings(aspired_version_policy=name))
    assert policy.unloads_first(is_under_pressure=False) is without_pressure
    assert policy.unloads_first(is_under_pressure=True) is under_pressure


def test_each_policy_name_has_a_policy() -> None:
    assert POLICIES.keys() == set(PolicyName)


@given(SNAPSHOTS)
def test_policy_ignores_the_order_of_the_rows(rows: list[ServableSnapshot]) -> None:
    action = AvailabilityPreserving().next_action(rows)
    assert AvailabilityPreserving().next_action(list(reversed(rows))) == action

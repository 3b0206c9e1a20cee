"""A rolled-back version serves again if no other version can be loaded, and leaves as soon as one
can.
"""

import pytest
from structlog.testing import capture_logs

from serving.base.clock import NS_PER_SECOND
from serving.core.blocked_versions import CRASH_WAIT_SECONDS_MAX, BlockedBy, BlockedVersion
from serving.core.model_settings import ModelSettings, PolicyName
from serving.core.servable import AVAILABLE, END
from serving.core.version_selection import All
from serving.manager.blocked_state import BlockedState
from tests.unit.fakes.errors import permanent
from tests.unit.worlds.lives import DiskAndPolicy
from tests.unit.worlds.manager import RETRY_SECONDS, World

AVAILABILITY = ModelSettings()
RESOURCE = ModelSettings(aspired_version_policy=PolicyName.RESOURCE)
AUTO = ModelSettings(aspired_version_policy=PolicyName.AUTO)


class Site:
    """A model's disk and its server, which comes to rest after each step."""

    def __init__(self, settings: ModelSettings, world: World | None = None) -> None:
        self.world = world or World()
        self.world.manager.set_settings("m", settings)
        self.disk = DiskAndPolicy(self.world)
        # Memory holds one version, or two if the policy needs two.
        self.disk.capacity = 9 if settings is AVAILABILITY else 1

    def drop(self, version: int, *, is_broken: bool = False) -> None:
        self.world.clock.advance(1)
        self.disk.found_at_ns[version] = self.world.clock.now_ns()
        self.world.fail(version, *[permanent()] * (9 if is_broken else 0))
        self.rest()

    def roll_back_cold(self) -> None:
        self.world.clock.advance(1)
        self.world.manager.rollback("m", is_cold_allowed=True)
        self.rest()

    def rest(self) -> None:
        """Polls and works until nothing is left to do now."""
        for _ in range(5):
            self.disk.aspire()
            self.world.manager.tick()
            self.world.run_all()

    @property
    def serving(self) -> list[int]:
        return [key for key, state in self.world.states().items() if state is AVAILABLE]


def site_of_a_broken_rollback(settings: ModelSettings) -> Site:
    """Version 2 serves, 1 is broken on disk, and an operator rolls back cold."""
    site = Site(settings)
    site.drop(2)
    site.drop(1, is_broken=True)
    site.roll_back_cold()
    return site


@pytest.mark.parametrize("settings", [AVAILABILITY, RESOURCE, AUTO])
def test_cold_rollback_to_broken_restores_rolled_back(
    settings: ModelSettings,
) -> None:
    with capture_logs() as logs:
        site = site_of_a_broken_rollback(settings)
    assert site.serving == [2]
    # The operator's block still holds.
    assert site.world.kept_blocked_versions["m"].keys() == {2}
    events = [log for log in logs if log["event"] == "last_resort_serves"]
    if settings is not AVAILABILITY:
        assert [(log["version"], log["log_level"]) for log in events] == [(2, "error")]


@pytest.mark.parametrize("settings", [RESOURCE, AUTO])
def test_cold_rollback_prefers_an_older_version(
    settings: ModelSettings,
) -> None:
    site = Site(settings)
    for version, is_broken in ((3, False), (2, True), (1, False)):
        site.drop(version, is_broken=is_broken)
    site.roll_back_cold()
    assert site.serving == [1]
    assert site.world.blocked_versions["m"] == frozenset({2, 3})


@pytest.mark.parametrize("settings", [RESOURCE, AUTO])
def test_fallback_is_latest_rolled_back_version(settings: ModelSettings) -> None:
    site = Site(settings)
    for version, is_broken in ((3, False), (2, False), (1, True)):
        site.drop(version, is_broken=is_broken)
    site.roll_back_cold()
    assert site.serving == [2]
    site.roll_back_cold()
    assert site.serving == [2]
    assert site.world.kept_blocked_versions["m"].keys() == {2, 3}


def test_broken_fallback_yields_to_next() -> None:
    site = Site(RESOURCE)
    for version, is_broken in ((3, False), (2, False), (1, True)):
        site.drop(version, is_broken=is_broken)
    site.roll_back_cold()
    site.world.fail(2, *[permanent()] * 9)
    site.roll_back_cold()
    assert site.serving == [3]


def test_fallback_leaves_for_new_version_for_good() -> None:
    site = site_of_a_broken_rollback(RESOURCE)
    site.drop(3)
    assert site.serving == [3]
    assert site.world.blocked_versions["m"] == frozenset({1, 2})


def test_fallback_leaves_for_mended_older_version() -> None:
    site = site_of_a_broken_rollback(RESOURCE)
    site.world.manager.found_anew("m", 1)
    site.world.manager.tick()
    site.drop(1)
    assert site.serving == [1]
    assert site.world.blocked_versions["m"] == frozenset({2})


@pytest.mark.parametrize("settings", [AVAILABILITY, RESOURCE, AUTO])
def test_fallback_leaves_for_later_lower_version(
    settings: ModelSettings,
) -> None:
    site = Site(settings, World(blocked_versions={"m": {2: BlockedVersion(by=BlockedBy.OPERATOR)}}))
    site.world.blocked_versions["m"] = frozenset({2})
    for version, serving in ((2, [2]), (1, [1])):
        site.disk.found_at_ns[version] = site.world.clock.now_ns()
        site.world.manager.found_anew("m", version)
        site.rest()
        assert site.serving == serving
    assert site.world.blocked_versions["m"] == frozenset({2})


def test_allowed_last_resort_serves_normally() -> None:
    site = site_of_a_broken_rollback(RESOURCE)
    site.world.manager.allow("m", 2)
    site.rest()
    assert site.serving == [2]
    assert len(site.world.loading.loads) == 3
    assert site.world.blocked_versions["m"] == frozenset({1})


@pytest.mark.parametrize("settings", [AVAILABILITY, RESOURCE, AUTO])
def test_rolled_back_version_returns_after_restart(
    settings: ModelSettings,
) -> None:
    blocked_versions = {"m": {2: BlockedVersion(by=BlockedBy.OPERATOR)}}
    site = Site(settings, World(blocked_versions=blocked_versions))
    site.world.blocked_versions["m"] = frozenset({2})
    site.disk.found_at_ns[2] = site.world.clock.now_ns()
    site.drop(1, is_broken=True)
    assert site.world.states() == {1: END, 2: AVAILABLE}


def test_fallback_loads_beside_failed_versions() -> None:
    blocked_versions = {"m": {2: BlockedVersion(by=BlockedBy.OPERATOR)}}
    site = Site(AVAILABILITY, World(blocked_versions=blocked_versions))
    site.world.blocked_versions["m"] = frozenset({2})
    site.disk.selection = All()
    site.disk.found_at_ns[2] = site.world.clock.now_ns()
    site.drop(1, is_broken=True)
    assert site.serving == [2]


def test_model_without_rollback_serves_the_next_lower() -> None:
    site = Site(AVAILABILITY)
    site.disk.found_at_ns[1] = site.world.clock.now_ns()
    site.drop(2, is_broken=True)
    assert site.world.states() == {1: AVAILABLE, 2: END}
    assert site.world.blocked_versions["m"] == frozenset({2})


@pytest.mark.parametrize(
    ("blocked_versions", "found", "expected"),
    [
        ({2: 1, 3: 1}, {2, 3}, 2),
        ({2: 2, 3: 1}, {2, 3}, 2),
        ({2: 1, 3: 2}, {2, 3}, 3),
        ({2: 1}, {1, 2}, None),
        ({2: 1}, set(), None),
        ({}, {1}, None),
    ],
)
def test_fallback_is_latest_answering_on_disk(
    blocked_versions: dict[int, int], found: set[int], expected: int | None
) -> None:
    blocks = BlockedState(
        {
            version: BlockedVersion(by=BlockedBy.OPERATOR, since_wall_ns=since * NS_PER_SECOND)
            for version, since in blocked_versions.items()
        }
    )
    assert blocks.find_fallback(found, (), ()) == expected


def test_failed_load_of_replaced_files_blocks_nothing() -> None:
    world = World()
    world.manager.set_settings("m", RESOURCE)
    world.settle(1)
    world.fail(2, permanent())
    world.aspire(2)
    world.run_unloads()
    # New files are found while the old ones are being loaded.
    world.aspire(2, found_at_ns=7)
    world.run_all()
    assert world.states() == {1: END, 2: AVAILABLE}
    assert not world.blocked_versions


CRASH_WAIT_SECONDS = 8


def site_of_a_crash(*versions: int) -> Site:
    """Version 2 has crashed the server, which starts again with `versions` on disk."""
    world = World()
    block = BlockedVersion(
        by=BlockedBy.CRASH,
        reason="the server died",
        since_wall_ns=world.clock.wall_ns(),
        not_before_wall_ns=world.clock.wall_ns() + CRASH_WAIT_SECONDS * NS_PER_SECOND,
    )
    site = Site(AVAILABILITY, World(blocked_versions={"m": {2: block}}))
    for version in versions:
        site.disk.found_at_ns[version] = 1
    site.rest()
    site.world.manager.found_anew("m", 2)
    site.rest()
    return site


def test_predecessor_of_crashed_version_serves():
    assert site_of_a_crash(1, 2).serving == [1]


def test_crashed_version_serves_again_after_its_wait():
    site = site_of_a_crash(2)
    assert site.serving == []
    due_seconds = site.world.manager.next_due_seconds()
    assert due_seconds is not None
    assert 0 < due_seconds <= CRASH_WAIT_SECONDS
    site.world.clock.advance(due_seconds)
    site.rest()
    assert site.serving == [2]
    assert 2 in site.world.streams.blocks("m")


@pytest.mark.parametrize("seconds", [-3_600, -10 * 365 * 86_400])
def test_clock_set_back_keeps_no_model_away(seconds: int) -> None:
    site = site_of_a_crash(2)
    site.world.clock.advance(1)
    assert site.serving == []
    # The crash was while the clock was ahead, or the clock is not set yet.
    site.world.clock.set_wall(seconds)
    due_seconds = site.world.manager.next_due_seconds()
    assert due_seconds is not None
    site.world.clock.advance(min(due_seconds, CRASH_WAIT_SECONDS_MAX))
    site.rest()
    assert site.serving == [2]


def test_allowed_version_serves_without_its_wait():
    site = site_of_a_crash(2)
    allowed = site.world.manager.allow("m", 2)
    site.rest()
    assert allowed.result(0) is None
    assert site.serving == [2]
    assert site.world.streams.blocks("m") == {}


def test_newer_version_replaces_crashed_version():
    site = site_of_a_crash(2)
    site.world.clock.advance(CRASH_WAIT_SECONDS)
    site.rest()
    site.drop(3)
    assert site.serving == [3]


def test_fallback_has_files_that_came_just_before() -> None:
    """Its load has failed with other files; a rollback blocks it before the new ones are loaded."""
    site = Site(RESOURCE)
    site.drop(2)
    # The label keeps version 2, so version 3 finds no memory.
    site.world.set_labels({"stable": 2})
    site.drop(3)
    for _ in range(3):
        site.world.clock.advance(RETRY_SECONDS)
        site.rest()
    assert site.world.states()[3] is END
    site.world.set_labels({})
    site.world.fail(1, permanent())
    site.world.clock.advance(1)
    site.disk.found_at_ns = {1: 0, 3: site.world.clock.now_ns()}
    site.disk.aspire()
    site.roll_back_cold()
    assert site.serving == [3]


def test_fallback_ends_as_a_new_one_is_aspired() -> None:
    site = site_of_a_broken_rollback(RESOURCE)
    world = site.world
    assert world.streams.of("m").blocks.fallback == 2
    # The source reports no version as found anew, and still the next list is enough.
    world.on_disk = {1, 2, 3}
    world.aspire(2, 3)
    assert world.streams.of("m").blocks.fallback is None
    assert world.streams.of("m").aspired.keys() == {3}

"""The manager with fakes around it: its threads run when a test runs them."""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import TypeVar

from serving.base.clock import NS_PER_SECOND
from serving.base.fingerprint import Fingerprint
from serving.core.blocked_versions import BlockedBy, BlockedVersions
from serving.core.model_settings import CanarySettings, ModelSettings
from serving.core.servable import (
    AspiredVersion,
    Routing,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.manager import blocking, canary
from serving.manager.harness import RetryPolicy
from serving.manager.listener import ManagerListener
from serving.manager.manager import AspiredVersionsManager
from serving.manager.state_monitor import StateMonitor
from serving.manager.stream import Rules, StreamStatus
from serving.manager.streams import Streams
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.loads import FakeLoader
from tests.unit.fakes.requests import FakeStatistics
from tests.unit.fakes.servables import FakeServable, FakeServingMap
from tests.unit.fakes.threads import ManualExecutor

RETRY_SECONDS = 60


def aspired_with(version: int, files: Fingerprint) -> AspiredVersion:
    """A version on disk as a source finds it."""
    return AspiredVersion(version=version, directory=f"/m/{version}", fingerprint=files)


def aspired(*versions: int, found_at_ns: int = 0) -> list[AspiredVersion]:
    return [
        AspiredVersion(version=version, directory=f"/m/{version}", found_at_ns=found_at_ns)
        for version in versions
    ]


class FakeVersionMemory:
    """Records the manager's reports of removed versions and models."""

    def __init__(self) -> None:
        self.log: list[str] = []
        # The models that have the memory of a version that was unloaded for their load.
        self.rooms: set[str] = set()

    def unloaded(self, servable_id: ServableId, *, makes_room: bool = False) -> None:
        self.log.append(f"unloaded {servable_id}{' for a load' if makes_room else ''}")
        if makes_room:
            self.rooms.add(servable_id.name)

    def end_room(self, name: str) -> None:
        self.rooms.discard(name)

    def forget(self, name: str) -> None:
        self.rooms.discard(name)
        self.log.append(f"forget {name}")


class WorldListener(ManagerListener):
    """Records the reports of its manager in a world, and finds the versions of its disk."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def found_versions(self, name: str) -> Collection[int]:
        return self._world.on_disk

    def awaited_base_path(self, name: str) -> str:
        del name
        return self._world.awaited_base_path

    def blocked_versions_changed(self, name: str, versions: frozenset[int]) -> None:
        self._world.blocked_versions[name] = versions

    def keep_blocked_versions(self, name: str, blocked_versions: BlockedVersions) -> None:
        self._world.kept_blocked_versions[name] = blocked_versions

    def default_version_changed(
        self, name: str, version: int, previous_version: int | None, how: str
    ) -> None:
        self._world.changeovers.append((name, version, previous_version, how))


class World:
    """A manager without threads: a test runs each task."""

    def __init__(
        self,
        load_jitter_seconds: float = 0.0,
        blocked_versions: Mapping[str, BlockedVersions] | None = None,
        serving_map: FakeServingMap | None = None,
        retry_count_max: int = 2,
    ) -> None:
        self.clock = FakeClock()
        self.serving_map = serving_map or FakeServingMap()
        self.streams = Streams(
            Rules(
                retry=RetryPolicy(
                    retry_count_max=retry_count_max, interval_ns=RETRY_SECONDS * NS_PER_SECOND
                ),
                swap_jitter_seconds=load_jitter_seconds,
            )
        )
        self.blocked_versions: dict[str, frozenset[int]] = {}
        self.kept_blocked_versions: dict[str, BlockedVersions] = {}
        self.on_disk: set[int] = set()
        self.awaited_base_path = ""
        self.loading = FakeLoader()
        self.loaders = ManualExecutor()
        self.unloaders = ManualExecutor()
        self.monitor = StateMonitor(self.clock)
        self.history: dict[ServableId, list[ServableState]] = {}
        self.monitor.add_listener(self._remember)
        self.memory = FakeVersionMemory()
        self.changeovers: list[tuple[str, int, int | None, str]] = []
        self.manager = AspiredVersionsManager(
            loader=self.loading,
            loaders=self.loaders,
            unloaders=self.unloaders,
            version_memory=self.memory,
            serving_map=self.serving_map,
            streams=self.streams,
            listener=WorldListener(self),
            blocked_versions=blocked_versions or {},
            random=lambda: 0.5 if load_jitter_seconds else 0.0,
            monitor=self.monitor,
            clock=self.clock,
        )

    def _remember(self, status: ServableStatus) -> None:
        self.history.setdefault(status.id, []).append(status.state)

    def aspire(self, *versions: int, name: str = "m", found_at_ns: int = 0) -> None:
        self.manager.set_aspired(name, aspired(*versions, found_at_ns=found_at_ns))
        self.manager.tick()

    def set_labels(self, labels: Mapping[str, int], name: str = "m") -> None:
        self.manager.set_labels(name, labels)
        self.manager.tick()

    def block(self, version: int, by: BlockedBy, reason: str) -> None:
        """Blocks a version as a part of the server does it."""
        self.manager._event("m", lambda turn: blocking.block(turn, {version}, by, reason))

    def stream_status(self) -> StreamStatus | None:
        return self.streams.status("m")

    def run_loads(self) -> None:
        self.loaders.run_all()
        self.manager.tick()

    def run_unloads(self) -> None:
        """Runs one turn for every unload under way."""
        for _ in range(len(self.unloaders.tasks)):
            self.unloaders.run_one()
        self.manager.tick()

    def settle(self, *versions: int, name: str = "m") -> None:
        """Aspires and runs everything until nothing is left to do now."""
        self.aspire(*versions, name=name)
        self.run_all()

    def run_all(self) -> None:
        """Runs everything until nothing is left to do now."""
        while self.loaders.tasks or self.unloaders.tasks:
            self.run_loads()
            self.run_unloads()

    def states(self, name: str = "m") -> dict[int, ServableState]:
        return {item.id.version: item.state for item in self.monitor.statuses().get(name, ())}

    def status(self, version: int) -> ServableStatus:
        status = self.monitor.status(ServableId("m", version))
        assert status is not None
        return status

    def servable(self, version: int) -> FakeServable:
        """Returns the latest servable of this version."""
        return [item for item in self.loading.servables if item.id.version == version][-1]

    def fail(self, version: int, *errors: Exception) -> None:
        self.loading.failures[ServableId("m", version)] = list(errors)


KEEP = ModelSettings(keep_previous_seconds=300)
CANARY = ModelSettings(canary=CanarySettings(weight=0.1, header="user"))
JUDGED = ModelSettings(canary=CanarySettings(weight=0.1, request_count=100))
Answer = TypeVar("Answer")


def world_with(model_settings: ModelSettings) -> World:
    world = World()
    world.manager.set_settings("m", model_settings)
    return world


def judge(world: World) -> None:
    """Passes time until a canary's figures are evaluated."""
    world.clock.advance(canary.PERIOD_SECONDS)
    world.manager.tick()


def answer(world: World, future: "Future[Answer]") -> Answer:
    world.manager.tick()
    return future.result(timeout=0)


def routing(world: World) -> Routing:
    return world.serving_map.routings.get("m", Routing())


def figures(request_count: int, failed_count: int = 0, p999_ns: int = 1_000_000) -> FakeStatistics:
    return FakeStatistics(
        request_count=request_count, failed_count=failed_count, latency_ns_p999=p999_ns
    )

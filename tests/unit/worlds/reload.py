"""Served models and the reload of their configuration, with fakes around them."""

from collections.abc import Callable, Collection, Mapping, Sequence

import pytest
from hypothesis import strategies as st

from serving.base.errors import InvalidConfig, MillpondError
from serving.config.plan import plan_change
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.core.model_settings import ModelSettings
from serving.core.servable import (
    HEALTHY,
    AspiredVersion,
    Health,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.core.version_selection import All, Latest, Specific, VersionSelection
from serving.manager.state_monitor import StateMonitor
from serving.reload.config_reload import ConfigReloader
from serving.reload.served_models import ServedModels
from serving.reload.sources import Source, Sources
from serving.source.notes import Note
from tests.unit.fakes.clocks import EventClock

MODELS = st.builds(
    ModelConfig,
    name=st.sampled_from("abcd"),
    base_path=st.sampled_from(["/one", "/two"]),
    version_selection=st.sampled_from([Latest(1), Latest(2), All(), Specific(frozenset({1, 2}))]),
    labels=st.dictionaries(st.sampled_from(["stable", "next"]), st.integers(1, 2)),
    settings=st.builds(ModelSettings, keep_previous_seconds=st.sampled_from([0.0, 60.0])),
)
CONFIGS = st.lists(MODELS, unique_by=lambda model: model.name)


class FakeSource:
    """A source that records its calls in its world."""

    def __init__(self, world: "World", model: ModelConfig) -> None:
        self.world = world
        self.name = model.name
        self.base_path = model.base_path
        self.selection = model.version_selection
        self.labels = model.labels
        self.blocked: frozenset[int] = frozenset()
        self.is_over_in_time = True

    def selectable_versions(self) -> frozenset[int]:
        return frozenset({7})

    def awaited_base_path(self) -> str:
        return ""

    def _say(self, what: str) -> None:
        self.world.log.append(f"{self.name} {what}")

    def start(self) -> None:
        if self.name in self.world.refused:
            raise RuntimeError("can't start new thread")
        # A load or a listener may use its model from here on.
        assert self.name in self.world.loadable
        assert self.name in self.world.models.names
        assert self.world.models.found_versions(self.name)
        self.world.sources.set_blocked(self.name, frozenset({7}))
        assert self.blocked == {7}
        self.blocked = frozenset()
        self.world.running[self.name] = self
        self._say("start")

    def stop(self) -> None:
        self.world.running.pop(self.name, None)
        self._say("stop")

    def join(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        return self.is_over_in_time

    def set_selection(self, selection: VersionSelection, labels: Mapping[str, int]) -> None:
        if selection != self.selection:
            self._say(f"select {selection}")
        self.selection = selection
        self.labels = labels

    def set_blocked(self, versions: frozenset[int]) -> None:
        self.blocked = versions

    def set_granted(self, versions: frozenset[int]) -> None:
        self._say(f"granted {sorted(versions)}")

    def set_base_path(
        self, base_path: str, selection: VersionSelection, labels: Mapping[str, int]
    ) -> None:
        self.base_path = base_path
        self._say(f"base_path {base_path}")
        self.set_selection(selection, labels)

    def found_versions(self) -> frozenset[int]:
        return frozenset({1, 2})

    def selected_among(self, versions: Collection[int]) -> frozenset[int]:
        return frozenset(versions)

    def aspired_versions(self) -> frozenset[int]:
        return frozenset()

    def poll_soon(self) -> None:
        self._say("poll")

    def set_store_notes(self, notes: frozenset[Note]) -> None:
        self._say(f"store notes {len(notes)}")

    def notes(self) -> list[Note]:
        return [Note.of("no_version_in_base_path")]


class World:
    """Everything around the served models, as fakes that record their calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.refused: set[str] = set()
        self.running: dict[str, FakeSource] = {}
        self.loadable: list[str] = []
        self.load_settings: dict[str, ModelSettings] = {}
        self.labels: dict[str, Mapping[str, int]] = {}
        self.settings: dict[str, ModelSettings] = {}
        self.on_set_settings: Callable[[], object] = lambda: None
        self.names: Sequence[str] = ()
        self.mirrored: set[str] = set()
        self.has_home = True
        self.sources = Sources()
        self.models = ServedModels(
            sources=self.sources,
            make_source=lambda model: FakeSource(self, model),
            set_loadable=self.set_loadable,
            manager=self,
            base_paths=self,
            check_log=self.check_log,
        )
        self.models.add_names_listener(self.set_names)

    def local(self, name: str, base_path: str) -> str:
        if "://" in base_path and not self.has_home:
            raise InvalidConfig("the user has no home directory")
        return f"/cache/{name}" if "://" in base_path else base_path

    def open(self, name: str, base_path: str, source: Source) -> None:
        if "://" in base_path:
            self.log.append(f"{name} mirror {base_path}")
            self.mirrored.add(name)
        else:
            self.close(name)

    def close(self, name: str) -> None:
        if name in self.mirrored:
            self.log.append(f"{name} no mirror")
            self.mirrored.discard(name)

    def stop(self) -> None:
        self.mirrored.clear()

    def join(self, timeout_seconds: float) -> bool:
        return timeout_seconds > 0

    def check_log(self, model: ModelConfig) -> None:
        if model.logging is not None and model.logging.filename_prefix.startswith("/missing/"):
            raise InvalidConfig("/missing cannot be read")

    def set_loadable(self, models: Sequence[ModelConfig]) -> None:
        self.loadable = [model.name for model in models]
        self.load_settings = {model.name: model.settings for model in models}

    def set_labels(self, name: str, labels: Mapping[str, int]) -> None:
        self.labels[name] = labels
        self.log.append(f"{name} labels {dict(labels)}")

    def set_names(self, names: Sequence[str]) -> None:
        self.names = names

    def set_settings(self, name: str, settings: ModelSettings) -> None:
        self.on_set_settings()
        self.settings[name] = settings
        self.log.append(f"{name} settings")

    def set_aspired(self, name: str, versions: Sequence[AspiredVersion]) -> None:
        assert list(versions) == []
        self.log.append(f"{name} unload")

    def configure(self, *models: ModelConfig) -> list[str]:
        """Returns the logs while these become the models."""
        self.log.clear()
        self.models.apply(plan_change(self.models.models, models))
        return self.log


A = ModelConfig(name="a", base_path="/a")


class Reload:
    """A reloader with fake models that begins with model a."""

    def __init__(self, settings: SettingsByModel | None = None) -> None:
        self.world = World()
        self.clock = EventClock()
        self.monitor = StateMonitor(self.clock)
        self.world.configure(A)
        self.reloader = ConfigReloader(
            self.world.models, self.monitor, settings or SettingsByModel(), self.clock
        )

    def record(
        self, name: str, state: ServableState, health: Health = HEALTHY, version: int = 1
    ) -> None:
        self.monitor.record(
            ServableStatus(
                id=ServableId(name, version),
                state=state,
                health=health,
                state_changed_ns=self.clock.now_ns(),
            )
        )

    def will_be(self, name: str, state: ServableState, health: Health = HEALTHY) -> None:
        self.clock.events.append(lambda: self.record(name, state, health))

    def error(self, *models: ModelConfig, timeout_seconds: float = 60) -> MillpondError:
        with pytest.raises(MillpondError) as caught:
            self.reloader.reload(models, timeout_seconds)
        return caught.value

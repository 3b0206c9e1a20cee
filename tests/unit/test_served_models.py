from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.config.plan import plan_change
from serving.config.server_config import ModelConfig
from serving.core.model_settings import ModelSettings
from serving.core.servable import AspiredVersion
from serving.core.version_selection import Latest, VersionSelection
from serving.reload.served_models import ServedModels
from serving.source.notes import Note
from tests.unit.test_config_plan import CONFIGS

A = ModelConfig(name="a", base_path="/a")
B = ModelConfig(name="b", base_path="/b", labels={"stable": 1})
KEPT = ModelSettings(keep_previous_seconds=60)


class FakeSource:
    """A source that notes in its world what it is told."""

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

    def _say(self, what: str) -> None:
        self.world.log.append(f"{self.name} {what}")

    def start(self) -> None:
        if self.name in self.world.refused:
            raise RuntimeError("can't start new thread")
        # A load or a listener may ask for its model from here on.
        assert self.name in self.world.loaders
        assert self.name in self.world.models.names
        assert self.world.models.found_versions(self.name)
        self.world.models.set_blocked(self.name, frozenset({7}))
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

    def set_base_path(self, base_path: str) -> None:
        self.base_path = base_path
        self._say(f"base_path {base_path}")

    def found_versions(self) -> frozenset[int]:
        return frozenset({1, 2})

    def notes(self) -> list[Note]:
        return [Note.of("no_version_in_base_path")]


class World:
    """Everything around the served models, as fakes that keep what they are told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.refused: set[str] = set()
        self.running: dict[str, FakeSource] = {}
        self.loaders: list[str] = []
        self.load_settings: dict[str, ModelSettings] = {}
        self.labels: dict[str, Mapping[str, int]] = {}
        self.settings: dict[str, ModelSettings] = {}
        self.on_set_settings: Callable[[], object] = lambda: None
        self.names: Sequence[str] = ()
        self.models = ServedModels(
            make_source=lambda model: FakeSource(self, model),
            set_loaders=self.set_loaders,
            manager=self,
            set_labels=self.set_labels,
            names_changed=self.set_names,
        )

    def set_loaders(self, models: Sequence[ModelConfig]) -> None:
        self.loaders = [model.name for model in models]
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
        """What is said while these become the models."""
        self.log.clear()
        self.models.apply(plan_change(self.models.models, models))
        return self.log


def test_added_model_is_labelled_before_source_starts() -> None:
    world = World()
    assert world.configure(B) == ["b settings", "b labels {'stable': 1}", "b start"]
    assert world.models.names == world.names == ("b",)
    assert world.models.base_path("b") == "/b"
    assert [note.event for note in world.models.notes("b")] == ["no_version_in_base_path"]


def test_removed_model_stops_polling_before_unload() -> None:
    world = World()
    world.configure(A, replace(B, settings=KEPT))
    assert world.configure(A) == ["b stop", "b labels {}", "b unload", "b settings"]
    assert world.settings["b"] == ModelSettings()
    assert (world.loaders, world.names) == (["a"], ("a",))
    assert (world.models.base_path("b"), world.models.notes("b")) == (None, [])


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (replace(B, base_path="/other"), "b base_path /other"),
        (replace(B, version_selection=Latest(3)), "b select latest 3"),
        (replace(B, labels={"stable": 2}), "b labels {'stable': 2}"),
        (replace(B, settings=KEPT), "b settings"),
        (B, None),
    ],
)
def test_changed_model_receives_only_its_changes(after: ModelConfig, said: str | None) -> None:
    world = World()
    world.configure(A, B)
    assert world.configure(A, after) == ([said] if said else [])
    assert world.models.models == (A, after)


def test_changed_labels_reach_source_and_router() -> None:
    world = World()
    world.configure(A, B)
    world.configure(A, replace(B, labels={"stable": 2}))
    assert world.running["b"].labels == world.labels["b"] == {"stable": 2}


def test_loads_follow_settings_of_manager() -> None:
    world = World()
    world.configure(A, B)
    told: list[ModelSettings] = []
    world.on_set_settings = lambda: told.append(world.load_settings["b"])
    world.configure(A, replace(B, settings=KEPT))
    assert told == [KEPT]


def test_unstartable_source_changes_nothing() -> None:
    world = World()
    world.configure(A)
    world.refused = {"c"}
    b, c = replace(B, settings=KEPT), replace(B, name="c", settings=KEPT)
    with pytest.raises(RuntimeError, match="new thread"):
        world.configure(replace(A, base_path="/other"), b, c)
    assert world.models.models == (A,)
    assert (world.loaders, list(world.running)) == (["a"], ["a"])
    assert world.running["a"].base_path == "/a"
    assert world.log[-4:] == ["b stop", "b labels {}", "b unload", "b settings"]
    for name in ("b", "c"):
        assert (world.labels[name], world.settings[name]) == ({}, ModelSettings())


def test_blocked_versions_reach_source_of_model() -> None:
    world = World()
    world.configure(A, B)
    world.models.set_blocked("b", frozenset({2}))
    world.models.set_blocked("gone", frozenset({2}))
    blocked = {name: source.blocked for name, source in world.running.items()}
    assert blocked == {"a": frozenset(), "b": frozenset({2})}


@pytest.mark.parametrize("is_over_in_time", [True, False])
def test_join_returns_true_once_all_sources_end(is_over_in_time: bool) -> None:
    world = World()
    world.configure(A, B)
    world.running["a"].is_over_in_time = is_over_in_time
    world.models.stop()
    assert world.models.join(0.1) is is_over_in_time
    assert world.running == {}


@given(st.lists(CONFIGS, max_size=4))
def test_any_changes_end_as_last_change(
    configs: list[list[ModelConfig]],
) -> None:
    world = World()
    for models in configs:
        world.configure(*models)
        by_name = {model.name: model for model in models}
        assert set(world.loaders) == set(world.names) == world.running.keys() == by_name.keys()
        for name, model in by_name.items():
            source = world.running[name]
            assert (source.base_path, source.selection) == (
                model.base_path,
                model.version_selection,
            )
            assert (world.labels[name], world.settings[name]) == (model.labels, model.settings)


def test_unloaded_model_selects_nothing_until_loaded() -> None:
    world = World()
    world.configure(B)
    world.models.set_unloaded("b", is_unloaded=True)
    source = world.running["b"]
    assert (str(source.selection), source.labels) == ("specific (none)", {})
    # Whatever its configuration says meanwhile.
    world.configure(replace(B, version_selection=Latest(2)))
    assert str(source.selection) == "specific (none)"
    assert world.models.unloaded == {"b"}
    world.models.set_unloaded("b", is_unloaded=False)
    assert (source.selection, source.labels) == (Latest(2), B.labels)
    assert world.models.unloaded == frozenset()


def test_readded_model_is_no_longer_unloaded() -> None:
    world = World()
    world.configure(A)
    world.models.set_unloaded("a", is_unloaded=True)
    world.configure()
    world.configure(A)
    assert world.models.unloaded == frozenset()
    assert world.running["a"].selection == A.version_selection

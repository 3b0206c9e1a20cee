from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import InvalidConfig
from serving.core.model_config import ModelConfig
from serving.core.model_settings import ModelSettings
from serving.core.request_logging import RequestLogging
from serving.core.version_selection import Latest
from tests.unit.worlds.reload import CONFIGS, World

A = ModelConfig(name="a", base_path="/a")
B = ModelConfig(name="b", base_path="/b", labels={"stable": 1})
KEPT = ModelSettings(keep_previous_seconds=60)


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
    assert (world.loadable, world.names) == (["a"], ("a",))
    assert (world.models.base_path("b"), world.models.notes("b")) == (None, [])


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (replace(B, base_path="/other"), "b base_path /other"),
        (replace(B, version_selection=Latest(3)), "b select latest 3"),
        (replace(B, labels={"stable": 2}), "b labels {'stable': 2}"),
        (replace(B, settings=KEPT), "b settings"),
        (B, None),
    ],
)
def test_changed_model_receives_only_its_changes(after: ModelConfig, expected: str | None) -> None:
    world = World()
    world.configure(A, B)
    assert world.configure(A, after) == ([expected] if expected else [])
    assert world.models.models == (A, after)


def test_changed_labels_reach_source_and_router() -> None:
    world = World()
    world.configure(A, B)
    world.configure(A, replace(B, labels={"stable": 2}))
    assert world.running["b"].labels == world.labels["b"] == {"stable": 2}


def test_loads_follow_settings_of_manager() -> None:
    world = World()
    world.configure(A, B)
    received: list[ModelSettings] = []
    world.on_set_settings = lambda: received.append(world.load_settings["b"])
    world.configure(A, replace(B, settings=KEPT))
    assert received == [KEPT]


def test_unstartable_source_changes_nothing() -> None:
    world = World()
    world.configure(A)
    world.refused = {"c"}
    b, c = replace(B, settings=KEPT), replace(B, name="c", settings=KEPT)
    with pytest.raises(RuntimeError, match="new thread"):
        world.configure(replace(A, base_path="/other"), b, c)
    assert world.models.models == (A,)
    assert (world.loadable, list(world.running)) == (["a"], ["a"])
    assert world.running["a"].base_path == "/a"
    assert world.log[-4:] == ["b stop", "b labels {}", "b unload", "b settings"]
    for name in ("b", "c"):
        assert (world.labels[name], world.settings[name]) == ({}, ModelSettings())


def test_blocked_versions_reach_source_of_model() -> None:
    world = World()
    world.configure(A, B)
    world.sources.set_blocked("b", frozenset({2}))
    world.sources.set_blocked("gone", frozenset({2}))
    world.sources.set_granted("b", frozenset({1}))
    world.sources.set_granted("gone", frozenset({1}))
    assert world.log[-1] == "b granted [1]"
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
        assert set(world.loadable) == set(world.names) == world.running.keys() == by_name.keys()
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
    # The configuration may change meanwhile.
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


def test_url_is_mirrored_before_its_source_starts() -> None:
    world = World()
    log = world.configure(replace(B, base_path="s3://b/m"))
    assert log == ["b settings", "b labels {'stable': 1}", "b mirror s3://b/m", "b start"]
    assert world.running["b"].base_path == "/cache/b"
    assert world.models.base_path("b") == "s3://b/m"


def test_mirror_follows_changes_of_the_base_path() -> None:
    world = World()
    world.configure(B)
    url = replace(B, base_path="s3://b/m")
    assert world.configure(url) == ["b mirror s3://b/m", "b base_path /cache/b"]
    assert world.configure(B) == ["b no mirror", "b base_path /b"]
    world.configure(url)
    assert "b no mirror" in world.configure()


def test_log_without_a_directory_changes_nothing() -> None:
    world = World()
    world.configure(A, B)
    logging = RequestLogging(sampling_rate=1, filename_prefix="/missing/b")
    world.log.clear()
    with pytest.raises(InvalidConfig, match="/missing cannot be read"):
        world.configure(replace(A, settings=KEPT), replace(B, logging=logging))
    assert (world.log, world.models.models) == ([], (A, B))


def test_url_without_a_cache_changes_nothing() -> None:
    world = World()
    world.configure(A, B)
    world.has_home = False
    url = replace(B, base_path="s3://b/m", labels={"stable": 2}, settings=KEPT)
    world.log.clear()
    with pytest.raises(InvalidConfig, match="no home directory"):
        world.configure(replace(A, settings=KEPT), url, replace(A, name="c"))
    assert (world.log, world.models.models) == ([], (A, B))
    assert (world.loadable, world.load_settings["b"]) == (["a", "b"], B.settings)

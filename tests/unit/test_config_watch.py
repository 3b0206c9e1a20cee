import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.base.errors import InvalidConfig
from serving.config.server_config import ServerConfig
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.reload.config_watch import ConfigRefusal, ConfigWatcher
from serving.server.foundation import Foundation
from serving.server.models import make_config_watcher
from tests.unit.fakes.clocks import FakeClock, WritingClock
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.parts import FakeServedModels
from tests.unit.worlds.reload import Reload


def config_text(*names: str) -> str:
    configs = (f'config {{ name: "{name}" base_path: "/{name}" }}' for name in names)
    return "model_config_list { " + " ".join(configs) + " }"


class Watch:
    """A watcher of two files, with a record of each change: names, and the models with settings."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "models.config"
        self.settings = directory / "settings.toml"
        self.config.write_text(config_text("a"))
        self.settings.write_text("")
        self.changes: list[tuple[list[str] | None, list[str]]] = []
        self.error: Exception | None = None
        self.served = FakeServedModels(["a"])
        self.clock = FakeClock()
        self.watcher = self.make(str(self.config), str(self.settings))
        self.watcher.poll()
        self.changes.clear()

    def make(self, config_file: str, settings_file: str) -> ConfigWatcher:
        return ConfigWatcher(
            config_file,
            settings_file,
            period_seconds=5,
            change=self.change,
            served=self.served,
            clock=self.clock,
        )

    def change(
        self, models: Sequence[ModelConfig] | None, settings: SettingsByModel | None
    ) -> None:
        names = None if models is None else [model.name for model in models]
        self.changes.append((names, list(settings.by_name if settings else ())))
        if self.error is not None:
            raise self.error
        self.served.configured = self.served.configured if names is None else tuple(names)

    def refusal(self) -> ConfigRefusal | None:
        return self.watcher.refusal

    def refusals(self, poll_count: int = 2) -> list[str]:
        """Returns the events logged in `count` polls."""
        with capture_logs() as logs:
            for _ in range(poll_count):
                self.watcher.poll()
        assert {log["event"] for log in logs} <= {"config_refused"}
        return [log["reason"] for log in logs]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_watcher_first_look_applies_edit_from_start(watch: Watch) -> None:
    watch.make(str(watch.config), "").poll()
    assert watch.changes == [(["a"], [])]


@pytest.mark.parametrize(
    ("poll_seconds", "settings_file", "is_watched"),
    [
        (-1.0, "", False),
        # TensorFlow Serving's default, 0, reads the file once, at the start.
        (0.0, "", False),
        (1.0, "", True),
        (-1.0, "/s", False),
        (0.0, "/s", True),
        (1.0, "/s", True),
    ],
)
def test_config_watcher_without_a_period_is_none(
    poll_seconds: float, settings_file: str, is_watched: bool
) -> None:
    config = ServerConfig(
        models=(),
        model_config_file="/m",
        model_settings_file=settings_file,
        model_config_file_poll_wait_seconds=poll_seconds,
    )
    reload = Reload()
    watcher = make_config_watcher(
        Foundation(config, FakePlane(), FakeClock()),
        reloader=reload.reloader,
        served=reload.world.models,
    )
    assert (watcher is not None) == is_watched


def test_watcher_of_a_server_without_models_adds_them(watch: Watch) -> None:
    watch.served.configured = ()
    watch.config.write_text("model_config_list {}")
    watch.watcher.poll()
    watch.config.write_text(config_text("a"))
    watch.watcher.poll()
    assert watch.changes == [([], []), (["a"], [])]


def test_watcher_same_files_change_nothing(watch: Watch) -> None:
    watch.config.write_text(config_text("a"))
    watch.watcher.poll()
    assert watch.changes == []


def test_watcher_edited_config_is_applied_once(watch: Watch) -> None:
    watch.config.write_text(config_text("a", "b"))
    watch.watcher.poll()
    watch.watcher.poll()
    assert watch.changes == [(["a", "b"], [])]


def test_watcher_edited_settings_keep_models(watch: Watch) -> None:
    # An RPC has made these models: the config file lacks model b.
    watch.served.configured = ("a", "b")
    watch.settings.write_text("[models.b]\nkeep_previous_seconds = 5")
    watch.watcher.poll()
    assert watch.changes == [(None, ["b"])]


def test_watcher_refuses_config_lacking_settings_model(watch: Watch) -> None:
    watch.settings.write_text("[models.a]")
    watch.watcher.poll()
    watch.config.write_text(config_text("b"))
    (reason,) = watch.refusals()
    assert "models.a: no model 'a' is configured" in reason
    assert watch.changes == [(None, ["a"])]


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ("model_config_list {", "", "models.config: Error parsing text-format"),
        ("", "", "models.config: no model in it"),
        (config_text("a", "a"), "", "duplicate model 'a'"),
        (config_text("a"), "[default", "settings.toml: not valid TOML"),
        (config_text("a"), "[default]\nx = 1", "settings.toml: default: 'x' is unknown"),
    ],
)
def test_watcher_bad_file_is_logged_once(
    watch: Watch, config: str, settings: str, message: str
) -> None:
    watch.config.write_text(config)
    watch.settings.write_text(settings)
    (reason,) = watch.refusals(3)
    assert message in reason
    assert watch.changes == []


def test_watcher_missing_file_is_logged_once(watch: Watch) -> None:
    watch.config.unlink()
    (reason,) = watch.refusals()
    assert "models.config: cannot be read" in reason
    watch.config.write_text(config_text("b"))
    watch.watcher.poll()
    assert watch.changes == [(["b"], [])]


def test_watcher_refused_change_is_logged_once(watch: Watch) -> None:
    watch.error = InvalidConfig("model 'b' cannot be")
    watch.config.write_text(config_text("b"))
    assert watch.refusals() == ["model 'b' cannot be"]
    assert watch.changes == [(["b"], [])]


def test_watcher_applies_config_after_mended_settings(watch: Watch) -> None:
    watch.config.write_text(config_text("b"))
    watch.settings.write_text("[models.b]\nkeep_previous_secs = 3")
    (reason,) = watch.refusals(3)
    assert "'keep_previous_secs' is unknown" in reason
    watch.settings.write_text("[models.b]\nkeep_previous_seconds = 3")
    assert watch.refusals() == []
    assert watch.changes == [(["b"], ["b"])]


def test_watcher_applies_settings_after_mended_config(watch: Watch) -> None:
    watch.settings.write_text("[models.b]")
    watch.config.write_text("model_config_list {")
    assert len(watch.refusals()) == 1
    watch.config.write_text(config_text("b"))
    assert watch.refusals() == []
    assert watch.changes == [(["b"], ["b"])]


def test_watcher_repeated_bad_edit_is_logged_again(
    watch: Watch,
) -> None:
    bad, good = "model_config_list {", watch.config.read_text()
    for _ in range(2):
        watch.config.write_text(bad)
        assert len(watch.refusals()) == 1
        watch.config.write_text(good)
        assert watch.refusals() == []
    assert watch.changes == []


@pytest.mark.parametrize(
    ("config", "settings", "error", "culprit", "message"),
    [
        ("model_config_list {", "[default", None, "models.config", "Error parsing text-format"),
        (config_text("b"), "[default", None, "settings.toml", "not valid TOML"),
        (config_text("b"), "", "cannot be", "models.config", "cannot be"),
        (config_text("a"), "[default]", "cannot be", "settings.toml", "cannot be"),
    ],
)
def test_watcher_refusal_names_the_file_to_mend(
    watch: Watch, config: str, settings: str, error: str | None, culprit: str, message: str
) -> None:
    assert watch.refusal() is None
    watch.error = InvalidConfig(error) if error else None
    watch.config.write_text(config)
    watch.settings.write_text(settings)
    watch.refusals()
    refusal = watch.refusal()
    assert refusal is not None
    assert (Path(refusal.file).name, message in refusal.reason) == (culprit, True)


def test_watcher_retries_change_that_fails_elsewhere(
    watch: Watch,
) -> None:
    watch.config.write_text(config_text("a", "b"))
    watch.error = RuntimeError("can't start new thread")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            watch.watcher.poll()
        refusal = watch.refusal()
        assert refusal is not None
        assert refusal.file == str(watch.config)
        assert "can't start new thread" in refusal.reason
    assert len(watch.changes) == 2
    watch.error = None
    watch.watcher.poll()
    assert (watch.refusal(), watch.served.names) == (None, ("a", "b"))


def test_watcher_refusal_dates_from_first_fault(watch: Watch) -> None:
    watch.config.write_text("model_config_list {")
    watch.refusals()
    first = watch.refusal()
    watch.clock.advance(60)
    watch.config.write_text(config_text("a", "a"))
    watch.refusals()
    second = watch.refusal()
    assert first is not None
    assert second is not None
    assert second.since_wall_ns == first.since_wall_ns <= watch.clock.wall_ns() - 60e9
    assert "duplicate model" in second.reason
    watch.config.write_text(config_text("b"))
    watch.watcher.poll()
    assert watch.refusal() is None


def test_watcher_reverted_edit_clears_refusal(watch: Watch) -> None:
    good = watch.config.read_text()
    watch.config.write_text("model_config_list {")
    watch.refusals()
    assert watch.refusal() is not None
    watch.config.write_text(good)
    watch.watcher.poll()
    assert watch.refusal() is None


def test_watcher_without_config_file_reads_settings(watch: Watch) -> None:
    watch.settings.write_text("[models.a]")
    watch.make("", str(watch.settings)).poll()
    assert watch.changes == [(None, ["a"])]


def test_watcher_thread_looks_and_stops_at_once(tmp_path: Path) -> None:
    path = tmp_path / "models.config"
    path.write_text(config_text("a"))
    has_looked = threading.Event()
    watcher = ConfigWatcher(
        str(path),
        "",
        period_seconds=3600,
        change=lambda models, settings: has_looked.set(),
        served=FakeServedModels(),
        clock=SystemClock(),
    )
    watcher.start()
    assert has_looked.wait(10)
    watcher.stop()
    assert watcher.join(timeout_seconds=10)


def test_changing_file_is_read_once_it_rests(tmp_path: Path):
    path = tmp_path / "models.config"
    path.write_text(config_text("a"))
    changes: list[list[str]] = []

    def change(models: Sequence[ModelConfig] | None, settings: SettingsByModel | None) -> None:
        del settings
        changes.append([model.name for model in models or ()])

    whole = config_text("a", "b", "c")
    clock = WritingClock(path)
    watcher = ConfigWatcher(
        str(path), "", period_seconds=5, change=change, served=FakeServedModels(["a"]), clock=clock
    )
    watcher.poll()
    # The file is empty first, then holds a part that parses, then all of it.
    path.write_text("")
    clock.texts = [config_text("a", "b"), whole]
    with capture_logs() as logs:
        watcher.poll()
    assert changes == [["a"], ["a", "b", "c"]]
    assert logs == []

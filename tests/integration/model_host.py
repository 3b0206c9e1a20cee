"""One server for all tests of a module, to which each test adds models of its own."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.client import Client
from serving.core.servable import ServableState
from serving.server.server_log import LogEvent
from tests.integration.clients import wait_for_states, wait_until
from tests.integration.exports import drop
from tests.integration.logs import logged, only_logged, wait_for_log
from tests.integration.rest_clients import RestClient

# A load that fails is tried again at once, as far as a test is concerned.
_RETRY_MICROS = 1_000_000


class HostedModel:
    """A model that one test has on the module's server. Its name is used by no other test."""

    def __init__(self, host: "ModelHost", name: str, base_path: Path) -> None:
        self._host = host
        self.name = name
        self.base_path = base_path
        """The directory of the model's versions. The server polls it every 50 ms."""

    @property
    def server(self) -> ModelServer:
        """The module's server."""
        return self._host.server

    def configure(self, settings: Mapping[str, Any] | None = None, config: str = "") -> None:
        """Changes the model's settings or its fields in the config file, which `ModelHost.model` explains.

        Values that are left out become the default ones.
        """
        self._host.configure(self.name, self.base_path, settings or {}, config)

    def serve(self, export: Path, version: int = 1) -> "HostedModel":
        """Drops a copy of the export as this version, waits until it is AVAILABLE, and returns itself."""
        drop(export, self.base_path, version)
        self.wait_until_available(version)
        return self

    def wait_until_available(self, version: int | None = None) -> None:
        """Waits until the version (any version, if it is None) is AVAILABLE.

        A status may be AVAILABLE a moment before HTTP's documents are. The log has the version after both.
        """
        self.server.wait_until_available(self.name, version)
        self.wait_for_log("version_available", **({} if version is None else {"version": version}))

    def wait_for_states(self, states: Mapping[int, ServableState]) -> None:
        """Waits until each version in `states` has its state there."""
        with Client(self.server.admin_target) as client:
            wait_for_states(client, self.name, states)

    def wait_for_log(self, event: str, **values: object) -> LogEvent:
        """Waits for an event of this model with these values; past events count too."""
        return wait_for_log(self.server, event, model=self.name, **values)

    def problem_of_swap(self, version: int) -> str:
        """Returns the problem of the swap that brought the version, which is known as soon as it answers."""
        self.wait_until_available(version)
        client = RestClient(self.server)

        def results() -> list[dict[str, Any]]:
            _, document, _ = client.ask("GET", "/v1/swaps")
            return [
                swap
                for swap in document["swaps"]
                if (swap["model"], swap["version"]) == (self.name, version) and swap["result"]
            ]

        wait_until(lambda: bool(results()), f"the result of the swap to {self.name} {version}")
        (swap,) = results()
        return str(swap["problem"])

    def wait_until_kept(self, count: int) -> None:
        """Waits until the model's reservoir holds `count` requests.

        A request is kept after its answer is sent, and no request is kept while another one is
        being copied.
        """
        pages = ServerPages(self.server.url)
        family = "serving_reservoir_requests"
        wait_until(
            lambda: pages.metrics().value(family, model=self.name) == count,
            f"{count} requests in the reservoir of {self.name}",
        )

    def only_logged(self, event: str, **values: object) -> LogEvent:
        """Waits for an event of this model with these values, which must be the only one until now."""
        return only_logged(self.server, event, model=self.name, **values)

    def logged(self, event: str, **values: object) -> list[LogEvent]:
        """Returns the events of this model with these values that are logged until now."""
        return logged(self.server, event, model=self.name, **values)


class ModelHost:
    """A server that starts with the first model, and takes further ones by its config file.

    The server reads its files every 50 ms, and tries a failed load again after a second. Its other
    flags are those of the module's fixture `host_flags`. A model leaves the config file when the next
    test adds one.
    """

    def __init__(self, start: Callable[..., ModelServer], directory: Path, **flags: object) -> None:
        self._start = start
        self._directory = directory
        self._flags = flags
        self._numbers = itertools.count(1)
        self._server: ModelServer | None = None
        self._configs: dict[str, str] = {}
        self._settings: dict[str, str] = {}
        # With the names of former tests: a second model of a name could pass on the log of the first.
        self._used_names: set[str] = set()

    @property
    def server(self) -> ModelServer:
        """The server, which runs once a model was added."""
        assert self._server is not None, "the server starts with the first model"
        return self._server

    def model(
        self,
        base_path: Path | None = None,
        *,
        prefix: str = "model",
        name: str = "",
        settings: Mapping[str, Any] | None = None,
        config: str = "",
    ) -> HostedModel:
        """Adds a model, and returns it at once: nothing of it need be loaded yet.

        `base_path` is a directory of its own if it is left out. `settings` are the keys of the
        model's table in the settings file; a mapping in it is a table. `config` has further fields of
        its entry in the config file, such as `version_labels { … }`. The name begins with `prefix`, or
        is `name`, which no other test of the module may use.
        """
        name = name or f"{prefix}_{next(self._numbers)}"
        assert name not in self._used_names, f"another test has, or had, the model {name}"
        self._used_names.add(name)
        if base_path is None:
            base_path = self._directory / name
            base_path.mkdir()
        self.configure(name, base_path, settings or {}, config)
        return HostedModel(self, name, base_path)

    def configure(
        self, name: str, base_path: Path | str, settings: Mapping[str, Any], config: str
    ) -> None:
        """Adds the model with this name, or changes it, and waits until the server knows of that."""
        known_count = len(self._changes(name))
        self._configs[name] = f'config {{ name: "{name}" base_path: "{base_path}" {config} }}'
        self._settings[name] = _table(f"models.{name}", settings)
        self._write()
        if self._server is None:
            self._server = self._start(
                model_config_file=self._config_file,
                model_config_file_poll_wait_seconds=0.05,
                model_settings_file=self._settings_file,
                **{"load_retry_interval_micros": _RETRY_MICROS, **self._flags},
            )
        else:
            wait_until(lambda: len(self._changes(name)) > known_count, f"the change of {name}")

    def _changes(self, name: str) -> list[LogEvent]:
        """Returns the changes of the configuration so far that name the model."""
        events = logged(self._server, "config_changed") if self._server else []
        return [event for event in events if f" model {name}:" in str(event["changes"])]

    def remove(self, name: str) -> None:
        """Takes the model out of the files at once; another one must stay."""
        del self._configs[name], self._settings[name]
        self._write()

    @contextmanager
    def models_of_a_test(self) -> Iterator[None]:
        """Takes the models that were added inside `with` out of the files when the next one is added."""
        kept = set(self._configs)
        try:
            yield
        finally:
            for name in set(self._configs) - kept:
                del self._configs[name], self._settings[name]

    @property
    def _config_file(self) -> Path:
        return self._directory / "models.config"

    @property
    def _settings_file(self) -> Path:
        return self._directory / "settings.toml"

    def _write(self) -> None:
        # Settings first: the server refuses settings of a model that is not configured, until it sees both
        # files. So no model is ever without its settings.
        _replace(self._settings_file, "\n".join(self._settings.values()))
        _replace(self._config_file, f"model_config_list {{ {' '.join(self._configs.values())} }}")


def _replace(path: Path, text: str) -> None:
    beside = path.with_suffix(".partial")
    beside.write_text(text)
    beside.rename(path)


def _table(name: str, values: Mapping[str, Any]) -> str:
    """Returns a TOML table; a mapping among the values is a table below it."""
    keys = [f"{key} = {json.dumps(value)}" for key, value in values.items() if not _is_table(value)]
    tables = [_table(f"{name}.{key}", value) for key, value in values.items() if _is_table(value)]
    return "\n".join([f"[{name}]", *keys, *tables])


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)

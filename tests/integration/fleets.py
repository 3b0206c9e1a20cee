"""Coordinators of fleets, and clients that ask fleets all the time."""

import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np

from fleet.config.config import STATUS_PATH, parse_fleet_config
from fleet.service import FleetService
from serving import ModelServer
from serving.base.clock import SystemClock
from serving.base.errors import MillpondError
from serving.client import Client
from tests.integration.clients import TIMEOUT_SECONDS, wait_until
from tests.integration.logs import logged
from tests.integration.steady_clients import SteadyThreads

# A call of any client.
Call = Callable[[], Any]
StartServer = Callable[..., ModelServer]


class Load(SteadyThreads):
    """Threads that call over and over, and count the answers and the failures."""

    def __init__(self, call: Call, count: int = 3) -> None:
        super().__init__(count)
        self._call = call

    def run(self, number: int) -> None:
        """Implements SteadyThreads."""
        while not self.is_stopping:
            self.pause()
            try:
                self._call()
            except Exception as error:  # noqa: BLE001 (every failure counts)
                self.failures.append(str(error))
            else:
                self.answer_counts[0] += 1

    def wait_for_more(self, count: int) -> None:
        """Waits for further answers, whatever fails meanwhile."""
        wanted = self.answer_counts[0] + count
        wait_until(lambda: self.answer_counts[0] >= wanted, f"{count} more answers")


def answer_of(server: ModelServer, model: str) -> float:
    """Returns the answer of a `ScaleModel` to 1, which names its version; 0 while it has none."""
    with Client(server.target) as client:
        try:
            answered = client.predict(model, {"x": np.ones(1, np.float32)})
        except MillpondError:
            return 0.0
    return float(np.asarray(answered.outputs["y"])[0])


class Members:
    """Servers of a fleet with one configuration, to which each test adds a model."""

    def __init__(
        self,
        start: StartServer,
        directory: Path,
        names: Sequence[str],
        flags: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """`flags` makes further flags of a server."""
        self._start = start
        self._directory = directory
        self._names = names
        self._flags = flags
        self._numbers = itertools.count(1)
        self.servers: dict[str, ModelServer] = {}

    def add_model(self) -> str:
        """Replaces the model of the test before by another one, and returns its name."""
        model = f"scale_{next(self._numbers)}"
        path = self.base_path_of(model)
        path.mkdir()
        # The fleet judges versions that fail requests, and not the servers.
        _replace(
            self._directory / "settings.toml",
            f"[models.{model}]\nkeep_previous_seconds = 600\n"
            f'[models.{model}.gates]\nself_warm_up = "warn"\nfailed_share = "warn"\n',
        )
        _replace(
            self._directory / "models.config",
            f'model_config_list {{ config {{ name: "{model}" base_path: "{path}" }} }}',
        )
        if not self.servers:
            self.servers = {name: self._started(name) for name in self._names}
        else:
            wait_until(lambda: all(self._known(model)), f"the servers know {model}")
        return model

    def base_path_of(self, model: str) -> Path:
        return self._directory / model

    def restart(self, name: str) -> ModelServer:
        """Starts a server again, which the test has stopped."""
        self.servers[name] = self._started(name)
        return self.servers[name]

    def with_event(self, event: str, **values: object) -> list[str]:
        """Returns the server of each event with these values."""
        return [
            name for name, server in self.servers.items() for _ in logged(server, event, **values)
        ]

    def answers(self, model: str) -> list[float]:
        """Returns the answer of each server: versions of the model differ by it."""
        return [answer_of(server, model) for server in self.servers.values()]

    def _started(self, name: str) -> ModelServer:
        return self._start(
            model_config_file=self._directory / "models.config",
            model_config_file_poll_wait_seconds=0.05,
            model_settings_file=self._directory / "settings.toml",
            state_directory=self._directory / name,
            fleet_member=True,
            drain_seconds=1,
            **self._flags(),
        )

    def _known(self, model: str) -> Iterator[bool]:
        for server in self.servers.values():
            changes = (str(event["changes"]) for event in logged(server, "config_changed"))
            yield any(f" model {model}:" in change for change in changes)


def _replace(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


def server_tables(servers: dict[str, ModelServer]) -> str:
    """Returns the tables of these servers in a fleet's configuration."""
    return "".join(
        f'[servers.{name}]\nadmin = "{server.admin_target}"\ngrpc = "{server.target}"\n'
        for name, server in servers.items()
    )


@contextmanager
def running_coordinator(directory: Path, tables: str) -> Iterator[FleetService]:
    """Runs a coordinator in a thread, whose state and registry lie in `directory`."""
    config = parse_fleet_config(
        f"[coordinator]\nstate_directory = {str(directory / 'fleet')!r}\n"
        f'listen = "127.0.0.1:0"\npoll_seconds = 0.1\n'
        f"registry_file = {str(directory / 'servers.json')!r}\n{tables}"
    )
    service = FleetService(config, SystemClock())
    thread = threading.Thread(target=service.run, name="coordinator")
    thread.start()
    try:
        wait_until(lambda: service.operator_address, "the coordinator listens")
        yield service
    finally:
        service.stop()
        thread.join()


def status_of(port: int) -> dict[str, Any]:
    """Returns what the coordinator with this port knows of its models and servers; {} while none leads."""
    url = f"http://127.0.0.1:{port}{STATUS_PATH}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply:
            found: dict[str, Any] = json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return {}
    return found


def is_stable(port: int, model: str, version: int) -> bool:
    """Returns True if the fleet has the version, and no other one is on its way."""
    found = status_of(port).get("models", {}).get(model)
    return found is not None and (found["stable"], found["rollout"]) == (version, None)


def blocked_by(status: dict[str, Any]) -> dict[int, str]:
    """Returns who has blocked each blocked version."""
    return {row["version"]: row["by"] for row in status.get("blocked_versions", ())}

"""A coordinator with real servers: a version comes in waves, a bad one stays on its first server."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.base.clock import SystemClock
from serving.base.errors import MillpondError
from serving.client import Client
from serving.fleet.config import parse_fleet_config
from serving.fleet.failures import FAILED_COUNT_MIN
from serving.fleet.service import FleetService
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged
from tests.integration.processes import millpond

SERVER_COUNT = 3
PATIENCE_SECONDS = 120


def wait_for(is_so: Callable[[], object], what: str = "the fleet changes") -> None:
    wait_until(is_so, what, PATIENCE_SECONDS)


def _answer(server: ModelServer) -> float:
    """Returns the answer of the server's version to 1; 0 while it has none."""
    with Client(server.target) as client:
        try:
            answered = client.predict("scale", {"x": np.ones(1, np.float32)}, timeout_seconds=5)
        except MillpondError:
            return 0.0
    return float(np.asarray(answered.outputs["y"])[0])


@dataclass
class Fleet:
    """Three servers of one base path, and a coordinator that a test may end and start again."""

    servers: dict[str, ModelServer]
    directory: Path
    running: list[tuple[FleetService, threading.Thread]] = field(default_factory=list)

    def start_coordinator(self, waves: str = 'sizes = ["1"]\njudged_seconds = 1') -> None:
        tables = "".join(
            f'[servers.{name}]\nadmin = "{server.admin_target}"\ngrpc = "{server.target}"\n'
            for name, server in self.servers.items()
        )
        config = parse_fleet_config(
            f"[coordinator]\nstate_directory = {str(self.directory / 'fleet')!r}\n"
            f'listen = "127.0.0.1:0"\npoll_seconds = 0.1\n'
            f"registry_file = {str(self.directory / 'servers.json')!r}\n"
            f"[waves]\n{waves}\nload_count_max = 1\nlost_seconds = 5\n"
            f"{tables}"
        )
        service = FleetService(config, SystemClock())
        thread = threading.Thread(target=service.run)
        thread.start()
        self.running.append((service, thread))
        wait_for(lambda: service.port, "the coordinator listens")

    def stop_coordinator(self) -> None:
        service, thread = self.running.pop()
        service.stop()
        thread.join()

    def command(self, *arguments: str) -> str:
        port = self.running[-1][0].port
        ended = millpond("fleet", *arguments, f"--coordinator=127.0.0.1:{port}")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def granted(self, version: int) -> list[str]:
        """Returns the servers that were granted a version at some time."""
        return [
            name
            for name, server in self.servers.items()
            if any(event["version"] == version for event in logged(server, "version_granted"))
        ]

    def loads(self, version: int) -> list[str]:
        """Returns the server of each load of a version that has begun."""
        return [
            name
            for name, server in self.servers.items()
            for event in logged(server, "load_started")
            if event["version"] == version
        ]

    def answers(self) -> list[float]:
        """Returns the answer of each server: versions of the model differ by it."""
        return [_answer(server) for server in self.servers.values()]

    def wait_for_answers(self, *wanted: float) -> None:
        wait_for(lambda: self.answers() == [*wanted], f"answers {wanted}")


@pytest.fixture
def fleet(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
) -> Iterator[Fleet]:
    scale_model.write(base_path, 1)
    settings = tmp_path / "settings.toml"
    # The fleet judges versions that fail requests, and not the servers.
    settings.write_text(
        "[models.scale]\nkeep_previous_seconds = 600\n"
        '[models.scale.gates]\nself_warm_up = "warn"\nfailed_share = "warn"\n'
    )

    def start(name: str) -> ModelServer:
        return start_server(
            model_name="scale",
            base_path=base_path,
            model_settings_file=settings,
            state_directory=tmp_path / name,
            fleet_member=True,
            drain_seconds=1,
            listen_before_ready=True,
        )

    made = Fleet({f"s{number}": start(f"s{number}") for number in range(SERVER_COUNT)}, tmp_path)
    made.start_coordinator()
    try:
        made.wait_for_answers(2.0, 2.0, 2.0)
        wait_for(lambda: "stable version 1" in made.command("status"))
        yield made
    finally:
        while made.running:
            made.stop_coordinator()


def test_good_version_reaches_the_fleet(
    fleet: Fleet, scale_model: ScaleModel, base_path: Path
) -> None:
    scale_model.write(base_path, 2)
    fleet.wait_for_answers(4.0, 4.0, 4.0)
    wait_for(lambda: "stable version 2" in fleet.command("status"))
    loads = [logged(server, "load_started") for server in fleet.servers.values()]
    assert all([event["version"] for event in events] == [1, 2] for events in loads)
    assert '"scale": 2' in (fleet.directory / "servers.json").read_text()


def test_refused_version_stays_on_one_server(
    fleet: Fleet, echo_export: Path, base_path: Path
) -> None:
    shutil.copytree(echo_export, base_path / ".3")
    (base_path / ".3").rename(base_path / "3")
    wait_for(lambda: "version 3 is blocked by its judgement" in fleet.command("status"))
    wait_for(lambda: _all_granted(fleet, 1))
    assert len(fleet.granted(3)) == 1
    assert fleet.answers() == [2.0, 2.0, 2.0]
    # An operator lets it be tried once more, and it is refused once more.
    fleet.command("allow", "scale", "3")
    wait_for(lambda: len(fleet.loads(3)) == 2)
    wait_for(lambda: "version 3 is blocked by its judgement" in fleet.command("status"))
    assert fleet.answers() == [2.0, 2.0, 2.0]


def test_failing_version_is_stopped_in_the_last_wave(
    fleet: Fleet, scale_model: ScaleModel, base_path: Path
) -> None:
    fleet.stop_coordinator()
    fleet.start_coordinator(waves=f"sizes = []\njudged_seconds = {PATIENCE_SECONDS}")
    # Without `offsets[0]` each request fails.
    scale_model.write(base_path, 2, offset_count=0)
    on_each = f"version 2 is in wave 1 of 1, on {SERVER_COUNT} of {SERVER_COUNT} servers"
    wait_for(lambda: on_each in fleet.command("status"))
    with Client(fleet.servers["s1"].target) as client:
        for _ in range(FAILED_COUNT_MIN):
            with pytest.raises(MillpondError):
                client.predict("scale", {"x": np.ones(1, np.float32)})
    wait_for(lambda: "version 2 is blocked by its judgement: all its" in fleet.command("status"))
    fleet.wait_for_answers(2.0, 2.0, 2.0)


def test_operator_rolls_the_fleet_back(
    fleet: Fleet, scale_model: ScaleModel, base_path: Path
) -> None:
    scale_model.write(base_path, 2)
    fleet.wait_for_answers(4.0, 4.0, 4.0)
    wait_for(lambda: "stable version 2" in fleet.command("status"))
    fleet.command("rollback", "scale", "--reason=wrong answers")
    fleet.wait_for_answers(2.0, 2.0, 2.0)
    assert "version 2 is blocked by an operator: wrong answers" in fleet.command("status")
    # The version before was still in memory.
    for server in fleet.servers.values():
        assert [event["version"] for event in logged(server, "load_started")] == [1, 2]


def test_fleet_goes_on_after_its_coordinator_ends(
    fleet: Fleet, scale_model: ScaleModel, base_path: Path
) -> None:
    fleet.stop_coordinator()
    # The first wave lasts until this coordinator ends.
    fleet.start_coordinator(waves=f'sizes = ["1"]\njudged_seconds = {PATIENCE_SECONDS}')
    scale_model.write(base_path, 2)
    wait_for(lambda: fleet.granted(2) != [])
    fleet.stop_coordinator()
    assert len(fleet.granted(2)) == 1
    fleet.start_coordinator()
    fleet.wait_for_answers(4.0, 4.0, 4.0)


def test_member_without_coordinator_keeps_its_grant(
    fleet: Fleet, start_server: StartServer, base_path: Path, scale_model: ScaleModel
) -> None:
    fleet.stop_coordinator()
    fleet.servers["s0"].stop()
    scale_model.write(base_path, 2)
    restarted = start_server(
        model_name="scale",
        base_path=base_path,
        state_directory=fleet.directory / "s0",
        fleet_member=True,
        drain_seconds=1,
    )
    restarted.wait_until_available("scale", 1)
    with Client(restarted.admin_target) as client:
        assert client.describe_models()["scale"]["default_version"] == 1


def test_member_unloads_a_withdrawn_version(
    start_server: StartServer, base_path: Path, scale_model: ScaleModel, tmp_path: Path
) -> None:
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        state_directory=tmp_path / "state",
        fleet_member=True,
        drain_seconds=1,
        listen_before_ready=True,
    )
    with Client(server.admin_target) as client:
        assert client.grant("scale", 1, 1) == 1
        server.wait_until_available("scale", 1)
        assert client.grant("scale", None, 2) is None
        wait_for(lambda: "default_version" not in client.describe_models()["scale"])
        assert client.grant("scale", 1, 1) is None
        assert client.grant("scale", 1, 3) == 1
        wait_for(lambda: _answer(server) == 2.0)


def test_command_runs_a_coordinator_until_sigterm(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text(
        f'[coordinator]\nstate_directory = "{tmp_path / "state"}"\nlisten = "127.0.0.1:0"\n'
        f'[servers.a]\nadmin = "unix:{tmp_path / "nowhere"}"\n'
    )
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "serving", "fleet", "start", str(config)], stderr=stderr
        )
        wait_for(lambda: "fleet_server_unreachable" in log.read_text(), "a line of the log")
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["fleet_started", "fleet_server_unreachable"]


def _all_granted(fleet: Fleet, version: int) -> bool:
    def granted(server: ModelServer) -> Any:
        with Client(server.admin_target) as client:
            return client.fleet_report([])["models"]["scale"]["granted"]

    return all(granted(server) == version for server in fleet.servers.values())

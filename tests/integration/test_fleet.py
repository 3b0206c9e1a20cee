"""A coordinator with real servers: a version comes in waves, a bad one stays on its first server.

The servers are the module's. Each test has a model and a coordinator of its own.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from fleet.files.service_config import stock_service_config
from fleet.http.metrics import METRICS_PATH
from fleet.rollout.failures import FAILED_COUNT_MIN
from serving import ModelServer
from serving.base.errors import MillpondError
from serving.client import Client
from tests.integration.clients import PREDICT, TIMEOUT_SECONDS, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.fleets import (
    Load,
    Members,
    answer_of,
    blocked_by,
    is_stable,
    running_coordinator,
    server_tables,
    status_of,
)
from tests.integration.processes import millpond

NAMES = ("s0", "s1", "s2")
# A time that no test outlasts.
FOR_EVER = f"judged_seconds = {10 * TIMEOUT_SECONDS}"
QUICK_WAVES = 'sizes = ["1"]\njudged_seconds = 1'


@dataclass
class Fleet:
    """The servers, the test's model, and a coordinator that the test may end and start again."""

    members: Members
    model: str
    directory: Path
    port: int = 0
    # The operators' door of the coordinator.
    operators: str = ""
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def servers(self) -> dict[str, ModelServer]:
        return self.members.servers

    def write(self, scale_model: ScaleModel, version: int, offset_count: int = 1) -> None:
        scale_model.write(self.base_path, version, offset_count=offset_count)

    @property
    def base_path(self) -> Path:
        return self.members.base_path_of(self.model)

    def start_coordinator(self, waves: str = QUICK_WAVES) -> None:
        tables = f"[waves]\n{waves}\nload_count_max = 1\nlost_seconds = 60\n"
        service = self._running.enter_context(
            running_coordinator(self.directory, tables + server_tables(self.servers))
        )
        assert service.port is not None
        self.port = service.port
        self.operators = service.operator_address

    def stop_coordinator(self) -> None:
        self._running.close()

    def status(self) -> dict[str, Any]:
        """Returns the status of the model; {} while no server has reported it."""
        found: dict[str, Any] = status_of(self.port).get("models", {}).get(self.model, {})
        return found

    def wait_for_stable(self, version: int) -> None:
        wait_until(
            lambda: is_stable(self.port, self.model, version), f"version {version} is stable"
        )

    def wait_for_block(self, version: int) -> None:
        wait_until(
            lambda: blocked_by(self.status()) == {version: "canary"}, f"the block of {version}"
        )

    def command(self, *arguments: str) -> str:
        ended = millpond("fleet", *arguments, f"--target={self.operators}")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def granted(self, version: int) -> list[str]:
        """Returns the servers that were granted a version at some time."""
        return self._with_event("version_granted", version)

    def loads(self, version: int) -> list[str]:
        """Returns the server of each load of a version that has begun."""
        return self._with_event("load_started", version)

    def _with_event(self, event: str, version: int) -> list[str]:
        return self.members.with_event(event, model=self.model, version=version)

    def answers(self) -> list[float]:
        """Returns the answer of each server: versions of the model differ by it."""
        return self.members.answers(self.model)

    def wait_for_answers(self, *wanted: float) -> None:
        wait_until(lambda: self.answers() == [*wanted], f"answers {wanted}")


@pytest.fixture(scope="module")
def members(start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Members:
    return Members(start_module_server, tmp_path_factory.mktemp("members"), NAMES)


@pytest.fixture
def alone(members: Members, scale_model: ScaleModel, tmp_path: Path) -> Iterator[Fleet]:
    """A fleet of a model with version 1, without a coordinator."""
    made = Fleet(members, members.add_model(), tmp_path)
    made.write(scale_model, 1)
    yield made
    made.stop_coordinator()


@pytest.fixture
def fleet(alone: Fleet) -> Fleet:
    """A fleet with a coordinator and version 1 on each server."""
    alone.start_coordinator()
    alone.wait_for_answers(2.0, 2.0, 2.0)
    alone.wait_for_stable(1)
    return alone


def test_good_version_reaches_the_fleet(fleet: Fleet, scale_model: ScaleModel) -> None:
    fleet.write(scale_model, 2)
    fleet.wait_for_answers(4.0, 4.0, 4.0)
    fleet.wait_for_stable(2)
    assert f"{fleet.model}: stable version 2, before it 1" in fleet.command("status")
    assert fleet.loads(1) == fleet.loads(2) == [*NAMES]
    assert f'"{fleet.model}": 2' in (fleet.directory / "servers.json").read_text()


def test_refused_version_stays_on_one_server(fleet: Fleet, echo_export: Path) -> None:
    shutil.copytree(echo_export, fleet.base_path / ".3")
    (fleet.base_path / ".3").rename(fleet.base_path / "3")
    fleet.wait_for_block(3)
    assert "version 3 is blocked by its judgement" in fleet.command("status")
    wait_until(lambda: all_granted(fleet, 1), "version 1 everywhere")
    assert len(fleet.granted(3)) == 1
    assert fleet.answers() == [2.0, 2.0, 2.0]
    # An operator lets it be tried once more, and it is refused once more.
    fleet.command("allow", fleet.model, "3")
    wait_until(lambda: len(fleet.loads(3)) == 2, "another load")
    fleet.wait_for_block(3)
    assert fleet.answers() == [2.0, 2.0, 2.0]


def test_warned_version_waits_on_one_server(fleet: Fleet, scale_model: ScaleModel) -> None:
    # Without `offsets[0]` each request fails, of which the server's gates only warn.
    fleet.write(scale_model, 2, offset_count=0)

    def has_held() -> bool:
        rollout = fleet.status().get("rollout") or {}
        # The wave has no requests, and would have passed after a second.
        return bool(rollout.get("is_held")) and (rollout["judgement"]["passed_seconds"] or 0) > 3

    wait_until(has_held, "version 2 is held")
    printed = fleet.command("status")
    assert f"{fleet.model}: a gate has warned on s" in printed
    assert "millpond fleet promote or abort" in printed
    assert fleet.status()["rollout"]["wave"] == 1
    assert len(fleet.granted(2)) == 1
    fleet.command("abort", fleet.model)
    fleet.wait_for_answers(2.0, 2.0, 2.0)


def test_failing_version_is_stopped_in_the_last_wave(fleet: Fleet, scale_model: ScaleModel) -> None:
    fleet.stop_coordinator()
    fleet.start_coordinator(waves=f'sizes = []\nwarned_gates = "pass"\n{FOR_EVER}')
    # Without `offsets[0]` each request fails.
    fleet.write(scale_model, 2, offset_count=0)

    def is_on_each() -> bool:
        rollout = fleet.status().get("rollout") or {}
        found = [rollout.get(key) for key in ("version", "wave", "wave_count", "serving_count")]
        return found == [2, 1, 1, len(NAMES)]

    wait_until(is_on_each, "version 2 on each server")
    with Client(fleet.servers["s1"].target) as client:

        def is_blocked_after_requests() -> bool:
            # Requests count from the coordinator's look on at which each server had the version.
            for _ in range(FAILED_COUNT_MIN):
                with suppress(MillpondError):
                    client.predict(fleet.model, {"x": np.ones(1, np.float32)})
            return blocked_by(fleet.status()) == {2: "canary"}

        wait_until(is_blocked_after_requests, "the block of version 2")
    assert "version 2 is blocked by its judgement: all its" in fleet.command("status")
    fleet.wait_for_answers(2.0, 2.0, 2.0)


def test_operator_rolls_the_fleet_back(fleet: Fleet, scale_model: ScaleModel) -> None:
    fleet.write(scale_model, 2)
    fleet.wait_for_answers(4.0, 4.0, 4.0)
    fleet.wait_for_stable(2)
    fleet.command("rollback", fleet.model, "--reason=wrong answers")
    fleet.wait_for_answers(2.0, 2.0, 2.0)
    assert "version 2 is blocked by an operator: wrong answers" in fleet.command("status")
    # The version before was still in memory.
    assert fleet.loads(1) == fleet.loads(2) == [*NAMES]


def test_fleet_goes_on_after_its_coordinator_ends(fleet: Fleet, scale_model: ScaleModel) -> None:
    fleet.stop_coordinator()
    # The first wave lasts until this coordinator ends.
    fleet.start_coordinator(waves=f'sizes = ["1"]\n{FOR_EVER}')
    fleet.write(scale_model, 2)
    wait_until(lambda: fleet.granted(2), "version 2 on a server")
    fleet.stop_coordinator()
    assert len(fleet.granted(2)) == 1
    fleet.start_coordinator()
    fleet.wait_for_answers(4.0, 4.0, 4.0)


def test_coordinator_serves_page_and_metrics(fleet: Fleet) -> None:
    address = f"http://127.0.0.1:{fleet.port}"
    assert "Millpond fleet" in httpx.get(address, headers={"Accept": "text/html"}).text
    assert httpx.get(address, headers={"Host": "evil.example"}).status_code != 200
    metrics = httpx.get(address + METRICS_PATH).text
    assert 'fleet_servers{state="live"} 3.0' in metrics
    calls = [line for line in metrics.splitlines() if line.startswith("fleet_calls_total")]
    assert all(float(line.rpartition(" ")[2]) > 0 for line in calls), calls


def test_stock_client_loses_nothing_as_servers_drain(fleet: Fleet) -> None:
    target = f"ipv4:{','.join(server.target for server in fleet.servers.values())}"
    config = json.dumps(stock_service_config())
    request = predict_request(fleet.model, {"x": np.ones(1, np.float32)}).SerializeToString()
    with grpc.insecure_channel(target, [("grpc.service_config", config)]) as channel:
        call: Any = channel.unary_unary(PREDICT)
        load = Load(lambda: call(request, timeout=TIMEOUT_SECONDS))
        with load.running():
            load.wait_for_more(300)
            assert all(request_count(server, fleet.model) for server in fleet.servers.values())
            fleet.servers["s0"].stop()
            load.wait_for_more(300)
            # The coordinator's end changes nothing for clients.
            fleet.stop_coordinator()
            fleet.servers["s1"].stop()
            load.wait_for_more(300)
    assert load.failures == []
    for name in ("s0", "s1"):
        fleet.members.restart(name)


def test_member_without_coordinator_keeps_its_grant(fleet: Fleet, scale_model: ScaleModel) -> None:
    fleet.stop_coordinator()
    fleet.servers["s0"].stop()
    fleet.write(scale_model, 2)
    restarted = fleet.members.restart("s0")
    restarted.wait_until_available(fleet.model, 1)
    assert described(restarted, fleet.model)["default_version"] == 1


def test_member_unloads_a_withdrawn_version(alone: Fleet) -> None:
    server, model = alone.servers["s0"], alone.model
    with Client(server.admin_target) as client:
        assert client.grant(model, 1, 1) == 1
        server.wait_until_available(model, 1)
        assert client.grant(model, None, 2) is None
        wait_until(lambda: "default_version" not in described(server, model), "nothing is served")
        assert client.grant(model, 1, 1) is None
        assert client.grant(model, 1, 3) == 1
        wait_until(lambda: answer_of(server, model) == 2.0, "version 1 answers")


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
        wait_until(lambda: "fleet_server_unreachable" in log.read_text(), "a line of the log")
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["fleet_started", "fleet_server_unreachable"]


def described(server: ModelServer, model: str) -> dict[str, Any]:
    with Client(server.admin_target) as client:
        found: dict[str, Any] = client.describe_models()[model]
    return found


def request_count(server: ModelServer, model: str) -> int:
    return sum(version["request_count"] for version in described(server, model)["versions"])


def all_granted(fleet: Fleet, version: int) -> bool:
    def granted(server: ModelServer) -> Any:
        with Client(server.admin_target) as client:
            return client.fleet_report([])["models"][fleet.model]["granted"]

    return all(granted(server) == version for server in fleet.servers.values())

"""A fleet on a real Ray cluster of two nodes, behind HAProxy: waves, deaths, restarts, fewer servers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from loadtest.drive.fleet_model import GOOD, MODEL_NAME, NAN, FleetModel
from loadtest.drive.ray_cluster import LocalCluster, RayFleet, ray_fleet
from loadtest.measure.ray_scenarios import SERVER_SETTINGS, Scenarios, fleet_tables
from loadtest.measure.retried_load import RetriedLoad
from serving.base.clock import SystemClock
from tests.integration.processes import millpond

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")
pytestmark = pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed")

SERVER_COUNT = 2
# No wave is judged by requests: they are few, and the machine is busy.
WAVES = "request_count = 0\njudged_seconds = 2\n"


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder with a short name: Ray's UNIX sockets lie in it."""
    with TemporaryDirectory(prefix="mp-ray-") as text:
        yield Path(text)


@pytest.fixture
def model(directory: Path) -> FleetModel:
    made = FleetModel(directory / "model")
    made.drop(GOOD, 1)
    return made


def tables(address: str, model: FleetModel, directory: Path, servers: int = SERVER_COUNT) -> str:
    settings = directory / "settings.toml"
    settings.write_text(SERVER_SETTINGS)
    return fleet_tables(address, model, settings, servers=servers, waves=WAVES)


def restart_by_command(fleet: RayFleet) -> None:
    """The operator's commands reach the coordinator through the front."""
    ended = millpond("fleet", "restart", f"--coordinator=127.0.0.1:{fleet.front_port}")
    assert ended.returncode == 0, ended.stderr
    assert "to come" in ended.stdout


def shrink(cluster: LocalCluster, fleet: RayFleet, model: FleetModel, directory: Path) -> None:
    fleet.change(tables(cluster.address, model, directory, servers=1))
    fleet.wait_for(lambda: len(fleet.replicas()) == 1, "one server")


def test_fleet_on_ray_keeps_every_request(directory: Path, model: FleetModel) -> None:
    def made(address: str) -> str:
        return tables(address, model, directory)

    with ray_fleet(directory, 2, made) as (cluster, fleet):
        fleet.wait_for(lambda: len(fleet.serving(MODEL_NAME)) == SERVER_COUNT, "the servers", 200)
        assert len({row["node"] for row in fleet.replicas()}) == 2
        with RetriedLoad(fleet.target, 20, SystemClock()) as load:
            scenarios = Scenarios(cluster, fleet, model, load, SystemClock(), print)
            scenarios.good_version()
            scenarios.bad_version("NaN", NAN)
            scenarios.coordinator_killed()
            scenarios.servers_restarted(lambda: restart_by_command(fleet))
            scenarios.server_killed()
            scenarios.node_killed()
            shrink(cluster, fleet, model, directory)
        reports = scenarios.reports
    assert {name: row["failed"] for name, row in reports.items()} == dict.fromkeys(reports, 0)
    assert {name: row["wrong"] for name, row in reports.items()} == dict.fromkeys(reports, 0)
    assert all(row["requests"] for row in reports.values())
    assert reports["NaN"]["verdict"] == "loads"
    # Servers that were drained have lost no attempt.
    assert reports["a rolling restart"]["failed_attempts"] == {}

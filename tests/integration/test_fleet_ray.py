"""A fleet on a real Ray cluster of two nodes, behind HAProxy: waves, deaths, restarts, fewer servers."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fleet.files.haproxy import fingerprint_of
from fleet.files.haproxy_process import running_fingerprint
from loadtest.drive.fleet_model import GOOD, MODEL_NAME, NAN, FleetModel
from loadtest.drive.ray_cluster import LocalCluster, RayFleet, ray_fleet
from loadtest.measure.ray_scenarios import SERVER_SETTINGS, Scenarios, fleet_tables
from loadtest.measure.retried_load import RetriedLoad
from serving.base.clock import SystemClock
from serving.base.errors import Unavailable
from tests.integration.kept_exports import exported_by, kept_export
from tests.integration.processes import millpond

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")
pytestmark = [
    pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed"),
    # One test starts a dozen actors one after another, beside the other lanes of `make test`.
    pytest.mark.timeout(1500),
]

SERVER_COUNT = 2
# No wave is judged by requests: they are few, and the machine is busy.
WAVES = 'sizes = ["1"]\nrequest_count = 0\njudged_seconds = 2\n'


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder with a short name: Ray's UNIX sockets lie in it."""
    with TemporaryDirectory(prefix="mp-ray-") as text:
        yield Path(text)


def tables(address: str, model: FleetModel, directory: Path, servers: int = SERVER_COUNT) -> str:
    settings = directory / "settings.toml"
    settings.write_text(SERVER_SETTINGS)
    return fleet_tables(address, model, settings, servers=servers, waves=WAVES)


def wait_for_servers(fleet: RayFleet) -> None:
    fleet.wait_for(lambda: len(fleet.serving(MODEL_NAME)) == SERVER_COUNT, "the servers", 300)


def wait_for_haproxy(fleet: RayFleet, directory: Path) -> None:
    """Waits until HAProxy runs with each server: a restarted one joins a moment after the coordinator knows it."""

    def has_each_server() -> bool:
        text = (directory / "haproxy.cfg").read_text()
        is_complete = text.count("\n    server ") == SERVER_COUNT and "weight 0" not in text
        return is_complete and running_fingerprint(
            str(directory / "haproxy.sock")
        ) == fingerprint_of(text)

    fleet.wait_for(has_each_server, "HAProxy has the servers")


def restart_by_command(fleet: RayFleet) -> None:
    """The operator's commands reach the coordinator through the front."""
    ended = millpond("fleet", "restart", f"--target={fleet.operators}")
    assert ended.returncode == 0, ended.stderr
    assert "to come" in ended.stdout


def shrink(cluster: LocalCluster, fleet: RayFleet, model: FleetModel, directory: Path) -> None:
    fleet.change(tables(cluster.address, model, directory, servers=1))
    fleet.wait_for(lambda: len(fleet.replicas()) == 1, "one server")


def parent_of(process_id: int) -> int:
    stat = Path(f"/proc/{process_id}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def check_priorities(fleet: RayFleet) -> None:
    """Servers, their actors and the coordinator have the usual priority, and not that of Ray's workers."""
    servers = [row["process_id"] for row in fleet.replicas()]
    actors = [parent_of(server) for server in servers]
    for process_id in [*servers, *actors, fleet.deployment.place()["process_id"]]:
        score = Path(f"/proc/{process_id}/oom_score_adj").read_text().strip()
        assert (os.getpriority(os.PRIO_PROCESS, process_id), score) == (0, "0")


def kill_actor(fleet: RayFleet) -> None:
    """A server that hangs ends with its actor, and is started again."""
    row = fleet.replicas()[0]
    os.kill(row["process_id"], signal.SIGSTOP)
    os.kill(parent_of(row["process_id"]), signal.SIGKILL)
    process = Path(f"/proc/{row['process_id']}")
    fleet.wait_for(lambda: not process.exists(), "the end of the server")
    fleet.wait_for(
        lambda: row["launch"] not in {new["launch"] for new in fleet.replicas()}, "another launch"
    )


ORPHAN = f"millpond/{MODEL_NAME}-9/999"


class Orphan:
    """An actor of a server that no coordinator knows."""


def names_of_actors() -> list[str]:
    import ray.util

    named = ray.util.list_named_actors(all_namespaces=True)
    return [row["name"] for row in named if row["namespace"] == "millpond"]


def leave_orphan() -> None:
    """Starts an actor such as a coordinator leaves that dies between a decision and its actions."""
    import ray

    ray.remote(Orphan).options(
        name=ORPHAN, namespace="millpond", lifetime="detached", num_cpus=0
    ).remote()
    assert ORPHAN in names_of_actors()


def stop_without_coordinator(fleet: RayFleet) -> None:
    """A fleet that stops goes on with that when its coordinator dies, and ends."""
    coordinator = fleet.deployment.place()["process_id"]
    thread = threading.Thread(target=fleet.deployment.shut_down)
    thread.start()
    fleet.wait_for(lambda: {row["phase"] for row in fleet.replicas()} != {"up"}, "the stop")
    os.kill(coordinator, signal.SIGKILL)
    thread.join()
    with pytest.raises(Unavailable, match="no fleet"):
        fleet.deployment.place()
    assert names_of_actors() == []


def test_fleet_on_ray_keeps_every_request(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millpond.fleet import deploy

    # Ray finds a dead node in 3 s, and not in 15 s. A node that is slow to answer has 10 s, as before.
    monkeypatch.setenv("RAY_health_check_period_ms", "500")

    exporter = exported_by("loadtest.drive.fleet_model")
    kept = kept_export("fleet", exporter, ("loadtest/drive/fleet_model.py",))
    shutil.copytree(kept, directory / "model" / "exports")
    model = FleetModel(directory / "model")
    model.drop(GOOD, 1)

    def made(address: str) -> str:
        return tables(address, model, directory)

    with ray_fleet(directory, 2, made) as (cluster, fleet):
        wait_for_servers(fleet)
        assert len({row["node"] for row in fleet.replicas()}) == 2
        if os.geteuid() == 0:
            check_priorities(fleet)
        leave_orphan()
        kill_actor(fleet)
        wait_for_servers(fleet)
        wait_for_haproxy(fleet, directory)
        with RetriedLoad(fleet.target, 20, SystemClock()) as load:
            scenarios = Scenarios(cluster, fleet, model, load, SystemClock(), print)
            scenarios.bad_version("NaN", NAN)
            # The front logs these.
            assert "fleet_verdict" in {row.name for row in fleet.deployment.events(None)}
            # A good version reaches every server, although the coordinator dies in its first wave.
            scenarios.coordinator_killed()
            # A coordinator ends what one before it has left.
            fleet.wait_for(lambda: ORPHAN not in names_of_actors(), "the end of the orphan")
            scenarios.servers_restarted(lambda: restart_by_command(fleet))
            wait_for_haproxy(fleet, directory)
            scenarios.node_killed()
            shrink(cluster, fleet, model, directory)
        stop_without_coordinator(fleet)
        # The same configuration starts it again.
        deploy(fleet.config())
        fleet.wait_for(lambda: fleet.serving(MODEL_NAME), "a server")
    reports = scenarios.reports
    assert {name: row["failed"] for name, row in reports.items()} == dict.fromkeys(reports, 0)
    assert {name: row["wrong"] for name, row in reports.items()} == dict.fromkeys(reports, 0)
    assert all(row["requests"] for row in reports.values()), reports
    assert reports["NaN"]["verdict"] == "loads"
    # Servers that were drained have lost no attempt.
    assert reports["a rolling restart"]["failed_attempts"] == {}
    # Stock clients with a list of addresses go on.
    assert reports["a rolling restart"]["addresses kept"] == SERVER_COUNT

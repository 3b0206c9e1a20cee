"""A fleet of pods: real servers and coordinator processes, Kubernetes' API by a stand-in over HTTP.

The pods are servers on ports of 127.0.0.1. The stand-in has Kubernetes' versions, conflicts, selectors
and watches (tests/kubernetes/fake_api_server.py): no cluster was at hand.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.drive.shell_server import free_port
from serving import ModelServer
from serving.base.errors import MillpondError
from serving.client import Client
from serving.fleet.kubernetes.documents import SUMMARY_KEY, lease_record
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged
from tests.integration.processes import millpond
from tests.kubernetes.fake_api_server import FakeApiServer, serving_api
from tests.kubernetes.fake_cluster import FakeCluster, pod_object

PATIENCE_SECONDS = 120
SERVER_COUNT = 3
LEASE_SECONDS = 10


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def pod_of(name: str, server: ModelServer, *, is_terminating: bool = False) -> dict[str, Any]:
    ports = {"admin": port_of(server.admin_target), "grpc": port_of(server.target)}
    return pod_object(name, host="127.0.0.1", ports=ports, is_terminating=is_terminating)


def answer(server: ModelServer) -> float:
    """Returns the answer of the server's version to 1; 0 while it has none."""
    with Client(server.target) as client:
        try:
            answered = client.predict("scale", {"x": np.ones(1, np.float32)}, timeout_seconds=5)
        except MillpondError:
            return 0.0
    return float(np.asarray(answered.outputs["y"])[0])


class Coordinator:
    """A process of `millpond fleet start`."""

    def __init__(self, directory: Path, name: str, kubeconfig: Path) -> None:
        config = directory / f"{name}.toml"
        config.write_text(
            f'[coordinator]\nlisten = "127.0.0.1:0"\npoll_seconds = 0.2\n'
            f'[kubernetes]\nselector = "app=millpond"\nname = "fleet"\n'
            f"lease_seconds = {LEASE_SECONDS}\nkubeconfig = {str(kubeconfig)!r}\n"
            f'[waves]\nsizes = ["1"]\nload_count_max = 1\njudged_seconds = 8\nlost_seconds = 20\n'
        )
        self._log = directory / f"{name}.log"
        with self._log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "serving", "fleet", "start", str(config)], stderr=stderr
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    @property
    def leads(self) -> bool:
        return len(self.events("fleet_lease_acquired")) > len(self.events("fleet_lease_lost"))

    def command(self, *arguments: str) -> str:
        (started,) = self.events("fleet_started")
        ended = millpond(
            "fleet", *arguments, f"--coordinator=127.0.0.1:{started['http'].split()[-1]}"
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)


@dataclass
class PodFleet:
    """Three servers as pods, and the coordinators that a test starts."""

    api: FakeApiServer
    servers: dict[str, ModelServer]
    directory: Path
    coordinators: list[Coordinator] = field(default_factory=list)

    def start_coordinator(self) -> Coordinator:
        kubeconfig = self.api.write_kubeconfig(self.directory / "kubeconfig")
        name = f"coordinator-{len(self.coordinators)}"
        self.coordinators.append(Coordinator(self.directory, name, kubeconfig))
        started = self.coordinators[-1]
        self.wait_for(lambda: started.events("fleet_started"), "the coordinator starts")
        return started

    def wait_for(self, is_so: Any, what: str) -> None:
        wait_until(is_so, what, PATIENCE_SECONDS)

    def answers(self) -> list[float]:
        return [answer(server) for server in self.servers.values()]

    def granted(self, version: int) -> list[str]:
        return [
            name
            for name, server in self.servers.items()
            if any(event["version"] == version for event in logged(server, "version_granted"))
        ]

    def loads(self) -> list[list[int]]:
        return [
            [event["version"] for event in logged(server, "load_started")]
            for server in self.servers.values()
        ]

    def notes(self) -> list[str]:
        return [str(event["note"]) for event in self.api.cluster.events]

    @property
    def term(self) -> int:
        lease = self.api.cluster.stored("leases", "fleet")
        assert lease is not None
        return lease_record(lease).term


@pytest.fixture
def empty_fleet(tmp_path: Path) -> Iterator[PodFleet]:
    """A fleet without a pod."""
    with serving_api(FakeCluster()) as api:
        made = PodFleet(api, {}, tmp_path)
        try:
            yield made
        finally:
            for coordinator in made.coordinators:
                coordinator.end()


@pytest.fixture
def fleet(
    empty_fleet: PodFleet,
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    tmp_path: Path,
) -> PodFleet:
    scale_model.write(base_path, 1)
    servers = {
        f"web-{number}": start_server(
            model_name="scale",
            base_path=base_path,
            state_directory=tmp_path / f"web-{number}",
            admin_address=f"127.0.0.1:{free_port()}",
            fleet_member=True,
            drain_seconds=1,
            listen_before_ready=True,
        )
        for number in range(SERVER_COUNT)
    }
    for name, server in servers.items():
        empty_fleet.api.cluster.put_pod(pod_of(name, server))
    empty_fleet.servers.update(servers)
    return empty_fleet


def test_standby_takes_over_in_the_middle_of_a_wave(
    fleet: PodFleet, scale_model: ScaleModel, base_path: Path
) -> None:
    leader = fleet.start_coordinator()
    fleet.wait_for(lambda: leader.leads, "the first coordinator leads")
    standby = fleet.start_coordinator()
    fleet.wait_for(lambda: fleet.answers() == [2.0] * SERVER_COUNT, "version 1 everywhere")
    fleet.wait_for(lambda: "stable version 1" in leader.command("status"), "version 1 is stable")
    # The coordinator that waits passes requests on to the one that leads.
    assert "stable version 1" in standby.command("status")

    scale_model.write(base_path, 2)
    fleet.wait_for(lambda: fleet.granted(2) != [], "version 2 begins its first wave")
    fleet.wait_for(lambda: "scale: version 2 begins wave 1" in fleet.notes(), "its Event")
    leader.end()
    first = fleet.granted(2)
    assert len(first) == 1
    assert not standby.leads
    fleet.wait_for(lambda: standby.leads, "the second coordinator leads")
    assert fleet.granted(2) == first
    assert fleet.term == 2
    fleet.wait_for(lambda: fleet.answers() == [4.0] * SERVER_COUNT, "version 2 everywhere")
    fleet.wait_for(lambda: "stable version 2" in standby.command("status"), "version 2 is stable")
    assert fleet.loads() == [[1, 2]] * SERVER_COUNT

    # People see it with kubectl: in the state's summary, and in Events.
    stored = fleet.api.cluster.stored("configmaps", "fleet")
    assert stored is not None
    assert stored["data"][SUMMARY_KEY] == "scale: stable version 2\n"
    fleet.wait_for(
        lambda: "scale: version 2 is stable; before: 1" in fleet.notes(), "an Event of the end"
    )
    # The coordinator that was killed may have taken the Event of its grant with it.
    assert fleet.notes().count("scale: version 2 is granted") >= SERVER_COUNT - 1


def test_pods_come_and_go(fleet: PodFleet) -> None:
    coordinator = fleet.start_coordinator()
    cluster = fleet.api.cluster
    fleet.wait_for(lambda: fleet.answers() == [2.0] * SERVER_COUNT, "version 1 everywhere")

    def row(name: str) -> str:
        rows = coordinator.command("status").splitlines()
        return next((line for line in rows if line.startswith(f"{name}\t")), "")

    cluster.put_pod(pod_of("web-0", fleet.servers["web-0"], is_terminating=True))
    fleet.wait_for(lambda: "draining" in row("web-0"), "the pod that ends drains")
    cluster.delete_pod("web-0")
    fleet.wait_for(lambda: row("web-0") == "", "the pod that has ended leaves the fleet")
    cluster.put_pod(pod_of("web-9", fleet.servers["web-0"]))
    fleet.wait_for(lambda: "live" in row("web-9"), "a new pod joins the fleet")


def test_stopped_coordinator_hands_the_lease_over(empty_fleet: PodFleet) -> None:
    first = empty_fleet.start_coordinator()
    empty_fleet.wait_for(lambda: first.leads, "the first coordinator leads")
    second = empty_fleet.start_coordinator()
    first.process.terminate()
    assert first.process.wait(PATIENCE_SECONDS) == 0
    empty_fleet.wait_for(lambda: second.leads, "the second coordinator leads")
    assert empty_fleet.term == 2


def test_lead_ends_while_the_api_is_away(empty_fleet: PodFleet) -> None:
    coordinator = empty_fleet.start_coordinator()
    stored = empty_fleet.api.cluster.stored
    empty_fleet.wait_for(lambda: stored("configmaps", "fleet"), "it takes the state over")
    # It answers only while it leads.
    empty_fleet.wait_for(lambda: coordinator.command("status"), "the coordinator leads")
    empty_fleet.api.is_cut = True
    empty_fleet.wait_for(lambda: coordinator.events("fleet_lead_lost"), "the lead ends")
    empty_fleet.api.is_cut = False
    empty_fleet.wait_for(lambda: empty_fleet.term == 2, "the coordinator leads again")

"""A fleet of pods: real servers and coordinator processes, Kubernetes' API by a stand-in over HTTP.

The pods are servers on ports of 127.0.0.1, which the tests share. The stand-in has Kubernetes' versions,
conflicts, selectors and watches (tests/kubernetes/fake_api_server.py): no cluster was at hand.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fleet.kubernetes.documents import SUMMARY_KEY, lease_record
from loadtest.drive.shell_server import free_port
from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.fleets import Members, is_stable, status_of
from tests.integration.processes import millpond
from tests.kubernetes.fake_api_server import FakeApiServer, serving_api
from tests.kubernetes.fake_cluster import FakeCluster, pod_object

NAMES = ("web-0", "web-1", "web-2")
LEASE_SECONDS = 10


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def pod_of(name: str, server: ModelServer, *, is_terminating: bool = False) -> dict[str, Any]:
    ports = {"admin": port_of(server.admin_target), "grpc": port_of(server.target)}
    return pod_object(name, host="127.0.0.1", ports=ports, is_terminating=is_terminating)


class Coordinator:
    """A process of `millpond fleet start`."""

    def __init__(self, directory: Path, name: str, kubeconfig: Path, judged_seconds: float) -> None:
        config = directory / f"{name}.toml"
        config.write_text(
            f'[coordinator]\nlisten = "127.0.0.1:0"\npoll_seconds = 0.2\n'
            f'[kubernetes]\nselector = "app=millpond"\nname = "fleet"\n'
            f"lease_seconds = {LEASE_SECONDS}\nkubeconfig = {str(kubeconfig)!r}\n"
            f'[waves]\nsizes = ["1"]\nload_count_max = 1\nlost_seconds = 20\n'
            f"judged_seconds = {judged_seconds}\n"
        )
        self._log = directory / f"{name}.log"
        with self._log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "serving", "fleet", "start", str(config)], stderr=stderr
            )
        wait_until(lambda: self.events("fleet_started"), "the coordinator starts")

    def events(self, name: str) -> list[dict[str, Any]]:
        # The last line may be half written.
        lines = self._log.read_text().split("\n")[:-1]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    @property
    def port(self) -> int:
        (started,) = self.events("fleet_started")
        return port_of(started["http"].split()[-1])

    @property
    def leads(self) -> bool:
        return len(self.events("fleet_lease_acquired")) > len(self.events("fleet_lease_lost"))

    def command(self, *arguments: str) -> str:
        (started,) = self.events("fleet_started")
        ended = millpond("fleet", *arguments, f"--target={started['operators']}")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def answers(self) -> bool:
        """Returns True if it leads, or knows the address of the coordinator that leads."""
        return bool(status_of(self.port))

    def end(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)


@dataclass
class PodFleet:
    """A cluster's API, and the coordinators that a test starts."""

    api: FakeApiServer
    directory: Path
    coordinators: list[Coordinator] = field(default_factory=list)

    def start_coordinator(self, judged_seconds: float = 1) -> Coordinator:
        kubeconfig = self.api.write_kubeconfig(self.directory / "kubeconfig")
        name = f"coordinator-{len(self.coordinators)}"
        self.coordinators.append(Coordinator(self.directory, name, kubeconfig, judged_seconds))
        return self.coordinators[-1]

    def start_leader(self, judged_seconds: float = 1) -> Coordinator:
        """Starts a coordinator, and waits until it leads."""
        leader = self.start_coordinator(judged_seconds)
        wait_until(lambda: leader.leads, "the coordinator leads")
        return leader

    def notes(self) -> list[str]:
        return [str(event["note"]) for event in self.api.cluster.events]

    @property
    def term(self) -> int:
        lease = self.api.cluster.stored("leases", "fleet")
        assert lease is not None
        return lease_record(lease).term


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[PodFleet]:
    """A fleet without a pod."""
    with serving_api(FakeCluster()) as api:
        made = PodFleet(api, tmp_path)
        try:
            yield made
        finally:
            for coordinator in made.coordinators:
                coordinator.end()


@pytest.fixture(scope="module")
def members(start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Members:
    """The servers of the pods."""

    def flags() -> dict[str, object]:
        return {"admin_address": f"127.0.0.1:{free_port()}"}

    return Members(start_module_server, tmp_path_factory.mktemp("members"), NAMES, flags)


@pytest.fixture
def model(fleet: PodFleet, members: Members, scale_model: ScaleModel) -> str:
    """The model of the pods, with version 1."""
    name = members.add_model()
    scale_model.write(members.base_path_of(name), 1)
    for pod, server in members.servers.items():
        fleet.api.cluster.put_pod(pod_of(pod, server))
    return name


def wait_for_answers(members: Members, model: str, version: int) -> None:
    wanted = [2.0 * version] * len(NAMES)
    wait_until(lambda: members.answers(model) == wanted, f"version {version} everywhere")


def test_standby_takes_over_in_the_middle_of_a_wave(
    fleet: PodFleet, members: Members, model: str, scale_model: ScaleModel
) -> None:
    # The first wave lasts until the first coordinator ends.
    leader = fleet.start_leader(judged_seconds=10 * TIMEOUT_SECONDS)
    standby = fleet.start_coordinator()
    wait_for_answers(members, model, 1)
    wait_until(lambda: is_stable(leader.port, model, 1), "version 1 is stable")
    # The coordinator that waits passes requests on to the one that leads.
    assert f"{model}: stable version 1" in standby.command("status")

    def granted() -> list[str]:
        return members.with_event("version_granted", model=model, version=2)

    scale_model.write(members.base_path_of(model), 2)
    wait_until(granted, "version 2 begins its first wave")
    wait_until(lambda: f"{model}: version 2 begins wave 1" in fleet.notes(), "its Event")
    leader.end()
    first = granted()
    assert len(first) == 1
    assert not standby.leads
    wait_until(lambda: standby.leads, "the second coordinator leads")
    assert fleet.term == 2
    wait_for_answers(members, model, 2)
    wait_until(lambda: is_stable(standby.port, model, 2), "version 2 is stable")
    # The wave went on: no server loaded a version twice.
    for version in (1, 2):
        assert members.with_event("load_started", model=model, version=version) == [*NAMES]

    # People see it with kubectl: in the state's summary, and in Events.
    stored = fleet.api.cluster.stored("configmaps", "fleet")
    assert stored is not None
    assert stored["data"][SUMMARY_KEY] == f"{model}: stable version 2\n"
    wait_until(
        lambda: f"{model}: version 2 is stable; before: 1" in fleet.notes(), "an Event of the end"
    )
    # The coordinator that was killed may have taken the Event of its grant with it.
    assert fleet.notes().count(f"{model}: version 2 is granted") >= len(NAMES) - 1


def test_pods_come_and_go(fleet: PodFleet, members: Members, model: str) -> None:
    coordinator = fleet.start_leader()
    cluster = fleet.api.cluster
    wait_for_answers(members, model, 1)

    def state_of(name: str) -> str:
        rows = status_of(coordinator.port).get("servers", ())
        return next((row["state"] for row in rows if row["name"] == name), "")

    cluster.put_pod(pod_of("web-0", members.servers["web-0"], is_terminating=True))
    wait_until(lambda: state_of("web-0") == "draining", "the pod that ends drains")
    cluster.delete_pod("web-0")
    wait_until(lambda: state_of("web-0") == "", "the pod that has ended leaves the fleet")
    cluster.put_pod(pod_of("web-9", members.servers["web-0"]))
    wait_until(lambda: state_of("web-9") == "live", "a new pod joins the fleet")


def test_stopped_coordinator_hands_the_lease_over(fleet: PodFleet) -> None:
    first = fleet.start_leader()
    second = fleet.start_coordinator()
    first.process.terminate()
    assert first.process.wait(TIMEOUT_SECONDS) == 0
    wait_until(lambda: second.leads, "the second coordinator leads")
    assert fleet.term == 2


def test_lead_ends_while_the_api_is_away(fleet: PodFleet) -> None:
    coordinator = fleet.start_coordinator()
    stored = fleet.api.cluster.stored
    wait_until(lambda: stored("configmaps", "fleet"), "it takes the state over")
    # It answers only while it leads.
    wait_until(coordinator.answers, "the coordinator leads")
    fleet.api.is_cut = True
    wait_until(lambda: coordinator.events("fleet_lead_lost"), "the lead ends")
    fleet.api.is_cut = False
    wait_until(lambda: fleet.term == 2, "the coordinator leads again")

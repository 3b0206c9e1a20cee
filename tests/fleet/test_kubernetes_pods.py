from collections.abc import Callable
from typing import Any

import pytest

from fleet.config.config import FleetServer
from fleet.config.kubernetes_settings import KubernetesSettings
from fleet.kubernetes.documents import membership_of
from fleet.kubernetes.pods import ENDED_SECONDS, PodPlace
from fleet.lead.places import Membership
from tests.kubernetes.fake_cluster import FakeCluster, pod_object
from tests.unit.fakes.clocks import FakeClock

SETTINGS = KubernetesSettings(selector="app=millpond")


def names_of(place: PodPlace) -> list[str]:
    membership = place.membership()
    assert membership is not None
    return [server.name for server in membership.servers]


def test_pod_has_addresses_of_its_named_ports() -> None:
    pods = [pod_object("b", host="fd00::1"), pod_object("a", ports={"admin": 1, "grpc": 2})]
    assert membership_of([*pods], SETTINGS) == Membership(
        (
            FleetServer(name="a", admin="10.0.0.1:1", grpc="10.0.0.1:2"),
            FleetServer(
                name="b", admin="[fd00::1]:8599", grpc="[fd00::1]:8500", http="[fd00::1]:8501"
            ),
        )
    )


def test_port_may_be_a_number() -> None:
    settings = KubernetesSettings(selector="app=millpond", admin_port="9000")
    (server,) = membership_of([pod_object("a", ports={})], settings).servers
    assert (server.admin, server.grpc) == ("10.0.0.1:9000", "")


@pytest.mark.parametrize(
    "pod",
    [
        pod_object("a", host=""),
        pod_object("a", phase="Failed"),
        pod_object("a", phase="Succeeded"),
        pod_object("a", ports={"grpc": 8500}),
    ],
)
def test_pod_that_cannot_be_reached_is_no_server(pod: dict[str, object]) -> None:
    assert membership_of([pod], SETTINGS) == Membership(())


def test_pod_that_is_not_ready_is_a_server() -> None:
    membership = membership_of([pod_object("a", phase="Pending")], SETTINGS)
    assert len(membership.servers) == 1


def test_terminating_pod_is_leaving() -> None:
    pods = [pod_object("a", is_terminating=True), pod_object("b")]
    assert membership_of([*pods], SETTINGS).leaving == {"a"}


def test_place_is_unknown_before_the_first_list() -> None:
    place = PodPlace(FakeCluster(allowed=[]), SETTINGS, FakeClock())
    place.turn()
    assert place.membership() is None


def test_place_follows_pods_that_match() -> None:
    cluster = FakeCluster()
    cluster.put_pod(pod_object("a"))
    cluster.put_pod(pod_object("stranger", labels={"app": "other"}))
    place = PodPlace(cluster, SETTINGS, FakeClock())
    place.turn()
    assert names_of(place) == ["a"]
    cluster.put_pod(pod_object("b"))
    cluster.put_pod(pod_object("a", is_terminating=True))
    place.turn()
    membership = place.membership()
    assert membership is not None
    assert names_of(place) == ["a", "b"]
    assert membership.leaving == {"a"}
    cluster.delete_pod("a")
    place.turn()
    assert names_of(place) == ["b"]


def test_watch_goes_on_without_a_further_list() -> None:
    cluster = FakeCluster()
    place = PodPlace(cluster, SETTINGS, FakeClock())
    for _ in range(3):
        place.turn()
    assert [deed.verb for deed in cluster.deeds] == ["list", "watch", "watch", "watch"]


def test_watch_that_is_too_old_lists_again() -> None:
    cluster = FakeCluster()
    cluster.put_pod(pod_object("a"))
    place = PodPlace(cluster, SETTINGS, FakeClock())
    place.turn()
    cluster.delete_pod("a")
    cluster.put_pod(pod_object("b"))
    cluster.forget_history()
    place.turn()
    assert names_of(place) == ["a"]
    place.turn()
    assert names_of(place) == ["b"]


def test_pods_stay_while_the_api_is_away() -> None:
    cluster = FakeCluster()
    cluster.put_pod(pod_object("a"))
    place = PodPlace(cluster, SETTINGS, FakeClock())
    place.turn()
    cluster.allowed = []
    place.turn()
    assert names_of(place) == ["a"]


def test_end_of_an_earlier_pod_keeps_its_successor() -> None:
    place = PodPlace(FakeCluster(), SETTINGS, FakeClock())
    place.turn()
    old, new = pod_object("s-0"), pod_object("s-0", host="10.0.0.2")
    old["metadata"]["uid"], new["metadata"]["uid"] = "1", "2"
    place._note(new, is_there=True)
    place._note(old, is_there=False)
    assert names_of(place) == ["s-0"]
    assert place.uid("s-0") == "2"


# --- Pods that have failed --------------------------------------------------------------------------------


def pod_of(uid: str, **settings: Any) -> dict[str, Any]:
    pod = pod_object("s-0", **settings)
    pod["metadata"]["uid"] = uid
    return pod


class Followed:
    """A fleet of the pods `s-0` and `s-1`, which is followed from their first list on."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster()
        self.cluster.put_pod(pod_of("1"))
        self.cluster.put_pod(pod_object("s-1"))
        self.place = PodPlace(self.cluster, SETTINGS, self.clock)
        self.place.turn()

    def ended(self) -> frozenset[str]:
        """Returns the servers that count as lost once the place has looked again."""
        self.place.turn()
        # A version of the watch may be too old. Then the next turn lists again.
        self.place.turn()
        membership = self.place.membership()
        assert membership is not None
        assert membership.ended.isdisjoint(server.name for server in membership.servers)
        return membership.ended


def evict(cluster: FakeCluster) -> None:
    """Fails the pod, as a node without memory does; its address goes too."""
    cluster.put_pod(pod_of("1", phase="Failed", host=""))


def vanish_unseen(cluster: FakeCluster) -> None:
    cluster.delete_pod("s-0")
    cluster.forget_history()


def evict_and_collect(cluster: FakeCluster) -> None:
    evict(cluster)
    cluster.delete_pod("s-0")


@pytest.mark.parametrize(
    "end", [evict, evict_and_collect, vanish_unseen, lambda cluster: cluster.delete_pod("s-0")]
)
def test_pod_that_fails_is_lost_for_a_time(end: Callable[[FakeCluster], None]) -> None:
    fleet = Followed()
    end(fleet.cluster)
    assert fleet.ended() == {"s-0"}
    fleet.clock.advance(ENDED_SECONDS - 1)
    assert fleet.ended() == {"s-0"}
    fleet.clock.advance(1)
    assert fleet.ended() == frozenset()


def terminate(cluster: FakeCluster) -> None:
    """Ends the pod as a rolling update or a drained node does."""
    cluster.put_pod(pod_of("1", is_terminating=True))
    cluster.put_pod(pod_of("1", is_terminating=True, phase="Failed"))
    cluster.delete_pod("s-0")


@pytest.mark.parametrize(
    "end", [terminate, lambda cluster: cluster.put_pod(pod_of("1", phase="Succeeded"))]
)
def test_pod_that_is_deleted_has_not_failed(end: Callable[[FakeCluster], None]) -> None:
    fleet = Followed()
    end(fleet.cluster)
    assert fleet.ended() == frozenset()


def test_pod_with_the_name_of_a_failed_one_is_new() -> None:
    fleet = Followed()
    evict(fleet.cluster)
    assert fleet.ended() == {"s-0"}
    fleet.cluster.delete_pod("s-0")
    fleet.cluster.put_pod(pod_of("2", host="10.0.0.2"))
    assert fleet.ended() == frozenset()
    membership = fleet.place.membership()
    assert membership is not None
    assert membership.identities["s-0"] == "2"


def test_pod_that_failed_before_does_not_count() -> None:
    cluster = FakeCluster()
    cluster.put_pod(pod_of("1", phase="Failed"))
    place = PodPlace(cluster, SETTINGS, FakeClock())
    place.turn()
    assert place.membership() == Membership(())

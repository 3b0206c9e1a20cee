"""The official client against Kubernetes' API over HTTP, as `FakeCluster` has it."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes.config
import pytest

from fleet.kubernetes import client as client_module
from fleet.kubernetes.client import OfficialClient, connected
from fleet.kubernetes.cluster import ApiFailed, Conflict, Gone, Object
from fleet.kubernetes.documents import (
    STATE_KEY,
    LeaseRecord,
    lease_object,
    state_object,
)
from fleet.kubernetes.engine import own_address
from serving.base.errors import InvalidConfig
from tests.kubernetes.fake_api_server import FakeApiServer, serving_api
from tests.kubernetes.fake_cluster import FakeCluster, pod_object

LEASE = lease_object(
    "fleet", LeaseRecord(holder="a", term=1, duration_seconds=15, version=""), 10**18, 10**18
)


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with serving_api(FakeCluster()) as made:
        yield made


@pytest.fixture
def client(server: FakeApiServer, tmp_path: Path) -> OfficialClient:
    return connected(str(server.write_kubeconfig(tmp_path / "config")), "")


def test_namespace_is_that_of_the_context(client: OfficialClient) -> None:
    assert client.namespace == "prod"


def test_lease_is_created_read_and_replaced(client: OfficialClient) -> None:
    assert client.read_lease("fleet") is None
    client.create_lease(LEASE)
    read = client.read_lease("fleet")
    assert read is not None
    assert read["spec"]["renewTime"] == "2001-09-09T01:46:40.000000Z"
    client.replace_lease(read)
    with pytest.raises(Conflict, match="modified"):
        client.replace_lease(read)
    with pytest.raises(Conflict, match="exists"):
        client.create_lease(LEASE)


def test_config_map_is_created_read_and_replaced(client: OfficialClient) -> None:
    assert client.read_config_map("fleet") is None
    written = client.create_config_map(state_object("fleet", "", 1, {STATE_KEY: "{}"}))
    version = written["metadata"]["resourceVersion"]
    client.replace_config_map(state_object("fleet", version, 1, {STATE_KEY: "{ }"}))
    read = client.read_config_map("fleet")
    assert read is not None
    assert read["data"]["fleet.json"] == "{ }"


def test_token_that_cannot_be_read_is_a_failed_call(
    client: OfficialClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads the token of the account again, and the file may be gone for a moment."""

    def raises(*arguments: object, **options: object) -> None:
        raise kubernetes.config.ConfigException("token file")

    monkeypatch.setattr(client._core, "read_namespaced_config_map", raises)
    with pytest.raises(ApiFailed, match="token file"):
        client.read_config_map("fleet")


def test_pods_are_listed_in_pages(
    server: FakeApiServer, client: OfficialClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PODS_PER_PAGE", 2)
    for number in range(5):
        server.cluster.put_pod(pod_object(f"p{number}"))
    pods, version = client.list_pods("app=millpond")
    assert [pod["metadata"]["name"] for pod in pods] == [f"p{number}" for number in range(5)]
    assert version == "5"
    assert client.list_pods("app=other")[0] == []


def test_watch_yields_events_as_they_come(server: FakeApiServer, client: OfficialClient) -> None:
    _, version = client.list_pods("app=millpond")
    events = client.watch_pods("app=millpond", version, 20)
    # The pod comes while the watch waits.
    threading.Timer(0.1, lambda: server.cluster.put_pod(pod_object("a"))).start()
    event = next(events)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
    events.close()  # type: ignore[attr-defined]


def test_watch_ends_with_a_bookmark(client: OfficialClient) -> None:
    events = [*client.watch_pods("app=millpond", "0", 0)]
    assert [event["type"] for event in events] == ["BOOKMARK"]


def test_old_watch_is_gone(server: FakeApiServer, client: OfficialClient) -> None:
    server.cluster.forget_history()
    with pytest.raises(Gone):
        next(client.watch_pods("app=millpond", "0", 5))


def test_refusal_has_its_reason(server: FakeApiServer, client: OfficialClient) -> None:
    server.cluster.allowed = []
    with pytest.raises(ApiFailed, match="403: forbidden") as refused:
        client.read_lease("fleet")
    assert refused.value.status == 403


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.read_lease("fleet"),
        lambda client: client.replace_config_map(state_object("fleet", "1", 1, {})),
        lambda client: client.list_pods("a=b"),
        lambda client: next(client.watch_pods("a=b", "0", 1)),
    ],
)
def test_call_without_an_answer_fails(
    server: FakeApiServer, client: OfficialClient, call: Any
) -> None:
    server.is_cut = True
    with pytest.raises(ApiFailed) as failed:
        call(client)
    assert failed.value.status == 0


def test_write_is_sent_once(server: FakeApiServer, client: OfficialClient) -> None:
    server.cluster.allowed = []
    with pytest.raises(ApiFailed):
        client.create_lease(LEASE)
    assert len(server.cluster.deeds) == 1


def test_event_is_created(server: FakeApiServer, client: OfficialClient) -> None:
    event: Object = {"metadata": {"generateName": "a."}, "note": "x"}
    client.create_event(event)
    assert [json.dumps(item) for item in server.cluster.events] == [json.dumps(event)]


def test_missing_account_is_named() -> None:
    with pytest.raises(InvalidConfig, match="service account"):
        connected("", "")


def test_own_address_is_that_towards_the_api() -> None:
    assert own_address("10.1.2.3", "https://nowhere") == "10.1.2.3"
    assert own_address("0.0.0.0", "http://127.0.0.1:1") == "127.0.0.1"

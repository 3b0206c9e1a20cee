"""The thin layer over Ray, without a cluster."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.config.ray_settings import RayModel, RaySettings
from fleet.replicas.found_replicas import FoundLaunch
from fleet.replicas.replicas import Replica
from serving.base.clock import SystemClock
from serving.base.errors import FailedPrecondition
from serving.commands.cli import main
from tests.unit.fakes.clocks import FakeClock

pytest.importorskip("ray", reason="Ray is not installed: pip install 'millpond[ray]'")

from ray.experimental import internal_kv

from fleet.ray import deployment as ray_deployment
from fleet.ray.cluster import found_launches, room_of, server_flags
from fleet.ray.key_value_store import Deposed, KeyValueStore, StoredTerm, StoredText

MODEL = RayModel(name="m", base_path="/models/m", memory_bytes=1, flags={"drain_seconds": 9})
REPLICA = Replica(name="m-0", model="m", node="n", launch=7)


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[bytes, bytes], bytes]:
    """The key-value store of a cluster, in a dictionary."""
    kept: dict[tuple[bytes, bytes], bytes] = {}

    def put(key: bytes, value: bytes, *, overwrite: bool, namespace: bytes) -> bool:
        was_there = (namespace, key) in kept
        if overwrite or not was_there:
            kept[namespace, key] = value
        return was_there

    def get(key: bytes, *, namespace: bytes) -> bytes | None:
        return kept.get((namespace, key))

    def remove(key: bytes, *, namespace: bytes) -> None:
        kept.pop((namespace, key), None)

    def keys(prefix: bytes, *, namespace: bytes) -> list[bytes]:
        return [key for space, key in kept if space == namespace and key.startswith(prefix)]

    monkeypatch.setattr(internal_kv, "_internal_kv_list", keys)
    monkeypatch.setattr(internal_kv, "_internal_kv_put", put)
    monkeypatch.setattr(internal_kv, "_internal_kv_get", get)
    monkeypatch.setattr(internal_kv, "_internal_kv_del", remove)
    return kept


def test_store_keeps_fleets_apart(values: dict[tuple[bytes, bytes], bytes]) -> None:
    one, other = KeyValueStore("one"), KeyValueStore("other")
    one.put("config", "text")
    assert (one.get("config"), other.get("config")) == ("text", None)
    assert (one.keys("con"), one.keys("x"), other.keys("")) == (["config"], [], [])
    one.remove("config")
    assert values == {}


@pytest.mark.usefixtures("values")
def test_value_is_new_once() -> None:
    store = KeyValueStore("fleet")
    assert store.put("key", "first", is_new=True)
    assert not store.put("key", "second", is_new=True)
    assert store.get("key") == "first"


@pytest.mark.usefixtures("values")
def test_next_term_ends_the_one_before() -> None:
    store = KeyValueStore("fleet")
    first = StoredText(store, StoredTerm(store, FakeClock()), "state")
    first.write("of the first")
    second = StoredText(store, StoredTerm(store, FakeClock()), "state")
    assert second.read() == "of the first"
    second.write("of the second")
    with pytest.raises(Deposed, match="another coordinator"):
        first.write("late")
    assert second.read() == "of the second"


def test_store_without_cluster_raises_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **values: object) -> bytes:
        raise RuntimeError("no connection")

    monkeypatch.setattr(internal_kv, "_internal_kv_get", fail)
    with pytest.raises(OSError, match="no connection"):
        KeyValueStore("fleet").get("state")


@pytest.mark.parametrize(
    ("reason", "is_forgotten"),
    [("RPC error: WrongClusterID: Perhaps", True), ("no connection", False)],
)
def test_cluster_that_is_new_has_forgotten_the_fleet(
    monkeypatch: pytest.MonkeyPatch, reason: str, *, is_forgotten: bool
) -> None:
    def fail(*arguments: object, **values: object) -> bytes:
        raise RuntimeError(reason)

    monkeypatch.setattr(internal_kv, "_internal_kv_get", fail)
    deployment = ray_deployment.Deployment("fleet", SystemClock())
    assert deployment.is_forgotten() is is_forgotten


def test_node_makes_a_room() -> None:
    node = {"NodeID": "n", "Alive": True, "Resources": {"memory": 5e9, "CPU": 2.0}}
    room = room_of(node, {}, {})
    assert (room.name, room.memory_bytes, room.requests_per_second) == (
        "n",
        5 * 10**9,
        float("inf"),
    )
    assert (room.drain_deadline_ns, room.free_bytes) == (0, None)
    node["Resources"] = {"millpond_requests_per_second": 300.0}
    room = room_of(node, {"n": 0}, {})
    assert (room.memory_bytes, room.requests_per_second, room.is_draining) == (0, 300, True)


def test_room_has_a_deadline_and_free_memory() -> None:
    node = {"NodeID": "n", "Alive": True, "Resources": {"memory": 5e9}}
    room = room_of(node, {"n": 1_500}, {"n": {"memory": 2e9}, "other": {}})
    assert (room.is_draining, room.drain_deadline_ns, room.free_bytes) == (
        True,
        1_500 * 10**6,
        2 * 10**9,
    )
    # A resource that is used up is not there.
    assert room_of(node, {}, {"n": {"CPU": 1}}).free_bytes == 0


def test_launches_are_those_of_the_fleet_alone() -> None:
    names = ["f/m-0/7", "f/a/b-1/12", "f/m-2/3", "f/coordinator", "g/m-0/1", "f/m-0/x", ""]
    table = [{"Name": name, "State": "ALIVE", "Address": {"NodeID": "n"}} for name in names]
    table.append({"Name": "f/m-3/4", "State": "PENDING_CREATION", "Address": {"NodeID": ""}})
    assert found_launches("f", {*names} - {"f/m-2/3"}, table) == [
        FoundLaunch("m-0", 7, "n"),
        FoundLaunch("a/b-1", 12, "n"),
        FoundLaunch("m-2", 3),
        FoundLaunch("m-3", 4),
    ]


def test_server_gets_flags_of_its_model() -> None:
    settings = RaySettings(
        models=(MODEL,),
        flags={"drain_seconds": 5, "rest_api_port": 0},
        state_directory="/s",
        log_directory="/l",
    )
    flags, log_path = server_flags(settings, MODEL, REPLICA)
    assert flags == {
        "drain_seconds": 9,
        "rest_api_port": 0,
        "model_name": "m",
        "base_path": "/models/m",
        "state_directory": "/s/millpond/m-0",
    }
    assert log_path == "/l/millpond/m-0-7.log"


def test_missing_ray_has_a_remedy() -> None:
    code = "import sys; sys.modules['ray'] = None; import millpond.fleet"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert "pip install 'millpond[ray]'" in ended.stderr


def test_stop_of_a_fleet_without_ray_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text('[coordinator]\nstate_directory = "/s"\n[servers.a]\nadmin = "h:1"\n')
    assert main(["fleet", "stop", str(config)]) == 1
    assert "no table [ray]" in capsys.readouterr().err


def test_deploy_without_a_cluster_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(FailedPrecondition, match=r"no Ray cluster at .*start one"):
        ray_deployment._check_reachable(f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ray_deployment._check_reachable(f"127.0.0.1:{listener.getsockname()[1]}")
    ray_deployment._check_reachable("auto")

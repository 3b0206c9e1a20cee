import contextlib
import http.client
import json
import socket
import stat
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.commands.coordinator_call import ask, connection_to
from fleet.config.config import (
    OPERATION_PATH,
    REPLICAS_PATH,
    STATUS_PATH,
    AdminTls,
    FleetConfig,
    host_and_port,
    parse_fleet_config,
)
from fleet.files.registry import REGISTRY_PATH
from fleet.lead.engine import Engine
from fleet.lead.leadership import Term
from fleet.lead.member_client import tls_of
from fleet.lead.places import ListedServers
from fleet.rollout.state import FleetState, ModelState
from fleet.service import FleetService
from serving.base.clock import SystemClock
from serving.base.errors import (
    FailedPrecondition,
    InvalidConfig,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from tests.fleet.fakes.state_stores import HeldStore
from tests.fleet.worlds.leads import OtherLeads


def config_in(directory: Path, *, poll_seconds: float = 0.01) -> FleetConfig:
    """Returns a configuration with one server that does not exist."""
    text = (
        f'[coordinator]\nstate_directory = "{directory}"\nlisten = "127.0.0.1:0"\n'
        f'poll_seconds = {poll_seconds}\nregistry_file = "{directory / "servers.json"}"\n'
        f'operators = "unix:{directory / "door"}"\n'
        f'[servers.a]\nadmin = "unix:{directory / "nowhere"}"\ngrpc = "127.0.0.1:1"\n'
    )
    return parse_fleet_config(text)


def service_in(directory: Path) -> FleetService:
    return FleetService(config_in(directory), SystemClock())


@contextlib.contextmanager
def leading_in(directory: Path) -> Iterator[FleetService]:
    """Runs a service, which has begun to lead."""
    directory.mkdir(exist_ok=True)
    with running(service_in(directory)) as service:
        yield service


@contextlib.contextmanager
def running(service: FleetService) -> Iterator[FleetService]:
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        while not service.leads:
            assert thread.is_alive()
        yield service
    finally:
        service.stop()
        thread.join(10)


def test_service_runs_until_it_is_stopped(tmp_path: Path) -> None:
    service = service_in(tmp_path)
    thread = threading.Thread(target=service.run)
    thread.start()
    service.stop()
    thread.join(10)
    assert not thread.is_alive()
    # The next one can take the directory.
    again = service_in(tmp_path)
    again.stop()
    again.run()


def test_no_server_is_listed_before_all_are_known(tmp_path: Path) -> None:
    """The list of an earlier coordinator stays, with what it knew of servers that drain."""
    (tmp_path / "servers.json").write_text("before")
    with leading_in(tmp_path) as service:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{service.port}{REGISTRY_PATH}")
        with refused.value as reply:
            assert reply.code == 503
            assert b"not all servers have reported" in reply.read()
    assert (tmp_path / "servers.json").read_text() == "before"


def test_state_directory_must_be_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidConfig, match=r"state_directory .*file' cannot be used: .*exists"):
        service_in(file)


def test_taken_port_names_listen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = config_in(tmp_path)
        coordinator = replace(config.coordinator, listen=f"127.0.0.1:{port}")
        service = FleetService(replace(config, coordinator=coordinator), SystemClock())
        with pytest.raises(Unavailable, match=rf":{port}: Address already in use; .* listen"):
            service.run()


def test_servers_of_others_are_not_restarted(tmp_path: Path) -> None:
    with leading_in(tmp_path) as service:
        request = urllib.request.Request(
            f"http://127.0.0.1:{service.port}{REPLICAS_PATH}", data=b"{}", method="POST"
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as reply:
            assert reply.code == 400
            assert "restart these where they run" in json.loads(reply.read())["error"]


def test_door_is_for_the_user_alone(tmp_path: Path) -> None:
    with leading_in(tmp_path) as service:
        door = tmp_path / "door"
        assert service.operator_address == f"unix:{door}"
        assert stat.S_IMODE(door.stat().st_mode) == 0o600
        # The model of the request is unknown: it came through to the operation.
        request = {"operation": "pause", "model": "m"}
        with pytest.raises(NotFound, match="no model 'm'"):
            ask(service.operator_address, "POST", OPERATION_PATH, request)
        assert ask(service.operator_address, "GET", STATUS_PATH)["servers"]
    assert not door.exists()


def test_tcp_answers_no_operation(tmp_path: Path) -> None:
    with leading_in(tmp_path) as service:
        address = f"127.0.0.1:{service.port}"
        with pytest.raises(PermissionDenied, match=r"operate the fleet as the coordinator's user"):
            ask(address, "POST", OPERATION_PATH, {"operation": "pause", "model": "m"})
        assert ask(address, "GET", STATUS_PATH)["servers"]


def test_tcp_door_is_there_if_it_is_named(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    coordinator = replace(config.coordinator, operators="127.0.0.1:0")
    with running(FleetService(replace(config, coordinator=coordinator), SystemClock())) as service:
        assert service.operator_address.startswith("127.0.0.1:")
        request = {"operation": "pause", "model": "m"}
        with pytest.raises(NotFound, match="no model 'm'"):
            ask(service.operator_address, "POST", OPERATION_PATH, request)


def test_door_may_be_off(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    coordinator = replace(config.coordinator, operators="off")
    with running(FleetService(replace(config, coordinator=coordinator), SystemClock())) as service:
        assert service.operator_address == ""
        assert not (tmp_path / "door").exists()


def test_door_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with leading_in(tmp_path / "a"):
        config = config_in(tmp_path / "b")
        door = f"unix:{tmp_path / 'a' / 'door'}"
        coordinator = replace(config.coordinator, operators=door)
        service = FleetService(replace(config, coordinator=coordinator), SystemClock())
        with pytest.raises(Unavailable, match=r"\[coordinator\] operators = unix:.*listens"):
            service.run()


def test_standby_takes_no_operation(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    engine = Engine(ListedServers(config.servers), OtherLeads("10.0.0.9:8700"))
    service = FleetService(config, SystemClock(), engine)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        while not service.operator_address:
            assert thread.is_alive()
        request = {"operation": "pause", "model": "m"}
        with pytest.raises(FailedPrecondition, match=r"one that leads runs, at 10\.0\.0\.9:8700"):
            ask(service.operator_address, "POST", OPERATION_PATH, request)
    finally:
        service.stop()
        thread.join(20)


def test_directory_has_one_coordinator(tmp_path: Path) -> None:
    first = service_in(tmp_path)
    with pytest.raises(FailedPrecondition):
        service_in(tmp_path)
    first.stop()
    first.run()


def test_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name == "fleet.kubernetes.client":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    config = parse_fleet_config("[kubernetes]\nselector = 'a=b'\n")
    with pytest.raises(FailedPrecondition, match=r"pip install 'millpond\[kubernetes\]'"):
        FleetService(config, SystemClock())


class HeldLeadership:
    """Leads with a store that the test can hold. `is_over` once it has given the lead up."""

    def __init__(self) -> None:
        state = FleetState(models={"m": ModelState(stable=1)})
        self.store = HeldStore(state.as_json())
        self.is_over = threading.Event()
        self.write_count_at_end = 0

    def start(self, port: int) -> None:
        """Leads already."""

    def term(self) -> Term:
        return Term(1, self.store, lambda: True)

    def leader(self) -> str:
        return ""

    def stop(self) -> None:
        self.write_count_at_end = self.store.write_count
        self.is_over.set()


def test_lead_is_given_up_after_the_last_write(tmp_path: Path) -> None:
    leadership = HeldLeadership()
    # No decision comes in between: it would wait for the write too.
    config = config_in(tmp_path, poll_seconds=25)
    engine = Engine(ListedServers(config.servers), leadership)
    service = FleetService(config, SystemClock(), engine)
    running = threading.Thread(target=service.run)
    running.start()
    # The state is taken over by a write.
    assert leadership.store.has_begun.wait(20)
    operation = json.dumps({"operation": "pause", "model": "m"})

    def operate() -> None:
        connection = connection_to(service.operator_address)
        with contextlib.closing(connection):
            connection.request("POST", OPERATION_PATH, operation)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.getresponse().read()

    while not service.leads:
        assert not leadership.is_over.wait(0.01)
    coordinator = service._present.coordinator()
    closing, close = threading.Event(), coordinator.close

    def close_noting() -> None:
        closing.set()
        close()

    coordinator.close = close_noting  # type: ignore[method-assign]
    with leadership.store.held():
        count = leadership.store.write_count
        operating = threading.Thread(target=operate)
        operating.start()
        assert leadership.store.has_begun.wait(20)
        service.stop()
        assert closing.wait(20)
        assert not leadership.is_over.is_set()
    running.join(20)
    operating.join(20)
    assert not running.is_alive()
    assert leadership.write_count_at_end == leadership.store.write_count == count + 1


@pytest.mark.parametrize(
    ("text", "expected"), [("localhost:80", ("localhost", 80)), ("[::1]:0", ("::1", 0))]
)
def test_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text) == expected


@pytest.mark.parametrize("text", ["", "80", "h:", "h:x", "h:70000"])
def test_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        host_and_port(text)


def test_files_make_a_client_with_tls() -> None:
    assert tls_of(AdminTls()) is None
    tls = tls_of(AdminTls(ca="/ca.pem"))
    assert tls is not None
    assert (tls.ca_file, tls.key_file) == (Path("/ca.pem"), None)

import sys
import threading
from pathlib import Path

import pytest

from serving.base.clock import SystemClock
from serving.base.errors import FailedPrecondition, InvalidConfig
from serving.client.fleet_registry import HttpRegistry, NotListedYet
from serving.fleet.config import AdminTls, parse_fleet_config
from serving.fleet.service import FleetService, host_and_port, tls_of


def service_in(directory: Path) -> FleetService:
    """Returns a coordinator of one server that does not exist."""
    text = (
        f'[coordinator]\nstate_directory = "{directory}"\nlisten = "127.0.0.1:0"\n'
        f'poll_seconds = 0.01\nregistry_file = "{directory / "servers.json"}"\n'
        f'[servers.a]\nadmin = "unix:{directory / "nowhere"}"\ngrpc = "127.0.0.1:1"\n'
    )
    return FleetService(parse_fleet_config(text), SystemClock())


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
    service = service_in(tmp_path)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        while service._coordinator is None:
            assert thread.is_alive()
        registry = HttpRegistry(f"127.0.0.1:{service.port}")
        with pytest.raises(NotListedYet, match=r"503.*not all servers have reported"):
            registry.read()
    finally:
        service.stop()
        thread.join(10)
    assert (tmp_path / "servers.json").read_text() == "before"


def test_directory_has_one_coordinator(tmp_path: Path) -> None:
    first = service_in(tmp_path)
    with pytest.raises(FailedPrecondition):
        service_in(tmp_path)
    first.stop()
    first.run()


def test_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name == "serving.fleet.kubernetes.client":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    config = parse_fleet_config("[kubernetes]\nselector = 'a=b'\n")
    with pytest.raises(FailedPrecondition, match=r"pip install 'millpond\[kubernetes\]'"):
        FleetService(config, SystemClock())


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

"""States for the service manager, over a datagram socket of the test."""

import os
import socket
from pathlib import Path

import pytest

from serving.base.service_manager import ServiceManager


@pytest.fixture
def receiver(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(str(tmp_path / "notify"))
        own.settimeout(5)
        yield own


def test_states_are_one_datagram(receiver: socket.socket):
    manager = ServiceManager({"NOTIFY_SOCKET": receiver.getsockname()})
    manager.notify(READY=1, STATUS="2 of 2\nmodels")
    assert receiver.recv(256) == b"READY=1\nSTATUS=2 of 2 models\n"


def test_abstract_socket_is_reached():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(f"\0millpond-test-{os.getpid()}")
        own.settimeout(5)
        ServiceManager({"NOTIFY_SOCKET": f"@millpond-test-{os.getpid()}"}).notify(READY=1)
        assert own.recv(64) == b"READY=1\n"


def test_without_socket_nothing_is_sent():
    manager = ServiceManager({"WATCHDOG_USEC": "1000000"})
    manager.notify(READY=1)
    assert not manager.is_there
    assert manager.watchdog_seconds is None


def test_socket_that_is_gone_is_no_error(tmp_path: Path):
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).notify(READY=1)


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_time(variables: dict[str, str], seconds: float | None):
    environment = {"NOTIFY_SOCKET": "/run/notify", **variables}
    assert ServiceManager(environment, process_id=7).watchdog_seconds == seconds

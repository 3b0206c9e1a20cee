"""The crash page and the count of restarts, as a server takes them over."""

import os
import signal

import pytest

from serving.base.errors import InvalidConfig
from serving.server.supervised import open_crash_page, restart_count, wait_as_standby
from tests.unit.fakes.data_plane import FakePlane


class PlaneWithPage(FakePlane):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[int] = []

    def open_crash_page(self, descriptor: int) -> None:
        os.fstat(descriptor)
        self.opened.append(descriptor)


def test_page_is_opened_closed_and_forgotten():
    plane, descriptor = PlaneWithPage(), os.memfd_create("page")
    environment = {"MILLPOND_CRASH_PAGE": str(descriptor)}
    open_crash_page(plane, environment)
    assert plane.opened == [descriptor]
    assert environment == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_without_supervisor_no_page_is_opened():
    plane = PlaneWithPage()
    open_crash_page(plane, {})
    assert plane.opened == []


def test_wrong_descriptor_is_refused():
    with pytest.raises(InvalidConfig, match="MILLPOND_CRASH_PAGE='x'"):
        open_crash_page(FakePlane(), {"MILLPOND_CRASH_PAGE": "x"})


def test_restart_count_comes_from_environment():
    assert restart_count({"MILLPOND_RESTART_COUNT": "3"}) == 3
    assert restart_count({}) == 0


def test_standby_loads_and_waits_for_its_turn():
    read_end, write_end = os.pipe()
    environment = {"MILLPOND_STANDBY": str(read_end)}

    def load() -> None:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        os.write(write_end, b"3\n")

    before = signal.getsignal(signal.SIGINT)
    wait_as_standby(environment, load)
    assert environment == {"MILLPOND_RESTART_COUNT": "3"}
    assert signal.getsignal(signal.SIGINT) is before
    os.close(write_end)


def test_standby_ends_with_its_supervisor():
    read_end, write_end = os.pipe()
    os.close(write_end)
    with pytest.raises(SystemExit) as ended:
        wait_as_standby({"MILLPOND_STANDBY": str(read_end)}, lambda: None)
    assert ended.value.code == 0


def test_server_that_is_no_standby_does_not_wait():
    loads: list[int] = []
    wait_as_standby({}, lambda: loads.append(1))
    assert loads == []

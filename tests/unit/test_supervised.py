"""The crash page and the count of restarts, as a server takes them over."""

import os

import pytest

from serving.base.errors import InvalidConfig
from serving.server.supervised import open_crash_page, restart_count


class FakePlane:
    def __init__(self) -> None:
        self.opened: list[int] = []

    def open_crash_page(self, descriptor: int) -> None:
        os.fstat(descriptor)
        self.opened.append(descriptor)


def test_page_is_opened_closed_and_forgotten():
    plane, descriptor = FakePlane(), os.memfd_create("page")
    environment = {"MILLPOND_CRASH_PAGE": str(descriptor)}
    open_crash_page(plane, environment)
    assert plane.opened == [descriptor]
    assert environment == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_without_supervisor_no_page_is_opened():
    plane = FakePlane()
    open_crash_page(plane, {})
    assert plane.opened == []


def test_wrong_descriptor_is_refused():
    with pytest.raises(InvalidConfig, match="MILLPOND_CRASH_PAGE='x'"):
        open_crash_page(FakePlane(), {"MILLPOND_CRASH_PAGE": "x"})


def test_restart_count_comes_from_environment():
    assert restart_count({"MILLPOND_RESTART_COUNT": "3"}) == 3
    assert restart_count({}) == 0

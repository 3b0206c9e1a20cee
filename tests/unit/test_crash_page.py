"""The page of marks, as a server would have left it."""

import os
import struct
from collections.abc import Iterator, Mapping

import pytest

from serving.supervisor import crash_page
from serving.supervisor.crash_page import CrashPage, MarkedVersion

ROWS = {1: ("ctr", 7), 2: ("größe", 2**40)}


@pytest.fixture
def page() -> Iterator[CrashPage]:
    made = CrashPage()
    yield made
    made.close()


def write(page: CrashPage, slots: Mapping[int, int], crashed_id: int = 0) -> None:
    """Writes the marks of the threads in `slots`, and ROWS."""
    os.pwrite(page.descriptor, struct.pack("<I", crashed_id), 16)
    for place, (thread_id, mark) in enumerate(slots.items()):
        os.pwrite(page.descriptor, struct.pack("<II", thread_id, mark), 64 + 64 * place)
    rows_at = 64 + 64 * crash_page.THREAD_COUNT
    for number, (name, version) in ROWS.items():
        text = name.encode()
        row = struct.pack(f"<qII{len(text)}s", version, 1, len(text), text)
        os.pwrite(page.descriptor, row, rows_at + 512 * (number - 1))


def test_crashed_thread_names_its_version(page: CrashPage):
    write(page, {10: 1, 11: 2}, crashed_id=11)
    marks = page.read()
    assert marks.suspects == (MarkedVersion("größe", 2**40),)
    assert marks.is_thread_known
    assert marks.has_begun_loads


def test_loading_bit_is_kept_apart(page: CrashPage):
    write(page, {10: 1 | crash_page.LOADING_BIT}, crashed_id=10)
    assert page.read().suspects == (MarkedVersion("ctr", 7, is_loading=True),)


def test_unknown_thread_suspects_all_marked_versions(page: CrashPage):
    write(page, {10: 1, 11: 2, 12: 1, 13: 0}, crashed_id=99)
    marks = page.read()
    assert {item.name for item in marks.suspects} == {"ctr", "größe"}
    assert not marks.is_thread_known


def test_known_thread_without_run_suspects_none(page: CrashPage):
    write(page, {10: 0, 11: 1}, crashed_id=10)
    assert page.read().suspects == ()


def test_signal_from_outside_suspects_none(page: CrashPage):
    write(page, {10: 1}, crashed_id=crash_page.FROM_OUTSIDE)
    marks = page.read()
    assert marks.suspects == ()
    assert marks.is_from_outside


def test_untouched_page_has_no_loads(page: CrashPage):
    marks = page.read()
    assert marks.suspects == ()
    assert not marks.has_begun_loads

import os
import socket
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fleet.files.haproxy import Backend, HaproxySettings, fingerprint_of, haproxy_text
from fleet.files.haproxy_process import (
    LOOK_COUNT,
    HaproxyProcess,
    reload_haproxy,
    running_fingerprint,
)
from serving.base.errors import FailedPrecondition

OLD = haproxy_text([], HaproxySettings())
NEW = haproxy_text([Backend(name="a", address="h:1")], HaproxySettings())


class FakeHaproxy:
    """Runs with a text, and takes the one of a reload if it accepts it."""

    def __init__(self, text: str = OLD) -> None:
        self.text = text
        self.file = NEW
        self.accepts = True
        self.error: OSError | None = None
        self.reload_count = 0

    def reload(self, pid_file: str) -> None:
        self.reload_count += 1
        if self.accepts:
            self.text = self.file

    def running(self, stats_socket: str) -> str:
        if self.error is not None:
            raise self.error
        return fingerprint_of(self.text)

    def process(self) -> HaproxyProcess:
        return HaproxyProcess("pid", "socket", self.reload, self.running)


def test_reload_counts_once_it_is_seen() -> None:
    haproxy = FakeHaproxy()
    process = haproxy.process()
    assert [process.follow(NEW) for _ in range(3)] == [False, True, True]
    assert haproxy.reload_count == 1


def test_text_that_runs_already_is_not_reloaded() -> None:
    haproxy = FakeHaproxy(NEW)
    assert haproxy.process().follow(NEW)
    assert haproxy.reload_count == 0


def test_reload_that_was_not_taken_is_repeated() -> None:
    haproxy = FakeHaproxy()
    haproxy.accepts = False
    process = haproxy.process()
    looks = [process.follow(NEW) for _ in range(1 + LOOK_COUNT)]
    assert (any(looks), haproxy.reload_count) == (False, 1)
    with pytest.raises(FailedPrecondition, match="haproxy -c"):
        process.follow(NEW)
    assert haproxy.reload_count == 2
    # A file that HAProxy refuses is not read again every few seconds for ever.
    # The failure is shown at each look meanwhile.
    for _ in range(2 * LOOK_COUNT):
        with pytest.raises(FailedPrecondition, match="haproxy -c"):
            process.follow(NEW)
    assert haproxy.reload_count == 2
    haproxy.accepts = True
    with pytest.raises(FailedPrecondition):
        process.follow(NEW)
    assert process.follow(NEW)
    assert haproxy.reload_count == 3


def test_haproxy_that_cannot_be_asked_is_reloaded_once() -> None:
    haproxy = FakeHaproxy()
    haproxy.error = PermissionError("its socket is root's")
    process = haproxy.process()
    looks = [process.follow(NEW) for _ in range(1 + LOOK_COUNT)]
    with capture_logs() as logs:
        assert process.follow(NEW)
    assert (any(looks), haproxy.reload_count) == (False, 1)
    assert [entry["event"] for entry in logs] == ["haproxy_not_seen_to_reload"]


def test_reload_that_fails_is_tried_again() -> None:
    haproxy = FakeHaproxy()
    failures = [FileNotFoundError("no pid file")]

    def reload(pid_file: str) -> None:
        if failures:
            raise failures.pop()
        haproxy.reload(pid_file)

    process = HaproxyProcess("pid", "socket", reload, haproxy.running)
    with pytest.raises(FileNotFoundError):
        process.follow(NEW)
    assert [process.follow(NEW) for _ in range(2)] == [False, True]


# --- The process ------------------------------------------------------------------------------------------


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    return sent


@pytest.mark.parametrize("text", ["", "x", "0", "1", "-1", "-4711"])
def test_other_text_is_no_process(tmp_path: Path, text: str, signals: list[int]) -> None:
    (tmp_path / "pid").write_text(text)
    with pytest.raises(ValueError, match=r"invalid literal|not the number of a process"):
        reload_haproxy(str(tmp_path / "pid"))
    assert signals == []


def test_process_of_another_program_gets_no_signal(tmp_path: Path, signals: list[int]) -> None:
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    with pytest.raises(ValueError, match="not haproxy"):
        reload_haproxy(str(tmp_path / "pid"))
    assert signals == []


def test_statistics_name_the_text(tmp_path: Path) -> None:
    path = str(tmp_path / "stats")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(100) == b"show info\n"
                text = (
                    f"Name: HAProxy\nnode: h\ndescription: millpond-{fingerprint_of(NEW)}\nX: 1\n"
                )
                connection.sendall(text.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        assert running_fingerprint(path) == fingerprint_of(NEW)
        thread.join()


def test_missing_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        running_fingerprint(str(tmp_path / "nowhere"))


def test_texts_have_fingerprints() -> None:
    assert fingerprint_of(OLD) != fingerprint_of(NEW) != ""
    assert fingerprint_of("description: the cache\n") == ""

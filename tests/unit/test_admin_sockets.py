import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig, NotFound, Unavailable
from serving.commands.connection import found_target
from serving.server.admin_sockets import (
    AdminSocket,
    default_socket_path,
    is_private,
    live_sockets,
    run_directories,
    usable_directory,
)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only run directory."""
    path = tmp_path / "run"
    monkeypatch.setenv("MILLPOND_RUN_DIRECTORY", str(path))
    return path


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield


@contextmanager
def published(path: Path) -> Iterator[AdminSocket]:
    admin = AdminSocket(path)
    with listening(Path(admin.claim().removeprefix("unix:"))):
        admin.publish()
        try:
            yield admin
        finally:
            admin.release()


def leave_dead_socket(path: Path) -> None:
    with listening(path):
        pass


def test_run_directories_are_a_users_own():
    assert run_directories({"XDG_RUNTIME_DIR": "/run/user/7"}, 7) == (
        Path("/run/user/7/millpond"),
        Path("/run/millpond"),
        Path("/tmp/millpond-7"),
    )
    assert run_directories({"MILLPOND_RUN_DIRECTORY": "/x"}, 7) == (Path("/x"),)


def test_skips_directory_open_to_other_users(tmp_path: Path):
    shared, link, own = tmp_path / "shared", tmp_path / "link", tmp_path / "own"
    shared.mkdir(mode=0o755)
    own.mkdir(mode=0o700)
    link.symlink_to(own)
    missing = tmp_path / "missing" / "below"
    assert usable_directory([shared, link, missing, own]) == own
    assert usable_directory([tmp_path / "new"]) == tmp_path / "new"
    assert is_private(tmp_path / "new")
    assert usable_directory([shared, link]) is None


def test_published_socket_is_for_its_user_only(tmp_path: Path):
    path = tmp_path / "admin.sock"
    with published(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.listdir(tmp_path) == ["admin.sock"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert os.listdir(tmp_path) == []


def test_dead_servers_socket_is_replaced(tmp_path: Path):
    path = tmp_path / "admin.sock"
    leave_dead_socket(path)
    with published(path):
        assert live_sockets([tmp_path]) == ([path] if is_private(tmp_path) else [])


def test_live_servers_socket_is_not_replaced(tmp_path: Path):
    path = tmp_path / "admin.sock"
    with published(path):
        with pytest.raises(Unavailable, match="another server listens on this socket"):
            AdminSocket(path).claim()
        assert path.exists()


def test_other_file_in_place_of_socket_is_kept(tmp_path: Path):
    path = tmp_path / "admin.sock"
    path.write_bytes(b"precious")
    with pytest.raises(InvalidConfig, match="is not a socket"):
        AdminSocket(path).claim()
    assert path.read_bytes() == b"precious"


def test_path_that_no_socket_can_have_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match="at most 107 bytes"):
        AdminSocket(tmp_path / ("x" * 120)).claim()


def test_missing_directory_is_refused(tmp_path: Path):
    with pytest.raises(InvalidConfig, match="give a directory that the server's user can write"):
        AdminSocket(tmp_path / "missing" / "s").claim()


def test_default_paths_of_several_servers_differ(directory: Path):
    first = default_socket_path(8500, 7)
    assert first == directory / "8500-7.sock"
    with published(first):
        assert default_socket_path(8500, 7) == directory / "8500-7-2.sock"
        assert default_socket_path(0, 8) == directory / "auto-8.sock"


def test_default_path_removes_dead_servers_sockets(directory: Path):
    directory.mkdir(mode=0o700)
    leave_dead_socket(directory / "8500-6.sock")
    default_socket_path(8500, 7)
    assert list(directory.iterdir()) == []


def test_commands_find_the_one_server(directory: Path):
    with pytest.raises(NotFound, match=r"no server of this user.*--target=HOST:PORT"):
        found_target()
    directory.mkdir(mode=0o700)
    leave_dead_socket(directory / "8500-6.sock")
    with published(directory / "8500-7.sock"):
        assert found_target() == f"unix:{directory}/8500-7.sock"
        with published(directory / "8600-8.sock"), pytest.raises(InvalidConfig) as caught:
            found_target()
    assert f"--target=unix:{directory}/8500-7.sock or --target=" in str(caught.value)
    assert "2 servers of this user run on this machine" in str(caught.value)

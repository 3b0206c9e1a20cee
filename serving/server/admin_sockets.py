"""The UNIX sockets through which servers are operated: finds their directories, and the ones that are alive.

A server without --admin_address puts its socket into the first directory of `run_directories` that it can
use. The name of the file contains the port and the process, so that several servers do not collide. Each
directory belongs to one user, and no other user can enter it. `millpond` commands look for sockets in the
same directories.
"""

import errno
import itertools
import os
import secrets
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from serving.base.errors import InvalidConfig, Unavailable

SUFFIX = ".sock"
FLEET_SUFFIX = ".fleet"
"""The ending of a server's socket, and that of a coordinator's socket (`fleet/http/operator_door.py`)."""

_SOCKET_PATH_BYTES_MAX = 107
"""The longest path that fits sockaddr_un, without the zero byte at its end."""

_DEAD_ERRNOS = frozenset({errno.ECONNREFUSED, errno.ENOENT})
_CONNECT_SECONDS = 1.0


DIRECTORY_VARIABLE = "MILLPOND_RUN_DIRECTORY"


def run_directories(environment: Mapping[str, str], user_id: int) -> tuple[Path, ...]:
    """The directories in which sockets may be, the best one first. Pure.

    If MILLPOND_RUN_DIRECTORY is set, it is the only one. So servers and commands can be kept apart from
    others of the same user.
    """
    if only := environment.get(DIRECTORY_VARIABLE, ""):
        return (Path(only),)
    given = environment.get("XDG_RUNTIME_DIR", "")
    parents = [given] if os.path.isabs(given) else []
    found = [Path(parent) / "millpond" for parent in (*parents, f"/run/user/{user_id}", "/run")]
    return tuple(dict.fromkeys([*found, Path(f"/tmp/millpond-{user_id}")]))


def usable_directory(directories: Sequence[Path]) -> Path | None:
    """The first directory that only this user can enter; None if there is none. Makes it if it can."""
    return next(filter(_make_private, directories), None)


def _make_private(directory: Path) -> bool:
    with suppress(OSError):
        directory.mkdir(mode=0o700)
    return is_private(directory)


def is_private(directory: Path) -> bool:
    """True if only this user can enter the directory, and it is not a link."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    is_mine = status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)
    return is_mine and not status.st_mode & 0o077


def is_alive(path: Path) -> bool:
    """True if a process listens on the socket `path`. Also True if that cannot be found out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in _DEAD_ERRNOS
    return True


def live_sockets(directories: Sequence[Path], suffix: str = SUFFIX) -> list[Path]:
    """The sockets with this suffix on which a process of this user listens, sorted by name."""
    found = [
        path
        for directory in directories
        if is_private(directory)
        for path in sorted(directory.glob(f"*{suffix}"))
    ]
    return [path for path in found if is_alive(path)]


class AdminSocket:
    """Puts the socket of one process at its path, from `claim` to `release`. One thread at a time.

    A gRPC server replaces any socket at its address, and the umask decides who may connect to it. So the
    gRPC server listens in a new directory that no other user can enter. Then `publish` moves the socket to
    its path. It replaces the socket of a dead server, but not that of a live server.
    """

    def __init__(self, path: Path, setting: str = "--admin_address=") -> None:
        """`path` is the path at which clients look for the socket.

        `setting` is the text by which an error names the flag or setting of the path.
        """
        self._path = path
        self._name = f"{setting}unix:{path}"
        self._beside = path.with_name(f".{secrets.token_hex(4)}")
        self._is_published = False

    @property
    def path(self) -> Path:
        return self._path

    def claim(self) -> str:
        """Makes the new directory, and returns the address in it at which the gRPC server should listen.

        Raises Unavailable if another server listens at the path, and InvalidConfig if the path cannot be
        used.
        """
        self._check()
        try:
            self._beside.mkdir(mode=0o700)
        except OSError as error:
            raise InvalidConfig(
                f"{self._name}: {self._path.parent}: {error.strerror}; give a "
                "directory that the server's user can write to, or off"
            ) from error
        return f"unix:{self._beside / 's'}"

    def publish(self) -> None:
        """Moves the socket to its path, where only this user can connect. Raises the errors of `claim`."""
        made = self._beside / "s"
        try:
            made.chmod(0o600)
            self._check()
            made.replace(self._path)
        except OSError as error:
            raise InvalidConfig(f"{self._name}: {error.strerror}") from error
        self._is_published = True
        self._drop_beside()

    def release(self) -> None:
        """Removes the files that `claim` and `publish` made."""
        if self._is_published:
            self._path.unlink(missing_ok=True)
            self._is_published = False
        self._drop_beside()

    def _drop_beside(self) -> None:
        (self._beside / "s").unlink(missing_ok=True)
        with suppress(OSError):
            self._beside.rmdir()

    def _check(self) -> None:
        """Raises InvalidConfig if a socket cannot have the path, Unavailable if a live server has
        it.
        """
        length_bytes = len(os.fsencode(self._beside / "s"))
        length_bytes = max(length_bytes, len(os.fsencode(self._path)))
        if length_bytes > _SOCKET_PATH_BYTES_MAX:
            raise InvalidConfig(
                f"{self._name}: the path of a UNIX socket may have at most "
                f"{_SOCKET_PATH_BYTES_MAX} bytes; give a shorter path, or off"
            )
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise InvalidConfig(
                    f"{self._name}: the file exists and is not a socket; "
                    "delete it, or give another path"
                )
            if is_alive(self._path):
                raise Unavailable(
                    f"{self._name}: another server listens on this socket; give another path"
                )


def default_socket_path(port: int, process_id: int, suffix: str = SUFFIX) -> Path | None:
    """Chooses the path of a process's socket in the run directory; None if no directory is usable.

    Removes the sockets of dead processes in that directory.
    """
    directory = usable_directory(run_directories(os.environ, os.geteuid()))
    if directory is None:
        return None
    for path in directory.glob(f"*{suffix}"):
        if not is_alive(path):
            path.unlink(missing_ok=True)
    base = f"{port or 'auto'}-{process_id}"
    # If containers share the directory, two processes may have the same id.
    names = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
    return next(path for name in names if not (path := directory / f"{name}{suffix}").exists())

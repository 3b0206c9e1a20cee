"""Servers that begin with their modules imported: start and stop take 0.2 processor seconds instead of 1.2.

A server is a fork of a process that preloads jemalloc as the launcher does, has imported what `millpond serve` imports,
and has started no thread. From there on it is `millpond serve` with a command line, an environment, standard streams
and an id of its own, and a child of the process of the tests, which waits for it and kills it as any other server.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from serving import ModelServer
from serving.base.deferred_module import load_deferred_modules
from serving.base.lasting_objects import lasting_objects
from serving.commands import serve
from serving.commands.cli import main
from serving.server import launcher

_REPOSITORY = str(Path(__file__).parents[2])
_PR_SET_CHILD_SUBREAPER = 36
_STDOUT = 1
# Room for a command line and an environment.
_REQUEST_BYTES = 1 << 17
# A server starts by its command line if that is another one, or if one of these flags or variables, whose effect is
# on the start itself, is given.
SERVE_COMMAND = (sys.executable, "-m", "serving", "serve")
_COLD_FLAGS = ("--supervise", "--allocator")
_COLD_VARIABLES = ("LD_", "MALLOC_", "PYTHON", "TF_")
# A thread of jemalloc's would not be in the forks, so each of them starts its own.
_MALLOC_CONF = launcher.DEFAULT_MALLOC_CONF.replace(
    "background_thread:true", "background_thread:false"
)


class WarmProcess(subprocess.Popen[bytes]):
    """Forks a server where `Popen` would execute it, unless its command line or environment is about the start itself.

    Knows the private parts of `Popen`.
    """

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        directory, environment, streams = rest[4], rest[5], rest[9:15]
        if not _can_be_forked(args, environment):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        stdin, _, _, stdout, _, stderr = streams
        assert stdout == -1, "the standard output is that of the tests"
        streams_of_server = (stdin, _STDOUT, stderr)
        self.pid = _warm().fork(args, environment, directory or os.getcwd(), streams_of_server)
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]


def _can_be_forked(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    changed = {name for name, _ in environment.items() ^ os.environ.items()}
    return (
        tuple(command[: len(SERVE_COMMAND)]) == SERVE_COMMAND
        and not any(word.startswith(_COLD_FLAGS) for word in command)
        and not any(name.startswith(_COLD_VARIABLES) for name in changed)
    )


class WarmModelServer(ModelServer):
    """A `ModelServer` that starts warm."""

    process_type = WarmProcess


class _Warm:
    """The process that forks the servers. It ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.warm_servers", str(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                cwd=_REPOSITORY,
                env={
                    **os.environ,
                    "LD_PRELOAD": launcher.find_jemalloc(),
                    "MALLOC_CONF": _MALLOC_CONF,
                },
            )

    def fork(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: str | os.PathLike[str],
        streams: Sequence[int],
    ) -> int:
        """Forks a server, and returns the id of its process, which is a child of this one."""
        request = {
            "command": list(command),
            "environment": dict(environment),
            "directory": os.fspath(directory),
        }
        with self._lock, _adopting():
            socket.send_fds(self._channel, [json.dumps(request).encode()], list(streams))
            return int(self._channel.recv(_REQUEST_BYTES))


_warm = cache(_Warm)


@contextmanager
def _adopting() -> Iterator[None]:
    """Makes orphans among the descendants of this process its children, inside `with`."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _fork_servers(channel: socket.socket) -> int:
    """Forks a server for each request, until there are no more. Returns the exit status in each process."""
    while True:
        message, streams, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 3)
        if not message:
            return 0
        if (server := _fork_orphan()) is None:
            channel.detach()
            return _serve(json.loads(message), streams)
        for descriptor in streams:
            os.close(descriptor)
        channel.send(str(server).encode())


def _fork_orphan() -> int | None:
    """Forks a process whose parent has ended. Returns its id; None in the process itself."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        orphan = os.fork()
        if orphan == 0:
            return None
        os.write(writer, str(orphan).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    text = os.read(reader, 100)
    os.close(reader)
    os.close(writer)
    return int(text)


def _serve(request: Mapping[str, Any], streams: Sequence[int]) -> int:
    """Makes this process one of the server alone, and runs the server."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(len(streams), max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # Found anew from the environment.
    tempfile.tempdir = None
    sys.orig_argv = request["command"]
    sys.argv = ["serving", *request["command"][3:]]
    enabled = ctypes.c_bool(True)
    assert not ctypes.CDLL(None).mallctl(b"background_thread", None, None, ctypes.byref(enabled), 1)
    return main()


if __name__ == "__main__":
    with lasting_objects():
        serve._load_libraries()
        load_deferred_modules()
    sys.exit(_fork_servers(socket.socket(fileno=int(sys.argv[1]))))

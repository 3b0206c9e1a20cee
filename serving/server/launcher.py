"""How the server process comes to be: jemalloc preloaded, descriptors enough, an end with its parent.

libjemalloc.so.2 cannot be opened by a running process (its thread-local storage is static), so the
launcher puts it into LD_PRELOAD and executes the same command once more. The second life takes the
traces out of its environment again, so that nothing it starts inherits them.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from serving.base.errors import InvalidConfig

JEMALLOC_FILE_NAME = "libjemalloc.so.2"

# What jemalloc starts with where the user has not set MALLOC_CONF. background_thread: pages decay
# back to the kernel on jemalloc's own thread; without it a request pays for that when it frees.
# tcache_max: blocks up to 2 MiB, which hold a request's activations, come from the thread's cache
# and not from an arena behind a lock: 50 ns a pair for 170 (native/bench/request_memory_bench.cc).
DEFAULT_MALLOC_CONF = "background_thread:true,tcache_max:2097152"

# Says "you are the second life", holding the path that was preloaded: prevents a loop of execs.
_MARKER = "MILLPOND_PRELOADED"

# (path, arguments, environment); os.execve takes more than this says in each place.
Execute = Callable[[Any, Any, Any], NoReturn]


def ensure_allocator(
    allocator: str,
    *,
    environment: MutableMapping[str, str] = os.environ,
    command: Sequence[str] | None = None,
    is_loaded: Callable[[], bool] | None = None,
    find: Callable[[], str] | None = None,
    execute: Execute = os.execve,
) -> None:
    """Returns in a process that runs on `allocator` (`jemalloc` or `glibc`), or executes it anew.

    `command` is the command line to execute, by default this process's own. Raises InvalidConfig
    where jemalloc is missing or did not load, or where glibc is asked for and jemalloc is preloaded.
    """
    loaded = (is_loaded or is_jemalloc_loaded)()
    preloaded = environment.get(_MARKER)
    if preloaded is not None:
        _forget_preload(environment, preloaded)
    if allocator == "glibc":
        if loaded:
            raise InvalidConfig(
                "--allocator=glibc: jemalloc is preloaded already; take it out of LD_PRELOAD "
                f"({environment.get('LD_PRELOAD', '')!r}) or say --allocator=jemalloc"
            )
        return
    if loaded:
        return
    if preloaded is not None:
        raise InvalidConfig(
            f"{preloaded} did not load (see the loader's message above); "
            "reinstall it with `apt-get install libjemalloc2`, or say --allocator=glibc"
        )
    path = (find or find_jemalloc)()
    # argv[0] by its full path: Python finds its virtual environment by it.
    arguments = [sys.executable, *(sys.orig_argv if command is None else command)[1:]]
    execute(sys.executable, arguments, _preloading(environment, path))


def is_second_life(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was executed anew by `ensure_allocator`. Before that is called here."""
    return _MARKER in environment


def find_jemalloc(known_directories: Iterable[str] | None = None) -> str:
    """The path of libjemalloc.so.2, from the usual directories or ldconfig's cache.

    Raises InvalidConfig, with the command that installs it.
    """
    for directory in _usual_directories() if known_directories is None else known_directories:
        path = Path(directory, JEMALLOC_FILE_NAME)
        if path.exists():
            return str(path)
    path_in_cache = _in_loader_cache()
    if path_in_cache is None:
        raise InvalidConfig(
            f"{JEMALLOC_FILE_NAME} is not installed; run `apt-get install libjemalloc2`, "
            "or say --allocator=glibc"
        )
    return path_in_cache


def is_jemalloc_loaded() -> bool:
    """Whether this process has jemalloc mapped, which it can only have been from its start."""
    return "libjemalloc" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")


def raise_descriptor_limit() -> None:
    """Lets this process open as many files as it may: each connection is one.

    A common default is 1,024, for programs that use select(2). At the limit gRPC takes no further
    connection, so a thousand idle clients would keep all others away.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def stop_at_eof(descriptor: int, stop: Callable[[], None] | None = None) -> threading.Thread:
    """Starts a thread that calls `stop` (by default: SIGTERM to this process) at a pipe's end.

    A parent that holds the other end of the pipe takes this process along however it ends, which
    PR_SET_PDEATHSIG does not promise: that goes by the thread that forked, not by the process.
    """

    def wait_for_eof() -> None:
        # The descriptor and not sys.stdin: a thread inside its buffer aborts Python at exit.
        while os.read(descriptor, 4096):
            pass
        (stop or (lambda: os.kill(os.getpid(), signal.SIGTERM)))()

    thread = threading.Thread(target=wait_for_eof, name="stdin-eof", daemon=True)
    thread.start()
    return thread


def _preloading(environment: Mapping[str, str], path: str) -> dict[str, str]:
    """The environment of the second life: `path` goes before what the user preloads."""
    entries = [path, *_entries(environment.get("LD_PRELOAD", ""))]
    return {
        "MALLOC_CONF": DEFAULT_MALLOC_CONF,
        **environment,
        "LD_PRELOAD": ":".join(entries),
        _MARKER: path,
    }


def _forget_preload(environment: MutableMapping[str, str], path: str) -> None:
    """Takes out what `_preloading` put in; what the user had set stays."""
    del environment[_MARKER]
    entries = _entries(environment.get("LD_PRELOAD", ""))
    if path in entries:
        entries.remove(path)
    environment["LD_PRELOAD"] = ":".join(entries)
    if not entries:
        del environment["LD_PRELOAD"]
    if environment.get("MALLOC_CONF") == DEFAULT_MALLOC_CONF:
        del environment["MALLOC_CONF"]


def _entries(preload: str) -> list[str]:
    # ld.so takes spaces and colons alike.
    return [entry for entry in re.split(r"[ :]+", preload) if entry]


def _usual_directories() -> list[str]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    return [
        f"/usr/lib/{multiarch}",
        f"/lib/{multiarch}",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ]


def _in_loader_cache() -> str | None:
    try:
        # By full path: /sbin is not on the path of every user.
        listing = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return None
    match = re.search(rf"^\s*{re.escape(JEMALLOC_FILE_NAME)} .*=> (\S+)$", listing, re.MULTILINE)
    return match.group(1) if match else None

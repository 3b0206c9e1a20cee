"""Prepares the process of a server: preloads jemalloc, raises the limit of open files, ends with its parent.

A running process cannot load libjemalloc.so.2, because the library's thread-local storage is static. So the
launcher puts jemalloc into LD_PRELOAD, and executes the same command once more. The executed process removes
these changes from its environment, so that its child processes do not inherit them.
"""

import importlib.util
import os
import re
import resource
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from serving.base.early_stop import signals_kept
from serving.base.errors import FailedPrecondition, InvalidConfig

JEMALLOC_FILE_NAME = "libjemalloc.so.2"

# jemalloc's options if the user has not set MALLOC_CONF.
# background_thread: jemalloc's own thread returns unused pages to the kernel. Without it, the threads of
# requests would do that when they free memory.
# tcache_max: blocks of up to 2 MiB come from a cache of the thread, and not from an arena behind a lock. A
# request's activations have this size. One allocation and its release take 50 ns instead of 170
# (native/bench/request_memory_bench.cc).
DEFAULT_MALLOC_CONF = "background_thread:true,tcache_max:2097152"

# A variable that is set in the executed process, to the path that was preloaded. It prevents endless execs.
_MARKER = "MILLPOND_PRELOADED"

# Finds, among the arguments of `serve`, one a line, an argument with which this process will run no server on
# jemalloc. If it misses an unusual spelling, the process only loses the time of one needless exec.
_NO_PRELOAD = re.compile(
    r"^(-h|--help|--version(=.*)?|--allocator(=glibc)?|--supervise(=true)?)$", re.MULTILINE
)

# Takes the path, the arguments and the environment, like os.execve, whose types are wider.
Execute = Callable[[Any, Any, Any], NoReturn]


def ensure_allocator(
    allocator: str,
    *,
    environment: MutableMapping[str, str] = os.environ,
    command: Sequence[str] | None = None,
    is_loaded: bool | None = None,
    find: Callable[[], str] | None = None,
    execute: Execute = os.execve,
) -> None:
    """Executes this process again, unless it already runs on `allocator` (`jemalloc` or `glibc`).

    `command` is the command line to execute; by default that of this process. Raises InvalidConfig if
    jemalloc is missing or did not load, or if `allocator` is glibc although jemalloc is preloaded.
    """
    loaded = is_jemalloc_loaded() if is_loaded is None else is_loaded
    preloaded = environment.get(_MARKER)
    if preloaded is not None:
        _forget_preload(environment, preloaded)
    if allocator == "glibc":
        if loaded:
            raise InvalidConfig(
                "--allocator=glibc: jemalloc is preloaded already; take it out of LD_PRELOAD "
                f"({environment.get('LD_PRELOAD', '')!r}) or use --allocator=jemalloc"
            )
        return
    if loaded:
        return
    if preloaded is not None:
        raise InvalidConfig(
            f"{preloaded} did not load (see the loader's message above); "
            "reinstall millpond, or use --allocator=glibc"
        )
    path = (find or find_jemalloc)()
    _execute_again(path, sys.orig_argv if command is None else command, environment, execute)


def preload_early(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] = os.environ,
    is_loaded: bool | None = None,
    find: Callable[[], str] | None = None,
    execute: Execute = os.execve,
) -> None:
    """Executes this process again at once, if `arguments` are those of a server that runs on jemalloc.

    `ensure_allocator` would do so too, but only after the imports that parse the flags, and the executed
    process would repeat these imports. Does nothing if jemalloc or /proc is missing, because `ensure_allocator`
    reports that.
    """
    if list(arguments[:1]) != ["serve"] or _NO_PRELOAD.search("\n".join(arguments)):
        return
    with suppress(InvalidConfig, FailedPrecondition):
        if _MARKER in environment or (is_jemalloc_loaded() if is_loaded is None else is_loaded):
            return
        _execute_again((find or find_jemalloc)(), sys.orig_argv, environment, execute)


def find_jemalloc(known_directories: Iterable[str] | None = None) -> str:
    """Finds libjemalloc.so.2: beside the native module, in the usual directories, or in ldconfig's cache.

    Ignores a path with a space or a colon, because LD_PRELOAD cannot contain it. Raises InvalidConfig, with
    the command that installs jemalloc.
    """
    if known_directories is None:
        known_directories = [*_module_directories(), *_usual_directories()]
    for directory in known_directories:
        path = Path(directory, JEMALLOC_FILE_NAME)
        if path.exists() and _entries(str(path)) == [str(path)]:
            return str(path)
    path_in_cache = _in_loader_cache()
    if path_in_cache is None:
        raise InvalidConfig(
            f"{JEMALLOC_FILE_NAME} is missing: reinstall millpond, run `apt-get install "
            "libjemalloc2`, or use --allocator=glibc"
        )
    return path_in_cache


def is_jemalloc_loaded(maps: Path = Path("/proc/self/maps")) -> bool:
    """True if this process has run on jemalloc since its start. Raises FailedPrecondition without /proc."""
    try:
        text = maps.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        # TensorFlow looks for its own executable there, and ends the process if it is missing.
        raise FailedPrecondition(
            "/proc is not mounted, and TensorFlow cannot load a model without it: mount -t proc proc /proc"
        ) from None
    return "libjemalloc" in text


def raise_descriptor_limit() -> None:
    """Raises the soft limit of open files to the hard limit, because each connection is an open file.

    The soft limit is often 1,024, for programs that use select(2). At the limit the server refuses further
    connections. So without this, a thousand idle clients would keep all other clients away.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _execute_again(
    jemalloc: str, command: Sequence[str], environment: Mapping[str, str], execute: Execute
) -> None:
    # argv[0] is the full path of Python, which finds its virtual environment by it.
    arguments = [sys.executable, *command[1:]]
    with signals_kept():
        execute(sys.executable, arguments, _preloading(environment, jemalloc))


def _preloading(environment: Mapping[str, str], path: str) -> dict[str, str]:
    """The environment of the executed process. It preloads `path`, and then the user's own libraries."""
    entries = [path, *_entries(environment.get("LD_PRELOAD", ""))]
    return {
        "MALLOC_CONF": DEFAULT_MALLOC_CONF,
        **environment,
        "LD_PRELOAD": ":".join(entries),
        _MARKER: path,
    }


def _forget_preload(environment: MutableMapping[str, str], path: str) -> None:
    """Removes the values that `_preloading` has added to the environment. The user's own values stay."""
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
    # The dynamic loader accepts spaces and colons as separators.
    return [entry for entry in re.split(r"[ :]+", preload) if entry]


def _module_directories() -> list[str]:
    """The directory of the native module; no directory if the module is not built."""
    spec = importlib.util.find_spec("serving.data_plane._data_plane")
    return [] if spec is None or spec.origin is None else [str(Path(spec.origin).parent)]


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
        # The full path is given because /sbin is not on the PATH of every user.
        listing = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return None
    match = re.search(rf"^\s*{re.escape(JEMALLOC_FILE_NAME)} .*=> (\S+)$", listing, re.MULTILINE)
    return match.group(1) if match else None

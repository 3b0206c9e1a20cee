"""The process that compiles programs of XLA for a server: `python -m serving.loading.program_process`.

Its argument is the text of `Arguments`. It ends with its standard input, which the server holds.
"""

import json
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from serving.base.clock import Clock, SystemClock, pause
from serving.base.errors import MillpondError
from serving.base.parent_process import stop_at_eof
from serving.data_plane.loads import AheadCompiler
from serving.data_plane.plane import native_module
from serving.data_plane.status_errors import statuses_as_errors
from serving.loading.child_process import Child, spawn_module
from serving.loading.load_priority import IDLE, lower_thread
from serving.loading.program_files import program_file, read_programs

UNABLE = 3
"""The status if there is no compiler, for whatever program."""

_NICE = 10
"""A tenth of a core that others want, and all of an idle one. With 19 it would starve beside busy request threads."""

_PATIENCE_SECONDS = 20.0
_STARVING_SHARE = 0.2
"""At idle priority it starves if it has less than this share of a core for so long: requests take all cores."""

_OOM_SCORE = "1000"
"""The kernel ends this process first if memory is short, and not the server, which is larger and answers requests."""

_MODULE = "serving.loading.program_process"

NO_FILE = -1


class Arguments(NamedTuple):
    """The task of the process, and its descriptors.

    Without a `target`, it autotunes on a GPU, of whose memory it may take `memory_share`. Otherwise it compiles for
    loads (`DataPlane.open_ahead_compiler`) by the `topology`, and for that target only. Its `priority` is a value of
    --load_priority, and it runs on the `cores`. `visible_devices` is its CUDA_VISIBLE_DEVICES; None: the server's.
    `programs` is a `program_file`; `begun` is a file that gets a byte before each program.
    """

    plugin: str
    cache_directory: str
    memory_share: float = 0.0
    topology: str = ""
    target: str = ""
    priority: str = ""
    cores: Sequence[int] = ()
    visible_devices: str | None = None
    programs: int = NO_FILE
    begun: int = NO_FILE

    def text(self) -> str:
        return json.dumps(self)

    @classmethod
    def of(cls, text: str) -> "Arguments":
        return cls(*json.loads(text))


def spawn_programs(arguments: Arguments, programs: Sequence[bytes], stderr: int) -> Child:
    """Starts the process for `programs`. Raises OSError."""
    with program_file(programs) as file:
        files = [file] if arguments.begun == NO_FILE else [file, arguments.begun]
        return spawn_module(
            _MODULE,
            [arguments._replace(programs=file).text()],
            visible_devices=arguments.visible_devices,
            descriptors=files,
            stderr=stderr,
        )


def main(texts: Sequence[str]) -> int:
    """Compiles the programs into the cache. Returns 1, after the errors on standard error, if some fail."""
    stop_at_eof(sys.stdin.fileno(), partial(os._exit, 1))
    arguments = Arguments.of(texts[0])
    _give_way(arguments.priority, arguments.cores)
    try:
        compiler = _open(arguments)
    except (MillpondError, OSError) as error:
        print(error, file=sys.stderr)
        return UNABLE
    return _compile(arguments, compiler)


def _open(arguments: Arguments) -> AheadCompiler:
    """Raises the plugin's error, and MillpondError if the compiler is for another target."""
    plane = native_module()
    with statuses_as_errors(plane.StatusError):
        compiler = plane.open_ahead_compiler(
            arguments.plugin,
            arguments.topology,
            arguments.memory_share,
            for_loads=bool(arguments.target),
        )
    if arguments.target not in ("", compiler.target):
        raise MillpondError(f"compiles for {compiler.target}, and not for {arguments.target}")
    return compiler


def _compile(arguments: Arguments, compiler: AheadCompiler) -> int:
    plane, status = native_module(), 0
    for program in read_programs(arguments.programs):
        if arguments.begun != NO_FILE:
            os.write(arguments.begun, b".")
        try:
            with statuses_as_errors(plane.StatusError):
                compiler.compile_into(program, arguments.cache_directory)
        except (MillpondError, OSError) as error:
            print(error, file=sys.stderr, flush=True)
            status = 1
    return status


def _give_way(priority: str, cores: Sequence[int]) -> None:
    """Leaves the cores and the memory to the server, and a terminal's signals too."""
    # A session of its own would be a group of the kernel's scheduler, too, in which no priority counts for others.
    os.setpgid(0, 0)
    os.nice(_NICE)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(_OOM_SCORE)
    if priority != IDLE:
        with suppress(OSError):  # as of a sandbox
            lower_thread(0, priority)
    elif _may_rise():
        # It begins before this thread is lowered, so it keeps its priority.
        threading.Thread(target=raise_if_starving, args=(SystemClock(),), daemon=True).start()
        lower_thread(0, priority)
    with suppress(OSError):  # none of them may be there any more
        os.sched_setaffinity(0, cores)


def _may_rise() -> bool:
    """Tries on a thread of its own if the system lets a thread leave idle priority again.

    It does with CAP_SYS_NICE only. Without, a process of idle priority could starve for ever beside busy requests.
    """
    risen = []

    def try_it() -> None:
        with suppress(OSError):
            lower_thread(0, IDLE)
            _raise(0)
            risen.append(True)

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    return bool(risen)


def _raise(thread_id: int) -> None:
    """Gives a thread the usual policy, at its nice value. Raises OSError."""
    os.sched_setscheduler(thread_id, os.SCHED_OTHER, os.sched_param(0))


def raise_if_starving(clock: Clock) -> None:
    """Gives all threads of this process the usual policy, at their nice value, once they starve at idle priority."""
    while True:
        before_seconds = _cpu_seconds()
        pause(clock, _PATIENCE_SECONDS)
        if _cpu_seconds() - before_seconds < _PATIENCE_SECONDS * _STARVING_SHARE:
            break
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            _raise(int(thread))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

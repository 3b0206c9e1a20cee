"""The process that autotunes programs beside a server: `python -m serving.loading.autotuning_process`.

Its arguments are those of `Arguments`. It ends with its standard input, which the server holds.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from serving.base.errors import MillpondError
from serving.base.parent_process import stop_at_eof
from serving.data_plane.plane import native_module
from serving.data_plane.status_errors import statuses_as_errors
from serving.loading.program_files import read_programs

_NICE = 10
"""A tenth of a core that others want, and all of an idle one. With 19 it would starve beside busy request threads."""

_CORES_MAX = 4
_CORE_SHARE = 4
"""It gets a quarter of the server's cores: XLA makes a thread for each core, and all of them compile."""


class Arguments(NamedTuple):
    """The plugin's path, the cache, the share of the GPU's memory, and the descriptor of `program_file`."""

    plugin: str
    cache_directory: str
    memory_share: float
    programs: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Arguments":
        plugin, cache_directory, memory_share, programs = texts
        return cls(plugin, cache_directory, float(memory_share), int(programs))


def main(texts: Sequence[str]) -> int:
    """Compiles the programs into the cache. Returns 1, after the error on standard error, if one fails."""
    stop_at_eof(sys.stdin.fileno(), partial(os._exit, 1))
    arguments = Arguments.of(texts)
    _give_way()
    plane = native_module()
    try:
        with statuses_as_errors(plane.StatusError):
            compiler = plane.open_ahead_compiler(arguments.plugin, "", arguments.memory_share)
            for program in read_programs(arguments.programs):
                compiler.compile_into(program, arguments.cache_directory)
    except (MillpondError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _give_way() -> None:
    """Leaves the cores to the server's threads."""
    os.nice(_NICE)
    cores = few_cores(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, cores)


def few_cores(cores: Sequence[int]) -> Sequence[int]:
    """The last quarter of `cores`: one core at least, and four at most."""
    return cores[-max(min(len(cores) // _CORE_SHARE, _CORES_MAX), 1) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

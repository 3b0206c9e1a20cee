"""The threads that libraries start for loads, such as those of XLA's compilers.

Such a thread inherits the priority of the load's thread, and a load waits for it. So it must not starve.
"""

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from serving.loading.load_priority import is_lowered

_NAMES_OF_OTHERS = ("slab-keeper", "request-")
"""The beginnings of the names of Millpond's own native threads that may have a lowered priority."""


def lowered_library_threads() -> Collection[int]:
    """The ids of this process's threads of lowered priority that neither Python nor Millpond started."""
    of_python = {thread.native_id for thread in threading.enumerate()}
    of_process = [int(name) for name in os.listdir("/proc/self/task")]
    return [one for one in of_process if one not in of_python and _is_lowered_library_thread(one)]


def _is_lowered_library_thread(thread_id: int) -> bool:
    with suppress(OSError):  # the thread has ended
        if not is_lowered(thread_id):
            return False
        name = Path(f"/proc/self/task/{thread_id}/comm").read_text(encoding="utf-8")
        return not name.startswith(_NAMES_OF_OTHERS)
    return False

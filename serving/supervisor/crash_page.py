"""The crash page: shared memory in which the server marks the versions that its threads run and load.

The supervisor makes the page, and reads it after the server has died. native/base/crash_page.h describes the
layout, and how the server marks the page.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

DESCRIPTOR_VARIABLE = "MILLPOND_CRASH_PAGE"
"""The environment variable that passes the descriptor of the page to the server."""

_MAGIC = 0x3165676150687343
THREAD_COUNT, ROW_COUNT = 1_024, 8_192
FROM_OUTSIDE = 0xFFFFFFFF
LOADING_BIT = 0x80000000

# The header: a magic number, the counts of threads and rows, the id of the crashed thread and its signal.
_HEADER = struct.Struct("<QIIII40x")
# The slot of a thread: its id, and its mark, which is the number of a row from 1 on.
_SLOT = struct.Struct("<II56x")
# The row of a version: its number, 1 if the row is used, the length of the model's name, and the name.
_ROW = struct.Struct("<qII496s")

_SLOTS_AT = _HEADER.size
_ROWS_AT = _SLOTS_AT + THREAD_COUNT * _SLOT.size
SIZE_BYTES = _ROWS_AT + ROW_COUNT * _ROW.size


@dataclass(frozen=True, order=True)
class MarkedVersion:
    """A version that a thread ran, or loaded, when the server died."""

    name: str
    version: int
    is_loading: bool = False

    def __str__(self) -> str:
        return f"{self.name} version {self.version}"


@dataclass(frozen=True, kw_only=True)
class CrashMarks:
    """The content of the page after the server has died.

    `suspects` has the version that the crashed thread ran; if that thread is not known, all marked versions.
    It is empty if the crashed thread ran no version, or if another process has sent the signal.
    """

    suspects: tuple[MarkedVersion, ...] = ()
    is_thread_known: bool = False
    is_from_outside: bool = False
    has_begun_loads: bool = False


class CrashPage:
    """The page for one process of the server: an unnamed file in memory, which takes about 100 KB."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("millpond_crash_page", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, SIZE_BYTES)
        os.pwrite(self._descriptor, _HEADER.pack(_MAGIC, THREAD_COUNT, ROW_COUNT, 0, 0), 0)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def read(self) -> CrashMarks:
        """Reads the marks. Call it after the server has ended."""
        with mmap.mmap(self._descriptor, SIZE_BYTES, access=mmap.ACCESS_READ) as content:
            return _marks(content)

    def close(self) -> None:
        os.close(self._descriptor)


def _marks(content: mmap.mmap) -> CrashMarks:
    _, _, _, crashed_id, _ = _HEADER.unpack_from(content, 0)
    slots = dict(_slots(content))
    is_thread_known = crashed_id in slots
    if is_thread_known:
        numbers = [slots[crashed_id]]
    elif crashed_id == FROM_OUTSIDE:
        numbers = []
    else:
        numbers = [*slots.values()]
    suspects = {_version(content, number) for number in numbers if number & ~LOADING_BIT}
    _, _, first_name_bytes, _ = _ROW.unpack_from(content, _ROWS_AT)
    return CrashMarks(
        suspects=tuple(sorted(suspects)),
        is_thread_known=is_thread_known,
        is_from_outside=crashed_id == FROM_OUTSIDE,
        # A row keeps its name when its version is gone. So the first row shows if a load has ever begun.
        has_begun_loads=first_name_bytes > 0,
    )


def _slots(content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yields the id and the mark of each thread that has a slot."""
    for number in range(THREAD_COUNT):
        thread_id, mark = _SLOT.unpack_from(content, _SLOTS_AT + number * _SLOT.size)
        if thread_id:
            yield thread_id, mark


def _version(content: mmap.mmap, mark: int) -> MarkedVersion:
    row = (mark & ~LOADING_BIT) - 1
    version, _, name_bytes, name = _ROW.unpack_from(content, _ROWS_AT + row * _ROW.size)
    return MarkedVersion(
        name[:name_bytes].decode(errors="replace"), version, is_loading=bool(mark & LOADING_BIT)
    )

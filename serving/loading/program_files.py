"""Programs of XLA on their way to another process, in memory and not on a disk."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_SIZE_BYTES = 8


@contextmanager
def program_file(programs: Sequence[bytes]) -> Iterator[int]:
    """Yields the descriptor of a file of `programs`, for `read_programs`. Raises OSError."""
    with os.fdopen(os.memfd_create("programs"), "wb+") as file:
        for program in programs:
            file.write(len(program).to_bytes(_SIZE_BYTES, "little"))
            file.write(program)
        file.seek(0)
        yield file.fileno()


def read_programs(descriptor: int) -> Iterator[bytes]:
    """Reads the programs one by one, and closes the file. Raises OSError."""
    with os.fdopen(descriptor, "rb") as file:
        while size := file.read(_SIZE_BYTES):
            yield file.read(int.from_bytes(size, "little"))

"""The lines that TensorFlow writes to standard error while it is loaded, as events of our log.

They come before any of its settings is read, so no environment variable ends them. While the block
runs they go to memory; a process that is killed within it loses them.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog

_STDERR = 2
_READ_BYTES = 1 << 16

EXPECTED = (
    "before absl::InitializeLog()",
    "oneDNN custom operations are on",
    "cuda drivers",
    "cuInit",
)
"""Texts of lines that every start on a machine without GPU has: they are left out."""

_log = structlog.get_logger(__name__)


def native_lines(text: str) -> Sequence[str]:
    """The lines of `text` that are worth an event: neither expected nor empty. Pure."""
    return [
        line
        for line in text.splitlines()
        if line.strip() and not any(expected in line for expected in EXPECTED)
    ]


@contextmanager
def native_lines_as_events() -> Iterator[None]:
    """Logs what is written to standard error within the block as `native_log` when it ends.

    Lines of our own log that a thread writes meanwhile are passed on as they are.
    """
    stderr, memory = os.dup(_STDERR), os.memfd_create("early-log")
    os.dup2(memory, _STDERR)
    try:
        yield
    finally:
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        _log_lines(native_lines(_contents(memory)))
        os.close(memory)


def _contents(memory: int) -> str:
    os.lseek(memory, 0, os.SEEK_SET)
    pieces = iter(lambda: os.read(memory, _READ_BYTES), b"")
    return b"".join(pieces).decode(errors="replace")


def _log_lines(lines: Sequence[str]) -> None:
    for line in lines:
        if line.startswith("{"):
            os.write(_STDERR, f"{line}\n".encode())
        else:
            _log.info("native_log", line=line)

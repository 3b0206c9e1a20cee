"""Turns the lines that native code writes to standard error into lines of the server's log.

TensorFlow writes some lines while it is loaded, before it reads its settings, so no environment variable
suppresses these lines. Other lines come while the server runs. So a small process,
`serving.server.native_line_reader`, reads all that is written to descriptor 2, and writes each line to the
log at once. Because it is another process, the message of a fatal error reaches the log although the server
aborts. In a container the kernel kills that process together with the server. Then it has only the
milliseconds that the kernel needs to end the server.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

_READER = Path(__file__).with_name("native_line_reader.py")
_STDERR = 2
_END_SECONDS = 1.0
"""The longest wait for the end of the reader, which usually takes a millisecond."""

_log = structlog.get_logger(__name__)


@contextmanager
def native_lines_as_events(
    *, is_human: bool, write: Callable[[str], object], command: str = sys.executable
) -> Iterator[None]:
    """Logs each line that is written to descriptor 2 within the block.

    In JSON it is an event `native_log`; for people it is the line itself. `write` gets the lines that
    standard error has not accepted by the end of the block. It must not write to descriptor 2. If the reader
    cannot be started, lines go to standard error as they are.
    """
    stderr = os.dup(_STDERR)
    try:
        reader = _start_reader(command, "human" if is_human else "json", stderr)
    except OSError as error:
        _log.warning("native_lines_not_read", error=str(error))
        os.close(stderr)
        yield
        return
    try:
        yield
    finally:
        # This ends the reader's input, unless a process that was started meanwhile has inherited the pipe.
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        end = threading.Thread(
            target=_write_rest, args=(reader, write), name="native-lines", daemon=True
        )
        end.start()
        end.join(_END_SECONDS)


def _write_rest(reader: subprocess.Popen[bytes], write: Callable[[str], object]) -> None:
    """Waits for the end of the reader, and writes the lines that it hands over."""
    rest, _ = reader.communicate()
    if rest:
        write(rest.decode(errors="replace"))


def _start_reader(command: str, log_format: str, stderr: int) -> subprocess.Popen[bytes]:
    """Starts the process that from now on reads descriptor 2, and writes to `stderr`."""
    # -I and -S leave out the user's settings and site-packages, so that Python starts in about 10 ms.
    arguments = [command, "-I", "-S", str(_READER), log_format]
    read_end, write_end = os.pipe()
    try:
        reader = subprocess.Popen(
            arguments,
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # A signal to the server's process group, as from a terminal, must not end the reader.
            start_new_session=True,
        )
        os.dup2(write_end, _STDERR)
    finally:
        os.close(read_end)
        os.close(write_end)
    return reader

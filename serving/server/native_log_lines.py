"""The lines that native code writes to standard error, as lines of our log.

TensorFlow writes some lines while it is loaded, before it reads any of its settings, so no environment
variable suppresses these lines. Other lines come while the server runs. While the block runs, descriptor 2
is a pipe to a small process, `serving.server.native_line_reader`. That process writes each line to the log
as it arrives, so that the message of a fatal error arrives although the server aborts. In a container, the
server's end kills that process too: it has only the milliseconds that the kernel needs to end the server.
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
"""How long the end waits for the reader's end, which takes a millisecond."""

_log = structlog.get_logger(__name__)


@contextmanager
def native_lines_as_events(
    *, is_human: bool, write: Callable[[str], object], command: str = sys.executable
) -> Iterator[None]:
    """Logs the lines written to descriptor 2 within the block: `native_log` in JSON, else the text.

    `write` gets the lines that standard error did not accept at once. Like our own log, it must not
    write to descriptor 2. If no process can be started, the lines stay unchanged.
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
        # The reader's input ends, unless a process that was started meanwhile has inherited it.
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        end = threading.Thread(
            target=_write_rest, args=(reader, write), name="native-lines", daemon=True
        )
        end.start()
        end.join(_END_SECONDS)


def _write_rest(reader: subprocess.Popen[bytes], write: Callable[[str], object]) -> None:
    """Waits for the reader's end and writes the lines that it hands over."""
    rest, _ = reader.communicate()
    if rest:
        write(rest.decode(errors="replace"))


def _start_reader(command: str, log_format: str, stderr: int) -> subprocess.Popen[bytes]:
    """Starts the process that reads descriptor 2 from now on and writes to `stderr`."""
    # Isolated and without site-packages: it starts in some 10 ms, whatever the environment holds.
    arguments = [command, "-I", "-S", str(_READER), log_format]
    read_end, write_end = os.pipe()
    try:
        reader = subprocess.Popen(
            arguments,
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # Signals to the server's group, as from a terminal, are not for the reader.
            start_new_session=True,
        )
        os.dup2(write_end, _STDERR)
    finally:
        os.close(read_end)
        os.close(write_end)
    return reader

"""Commands whose standard output fails: its reader has gone, as in `millpond status | head -1`, or
its disk is full.
"""

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TextIO

EXIT_CLOSED_PIPE = 128 + signal.SIGPIPE
"""The exit status that a shell reports for a command that SIGPIPE ended, as in `yes | head -1`.

The signal itself stays ignored, as is Python's default: otherwise it would end a server, or a load
test, when a child or a client goes away.
"""


EXIT_FAILURE = 1
# Shells and service managers take this status as "wrong usage": a restart does not help.
EXIT_USAGE = 2


def until_closed_pipe(command: Callable[[], int]) -> int:
    """Runs `command` and returns its exit status.

    Returns EXIT_CLOSED_PIPE if the reader of its output went away first. If `command` raises another
    OSError, which comes from its output, prints the error and returns EXIT_FAILURE. Other exceptions
    pass through, including SystemExit.
    """
    try:
        try:
            return command()
        finally:
            # At the interpreter's end an error could no longer be handled. None after `>&-`.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
        closed = [stream for stream in streams if _has_no_reader(stream)]
        if not closed:
            raise  # the error comes from another pipe
        for stream in closed:
            _discard_rest(stream)
        return EXIT_CLOSED_PIPE
    except OSError as error:
        _discard_rest(sys.stdout)
        print(f"the output cannot be written: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except SystemExit as exit_:
        # rich turns a BrokenPipeError into SystemExit.
        if isinstance(exit_.__context__, BrokenPipeError):
            return EXIT_CLOSED_PIPE
        raise


def _has_no_reader(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _discard_rest(stream: TextIO) -> None:
    """Redirects `stream` to /dev/null, because Python flushes it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

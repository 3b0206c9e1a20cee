"""Commands whose standard output goes nowhere: nobody reads it any more, as in `millpond status | head
-1`, or its disk is full.
"""

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TextIO

EXIT_CLOSED_PIPE = 128 + signal.SIGPIPE
"""What a shell says of a command that SIGPIPE ended, and so of `yes | head -1`.

The signal itself stays ignored, as Python has it: it would end a server, or a load test, whose child
or client has gone away.
"""


EXIT_FAILURE = 1
# Shells and service managers read it as "wrong usage": starting again will not help.
EXIT_USAGE = 2


def until_closed_pipe(command: Callable[[], int]) -> int:
    """Runs `command` and returns its exit status, EXIT_CLOSED_PIPE where its reader went away first,
    EXIT_FAILURE where an OSError that it let pass, which is the output's, is told instead.

    Raises what else `command` raises, SystemExit among them.
    """
    try:
        try:
            return command()
        finally:
            # Here and not at the interpreter's end, where it could only complain. None: `>&-`.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
        closed = [stream for stream in streams if _has_no_reader(stream)]
        if not closed:
            raise  # another pipe than these
        for stream in closed:
            _discard_rest(stream)
        return EXIT_CLOSED_PIPE
    except OSError as error:
        _discard_rest(sys.stdout)
        print(f"the output cannot be written: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except SystemExit as exit_:
        # What rich makes of it.
        if isinstance(exit_.__context__, BrokenPipeError):
            return EXIT_CLOSED_PIPE
        raise


def _has_no_reader(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _discard_rest(stream: TextIO) -> None:
    """Python flushes once more at its end: what is left goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

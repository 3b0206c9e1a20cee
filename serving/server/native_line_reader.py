"""Writes to the server's log the lines that native code prints to standard error.

This is a separate program, which `serving.server.native_log_lines` starts. It outlives a server that aborts,
so that the last lines of that server reach the log. It imports only the standard library and is executed by
its path, so that it is ready within milliseconds.

The program reads lines from standard input and writes them to standard error. A line that standard error does
not accept waits until it does. At the end of the input, the program hands the lines that still wait to the
server, through standard output. If the server has ended, these lines wait up to a second for standard error.
The first argument of the program is the format of the log, `human` or `json`.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

EXPECTED = (
    "before absl::InitializeLog()",
    "oneDNN custom operations are on",
    "cuda drivers",
    "cuInit",
)
"""Parts of lines that TensorFlow prints at every start on a machine without a GPU. They are left out."""

READ_BYTES = 1 << 16

WAITING_BYTES_MAX = 1 << 20
"""The most bytes of lines that wait for standard error. If they are exceeded, further lines are dropped."""

LAST_MILLISECONDS = 1_000
"""The longest that the last lines of a server that has ended wait for the log's reader."""

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def is_worth_a_line(line: str) -> bool:
    """True if `line` is not empty and has no text of EXPECTED. Pure."""
    return bool(line.strip()) and not any(expected in line for expected in EXPECTED)


def formatted(lines: Sequence[str], log_format: str, timestamp: str) -> bytes:
    """The bytes that the log gets for `lines`. Pure."""
    kept = [line for line in lines if is_worth_a_line(line)]
    if log_format == "json":
        values = {"event": "native_log", "level": "info", "timestamp": timestamp}
        kept = [json.dumps({"line": line, **values}) for line in kept]
    return "".join(f"{line}\n" for line in kept).encode(errors="backslashreplace")


def pass_on(
    read: Callable[[], bytes],
    write: Callable[[bytes], bytes],
    as_log: Callable[[Sequence[str]], bytes],
    wait_for_input: Callable[[], bool] = lambda: True,
) -> bytes:
    """Reads to the end, and writes each line when it is complete. Returns the bytes that were not written.

    `write` returns the part of its data that it could not write. While such a part waits, `wait_for_input`
    is called; it returns False if the part can be written before there is more to read.
    """
    begun = rest = b""
    while True:
        if not rest or wait_for_input():
            piece = read()
            if not piece:
                return write(rest + as_log([begun.decode(errors="replace")]))
            *complete, begun = (begun + piece).split(b"\n")
            if len(rest) <= WAITING_BYTES_MAX:
                rest += as_log([line.decode(errors="replace") for line in complete])
        rest = write(rest)


def write_some(data: bytes) -> bytes:
    """Writes as much of `data` as standard error accepts, and returns the rest."""
    try:
        return data[os.write(_STDERR, data) :] if data else data
    except BlockingIOError:
        return data
    except OSError:
        return b""  # The reader is gone, or the disk is full.


def wait_for_input() -> bool:
    """Waits until there is input, or space in standard error. Returns True if there is input."""
    poll = select.poll()
    poll.register(_STDIN, select.POLLIN)
    poll.register(_STDERR, select.POLLOUT)
    return any(descriptor == _STDIN for descriptor, _ in poll.poll())


def hand_over(rest: bytes) -> None:
    """Gives `rest` to the server. If the server has ended, writes it to standard error, and waits for space."""
    try:
        while rest:
            rest = rest[os.write(_STDOUT, rest) :]
    except OSError:
        poll = select.poll()
        poll.register(_STDERR, select.POLLOUT)
        while rest and poll.poll(LAST_MILLISECONDS):
            rest = write_some(rest)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def main(log_format: str) -> None:
    # A signal to the whole process group is meant for the server. This program ends at the end of its input.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    rest = pass_on(
        lambda: os.read(_STDIN, READ_BYTES),
        write_some,
        lambda lines: formatted(lines, log_format, _now()),
        wait_for_input,
    )
    hand_over(rest)


if __name__ == "__main__":
    main(sys.argv[1])

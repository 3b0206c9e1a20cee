"""The first line of a server's log, written before anything that takes time is imported."""

from collections.abc import MutableMapping

from serving.base.log_line import log_line
from serving.server.log_writer import write_at_once

# Passes a line that standard error did not accept to the process that the launcher executes.
_UNWRITTEN = "MILLPOND_UNWRITTEN_LINE"


def starting_line(version: str, wall_ns: int, *, is_human: bool) -> str:
    """Returns the line, in the format that `serving.server.logs` uses for all later lines. Pure."""
    message = f"millpond {version} starting ..."
    return log_line("starting", message, wall_ns, is_human=is_human)


def write_starting_line(descriptor: int, line: str, environment: MutableMapping[str, str]) -> None:
    """Writes `line` without waiting for a reader.

    A line that does not fit is kept in `environment` for `take_unwritten_line`.
    """
    if not write_at_once(descriptor, line.encode()):
        environment[_UNWRITTEN] = line


def take_unwritten_line(environment: MutableMapping[str, str]) -> str:
    """Removes the line that `write_starting_line` kept and returns it; "" if it was written."""
    return environment.pop(_UNWRITTEN, "")

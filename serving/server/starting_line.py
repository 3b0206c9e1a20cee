"""The first line of a server's log, written before anything that takes time is imported."""

from collections.abc import MutableMapping

from serving.base.log_line import log_line
from serving.server.log_writer import write_at_once

# Set once the line is written, also for the process that the launcher executes. Its value is the line
# if standard error did not accept it.
_WRITTEN = "MILLPOND_STARTING_LINE"


def starting_line(version: str, wall_ns: int, *, is_human: bool) -> str:
    """The line, in the format that `serving.server.logs` uses for all later lines. Pure."""
    message = f"millpond {version} starting ..."
    return log_line("starting", message, wall_ns, is_human=is_human)


def write_starting_line(descriptor: int, line: str, environment: MutableMapping[str, str]) -> None:
    """Writes `line` without waiting for a reader, unless `environment` says that it is written.

    A line that does not fit is kept in `environment` for `take_unwritten_line`.
    """
    if _WRITTEN not in environment:
        environment[_WRITTEN] = "" if write_at_once(descriptor, line.encode()) else line


def take_unwritten_line(environment: MutableMapping[str, str]) -> str:
    """Removes the note of `write_starting_line`. Returns the line if it was kept, else ""."""
    return environment.pop(_WRITTEN, "")

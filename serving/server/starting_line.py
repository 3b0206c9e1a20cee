"""Writes the first line of a server's log, before the imports that take time."""

from collections.abc import MutableMapping

from serving.base.log_line import log_line
from serving.server.log_writer import write_at_once

# This variable is set once the line was written, so that the process that the launcher executes does not write
# it again. Its value is the line itself if standard error did not accept the line, and "" otherwise.
_WRITTEN = "MILLPOND_STARTING_LINE"


def starting_line(version: str, wall_ns: int, *, is_human: bool) -> str:
    """The first line, in the format of all later lines (`serving.server.logs`). Pure."""
    message = f"millpond {version} starting ..."
    return log_line("starting", message, wall_ns, is_human=is_human)


def write_starting_line(descriptor: int, line: str, environment: MutableMapping[str, str]) -> None:
    """Writes `line` without waiting for a reader, unless `environment` shows that it was written before.

    If the line does not fit, keeps it in `environment` for `take_unwritten_line`.
    """
    if _WRITTEN not in environment:
        environment[_WRITTEN] = "" if write_at_once(descriptor, line.encode()) else line


def take_unwritten_line(environment: MutableMapping[str, str]) -> str:
    """Removes the variable of `write_starting_line`. Returns the line if it was kept there; "" otherwise."""
    return environment.pop(_WRITTEN, "")

"""The first line of a server's log, written before anything that takes time is imported."""

import json
from datetime import datetime, timezone
from typing import TextIO


def starting_line(version: str, log_format: str, wall_ns: int, *, is_terminal: bool) -> str:
    """Returns the line, in the format that `serving.logs` has for all later ones. Pure."""
    text = f"millpond {version} starting ..."
    if log_format == "human" or (log_format == "auto" and is_terminal):
        return text
    timestamp = (
        datetime.fromtimestamp(wall_ns / 1e9, timezone.utc).isoformat().replace("+00:00", "Z")
    )
    return json.dumps(
        {"message": text, "event": "starting", "level": "info", "timestamp": timestamp}
    )


def write_starting_line(stream: TextIO, version: str, log_format: str, wall_ns: int) -> None:
    """Writes the line, unless nothing reads `stream` any more."""
    try:
        line = starting_line(version, log_format, wall_ns, is_terminal=stream.isatty())
        stream.write(f"{line}\n")
        stream.flush()
    except OSError:
        # A log that has no reader stops no server.
        return

"""Formats a line of the log without structlog. Pure.

It is for lines before structlog is imported, and for last lines, which must not take a lock.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from types import MappingProxyType


def is_for_people(log_format: str, *, is_terminal: bool) -> bool:
    """True if lines are plain text, for people: `human`, or `auto` on a terminal.

    Otherwise they are JSON.
    """
    return log_format == "human" or (log_format == "auto" and is_terminal)


def log_line(
    event: str,
    message: str,
    wall_ns: int,
    *,
    is_human: bool,
    level: str = "info",
    fields: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Formats `message` as a line: plain text, or a JSON object with the keys of `serving.server.logs`.

    `fields` are further keys of the object.
    """
    if is_human:
        return f"{message}\n"
    timestamp = (
        datetime.fromtimestamp(wall_ns / 1e9, timezone.utc).isoformat().replace("+00:00", "Z")
    )
    values: dict[str, object] = {
        "message": message,
        "event": event,
        "level": level,
        "timestamp": timestamp,
    }
    values |= fields
    return json.dumps(values) + "\n"

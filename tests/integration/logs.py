"""Reads a server's log, and waits for its events."""

import itertools
from pathlib import Path

from serving import ModelServer
from serving.server.server_log import LogEvent
from tests.integration.clients import TIMEOUT_SECONDS

_marks = itertools.count(9_000_000)


def wait_for_log(server: ModelServer, event: str, **values: object) -> LogEvent:
    """Waits for an event with these values; past events count too."""
    return server.wait_for_event(lambda logged: _is(logged, event, values), TIMEOUT_SECONDS)


def logged(server: ModelServer, event: str, **values: object) -> list[LogEvent]:
    """Returns the events with these values so far."""
    return [logged for logged in server.events() if _is(logged, event, values)]


def wait_for_a_poll(server: ModelServer, base_path: Path, model: str = "scale") -> None:
    """Waits until the source has polled `base_path` once more."""
    mark = base_path / str(next(_marks))
    mark.touch()
    wait_for_log(server, "numeric_file_ignored", name=mark.name, model=model)
    mark.unlink()


def _is(logged: LogEvent, event: str, values: dict[str, object]) -> bool:
    return logged["event"] == event and all(
        logged.get(key) == value for key, value in values.items()
    )

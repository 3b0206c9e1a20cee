"""Reads a server's log, and waits for its events."""

import itertools
import json
import os
from pathlib import Path

from serving import ModelServer
from serving.base.clock import SystemClock
from serving.server.server_log import LogEvent
from tests.integration.clients import TIMEOUT_SECONDS

MARK = "test_mark"
"""The event of a line that a test writes to a server's log."""

_numbers = itertools.count(9_000_000)
_clock = SystemClock()


def wait_for_log(server: ModelServer, event: str, **values: object) -> LogEvent:
    """Waits for an event with these values; past events count too."""
    return server.wait_for_event(lambda logged: _is(logged, event, values), TIMEOUT_SECONDS)


def logged(server: ModelServer, event: str, **values: object) -> list[LogEvent]:
    """Returns the events with these values that the server has logged until now."""
    catch_up(server)
    return [logged for logged in server.events() if _is(logged, event, values)]


def only_logged(server: ModelServer, event: str, **values: object) -> LogEvent:
    """Waits for an event with these values and returns it; the server has logged no other one until now."""
    found = wait_for_log(server, event, **values)
    assert logged(server, event, **values) == [found]
    return found


def catch_up(server: ModelServer) -> None:
    """Waits until every line that the server has logged until now is read.

    A pipe keeps the order of its lines, so they are read when a mark is that comes after them.
    """
    assert server._process is not None
    assert server._process.stderr is not None
    mark = {"event": MARK, "number": next(_numbers)}
    try:
        pipe = os.open(f"/proc/self/fd/{server._process.stderr.fileno()}", os.O_WRONLY)
    except (OSError, ValueError):
        return  # The server has ended, and its whole log is read.
    with open(pipe, "wb") as log:
        log.write(f"{json.dumps(mark)}\n".encode())
    server._started_log().wait_for(lambda logged: logged == mark, TIMEOUT_SECONDS, _clock)


def wait_for_a_poll(server: ModelServer, base_path: Path, model: str = "scale") -> None:
    """Waits until the source has polled `base_path` once more."""
    mark = base_path / str(next(_numbers))
    mark.touch()
    wait_for_log(server, "numeric_file_ignored", name=mark.name, model=model)
    mark.unlink()


def _is(logged: LogEvent, event: str, values: dict[str, object]) -> bool:
    return logged["event"] == event and all(
        logged.get(key) == value for key, value in values.items()
    )

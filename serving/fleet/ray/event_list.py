"""The last events that a coordinator has logged, for the fronts of its fleet.

Ray writes an actor's log to a file of its node. An operator sees the log of `millpond fleet start`.
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from structlog.typing import EventDict

from serving.base.clock import Clock

EVENT_COUNT_MAX = 1_000
"""The events that are kept. A front asks for them once in `poll_seconds`."""

NS_PER_NUMBER = 1_000
"""An event's number is its wall time in microseconds, so that those of the next coordinator are higher."""

# How structlog's methods are called that have no traceback.
_LEVELS: Mapping[str, str] = {"exception": "error", "critical": "error"}
_PREFIX = "fleet_"
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One line of a coordinator's log."""

    number: int
    level: str
    name: str
    values: Mapping[str, Any]


def _is_plain(value: object) -> bool:
    """Returns True if the front can log the value as the coordinator does."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


class EventList:
    """Keeps the last events of the fleet. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._events: deque[LoggedEvent] = deque(maxlen=EVENT_COUNT_MAX)
        self._last = 0

    def keep(self, logger: object, method: str, event: EventDict) -> EventDict:
        """Keeps an event of the fleet, as a processor of structlog, and passes every event on."""
        del logger
        name = str(event["event"])
        if name.startswith(_PREFIX):
            values = {
                key: value if _is_plain(value) else str(value)
                for key, value in event.items()
                if key not in ("event", "exc_info")
            }
            with self._lock:
                self._last = max(self._last + 1, self._clock.wall_ns() // NS_PER_NUMBER)
                level = _LEVELS.get(method, method)
                self._events.append(LoggedEvent(self._last, level, name, values))
        return event

    def after(self, number: int) -> list[LoggedEvent]:
        """Returns the events with higher numbers, in turn."""
        with self._lock:
            return [event for event in self._events if event.number > number]

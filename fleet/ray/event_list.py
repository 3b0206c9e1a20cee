"""Keeps the last events that a coordinator has logged, so that the fronts of its fleet can log them too.

Ray writes the log of an actor to a file on the actor's node. An operator looks only at the log of
`millpond fleet start`, which is a front.
"""

import threading
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from structlog.typing import EventDict

from serving.base.clock import Clock

EVENT_COUNT_MAX = 1_000
"""The number of events that are kept. A front asks for new ones once in `poll_seconds`."""

# By structlog method, the level at which a front logs the event. A front logs no traceback.
_LEVELS: Mapping[str, str] = {"exception": "error", "critical": "error"}
_PREFIX = "fleet_"
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One line of a coordinator's log. `boot` identifies its process, and `number` counts its events."""

    boot: str
    number: int
    wall_ns: int
    level: str
    name: str
    values: Mapping[str, Any]


def _is_plain(value: object) -> bool:
    """True if a front can log the value in the same form as the coordinator."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


class EventList:
    """Keeps the last events of the fleet. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boot = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._events: deque[LoggedEvent] = deque(maxlen=EVENT_COUNT_MAX)
        self._count = 0

    def keep(self, logger: object, method: str, event: EventDict) -> EventDict:
        """Keeps the events of the fleet. A processor of structlog: it passes every event on unchanged."""
        del logger
        name = str(event["event"])
        if name.startswith(_PREFIX):
            values = {
                key: value if _is_plain(value) else str(value)
                for key, value in event.items()
                if key not in ("event", "exc_info")
            }
            with self._lock:
                self._count += 1
                self._events.append(
                    LoggedEvent(
                        self._boot,
                        self._count,
                        self._clock.wall_ns(),
                        _LEVELS.get(method, method),
                        name,
                        values,
                    )
                )
        return event

    def after(self, boot: str, number: int) -> list[LoggedEvent]:
        """The events after event `number` of the process `boot`; all events if that is another process."""
        last = number if boot == self._boot else 0
        with self._lock:
            return [event for event in self._events if event.number > last]

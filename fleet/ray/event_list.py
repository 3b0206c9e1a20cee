"""The last events that a coordinator has logged, for the fronts of its fleet.

Ray writes an actor's log to a file of its node. An operator sees only the log of `millpond fleet start`,
which is a front's.
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
"""The events that are kept. A front asks for them once in `poll_seconds`."""

# The level of a front's line for a structlog method. The line has no traceback.
_LEVELS: Mapping[str, str] = {"exception": "error", "critical": "error"}
_PREFIX = "fleet_"
_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One line of a coordinator's log. `boot` is its process, within which the numbers grow."""

    boot: str
    number: int
    wall_ns: int
    level: str
    name: str
    values: Mapping[str, Any]


def _is_plain(value: object) -> bool:
    """True if a front can log the value just as the coordinator does."""
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
        """The events after one, in turn; all of them if that one is of another process."""
        last = number if boot == self._boot else 0
        with self._lock:
            return [event for event in self._events if event.number > last]

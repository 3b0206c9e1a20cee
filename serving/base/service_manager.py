"""The service manager that started this process, by sd_notify(3): a datagram for each change."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

_US_PER_SECOND = 1_000_000


class ServiceManager:
    """Sends states to the service manager. Any thread. A lost datagram is no error.

    Without NOTIFY_SOCKET in the environment nothing is sent.
    """

    def __init__(
        self, environment: Mapping[str, str] = os.environ, process_id: int | None = None
    ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_seconds = _watchdog_seconds(environment, process_id or os.getpid())

    @property
    def is_there(self) -> bool:
        """True if a service manager takes states."""
        return bool(self._address)

    @property
    def watchdog_seconds(self) -> float | None:
        """The time after which a service manager ends a process that has sent no WATCHDOG=1."""
        return self._watchdog_seconds if self.is_there else None

    def notify(self, **states: object) -> None:
        """Sends `states`, such as READY=1, as one datagram."""
        if not self._address:
            return
        text = "".join(f"{name}={_one_line(value)}\n" for name, value in states.items())
        # The name of an abstract socket begins with a zero, which the variable shows as @.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode(errors="replace"), address)


def _watchdog_seconds(environment: Mapping[str, str], process_id: int) -> float | None:
    """The time of WATCHDOG_USEC, if it is meant for this process, as sd_watchdog_enabled(3) decides that."""
    text = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(process_id)) != str(process_id):
        return None
    is_number = text.isascii() and text.isdigit() and int(text) > 0
    return int(text) / _US_PER_SECOND if is_number else None


def _one_line(value: object) -> str:
    return " ".join(str(value).split())

"""The HAProxy that a fleet configures: makes it read its file, and checks that it has."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

from fleet.files.haproxy import fingerprint_of
from serving.base.errors import FailedPrecondition

ANSWER_SECONDS = 0.5
"""The longest wait for HAProxy's statistics, which it answers in less than a millisecond."""

LOOK_COUNT = 5
"""The number of looks after a reload before it is repeated.

There is one look at each poll of the servers.
"""

_LOOK_COUNT_MAX = 60

_log = structlog.get_logger(__name__)


def reload_haproxy(pid_file: str) -> None:
    """Makes HAProxy's master read its configuration. Raises OSError, and ValueError for another file.

    The new worker takes the listeners of the old one, which ends its requests first.
    """
    pid = int(Path(pid_file).read_text().strip())
    # 0 and negative numbers are groups of processes, and 1 is the first process of all.
    if pid <= 1:
        raise ValueError(f"{pid_file}: {pid} is not the number of a process of HAProxy")
    # The file of a process that has ended may name any other process by now.
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    if not name.startswith("haproxy"):
        raise ValueError(f"{pid_file}: process {pid} is {name!r}, not haproxy")
    os.kill(pid, signal.SIGUSR2)


def running_fingerprint(stats_socket: str) -> str:
    """The fingerprint of the text that HAProxy runs with; "" for another text. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(stats_socket)
        connection.sendall(b"show info\n")
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return fingerprint_of(answer.decode(errors="replace"))


class HaproxyProcess:
    """Reloads HAProxy until it runs with the last text. `follow` is called again and again by one thread."""

    def __init__(
        self,
        pid_file: str,
        stats_socket: str,
        reload: Callable[[str], None] = reload_haproxy,
        running: Callable[[str], str] = running_fingerprint,
    ) -> None:
        self._pid_file = pid_file
        self._stats_socket = stats_socket
        self._reload = reload
        self._running = running
        # The fingerprint of the text for which HAProxy was reloaded last, the looks that are left before
        # the next reload, and the looks of a whole wait.
        self._asked = ""
        self._looks_left = 0
        self._look_count = LOOK_COUNT
        # The text that HAProxy has not taken in time.
        self._refused = ""

    def follow(self, text: str) -> bool:
        """Reloads HAProxy if that has not been done for the text.

        Returns True once it runs with the text.

        Raises OSError and ValueError if it cannot be reloaded, and FailedPrecondition if it has not taken
        the text in time. If its socket cannot be read, it is reloaded only once.
        """
        wanted = fingerprint_of(text)
        unreadable = ""
        try:
            if self._running(self._stats_socket) == wanted:
                if self._asked == wanted:
                    _log.info("haproxy_reloaded", pid_file=self._pid_file)
                return True
        except OSError as error:
            unreadable = str(error)
        if self._asked != wanted:
            self._look_count = LOOK_COUNT
        elif self._looks_left > 0:
            self._looks_left -= 1
            self._check_taken(wanted)
            return False
        elif unreadable:
            _log.warning("haproxy_not_seen_to_reload", socket=self._stats_socket, reason=unreadable)
            return True
        is_repeated = self._asked == wanted
        self._reload(self._pid_file)
        self._asked, self._looks_left = wanted, self._look_count
        self._look_count = min(2 * self._look_count, _LOOK_COUNT_MAX)
        self._refused = wanted if is_repeated else ""
        self._check_taken(wanted)
        return False

    def _check_taken(self, wanted: str) -> None:
        """Raises FailedPrecondition while HAProxy still has not taken a text for which it was reloaded."""
        if self._refused == wanted:
            raise FailedPrecondition(
                "HAProxy still runs with an earlier configuration, and is reloaded again: "
                "haproxy -c -f FILE checks this one"
            )

"""Makes the running HAProxy read the configuration that a fleet has written, and checks that it has."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

from fleet.files.haproxy import fingerprint_of
from serving.base.errors import FailedPrecondition

ANSWER_SECONDS = 0.5
"""The longest wait for HAProxy's statistics, which it sends in less than a millisecond."""

LOOK_COUNT = 5
"""A reload is repeated if HAProxy has not read the file after this many looks. Each `follow` is a look.

The number doubles with each repetition, up to _LOOK_COUNT_MAX.
"""

_LOOK_COUNT_MAX = 60

_log = structlog.get_logger(__name__)


def reload_haproxy(pid_file: str) -> None:
    """Makes HAProxy's master read its configuration. Raises OSError, and ValueError for a wrong pid.

    The master starts a new worker, which takes the listeners. The old worker ends after its last request.
    """
    pid = int(Path(pid_file).read_text().strip())
    # `kill` takes 0 and negative numbers for groups of processes, and 1 is the machine's init process.
    if pid <= 1:
        raise ValueError(f"{pid_file}: {pid} is not the number of a process of HAProxy")
    # If HAProxy has ended, another process may have its number by now.
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    if not name.startswith("haproxy"):
        raise ValueError(f"{pid_file}: process {pid} is {name!r}, not haproxy")
    os.kill(pid, signal.SIGUSR2)


def running_fingerprint(stats_socket: str) -> str:
    """The fingerprint of HAProxy's present configuration; "" if Millpond has not written it. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(stats_socket)
        connection.sendall(b"show info\n")
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return fingerprint_of(answer.decode(errors="replace"))


class HaproxyProcess:
    """Reloads HAProxy until it has read the last text. One thread calls `follow` again and again."""

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
        # The fingerprint of the text for which HAProxy was reloaded last.
        self._asked = ""
        # The looks that are left before the next reload, and the looks between that reload and a further one.
        self._looks_left = 0
        self._look_count = LOOK_COUNT
        # The fingerprint of the text that HAProxy has not read in time; "" if it has read each text.
        self._refused = ""

    def follow(self, text: str) -> bool:
        """Reloads HAProxy once for a new text. Returns True once HAProxy has read the text.

        If HAProxy's socket cannot be read, reloads HAProxy only once, and returns True at the last look. Raises
        OSError and ValueError if HAProxy cannot be reloaded. Raises FailedPrecondition if HAProxy has not read
        the text in time.
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
        """Raises FailedPrecondition if HAProxy had not read this text in time after an earlier reload."""
        if self._refused == wanted:
            raise FailedPrecondition(
                "HAProxy still runs with an earlier configuration, and is reloaded again: "
                "haproxy -c -f FILE checks this one"
            )

"""The supervisor's loop: starts the server, passes signals on, and starts it again after a crash."""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import DataLoss
from serving.base.service_manager import ServiceManager
from serving.core.blocked_versions import BlockedVersion
from serving.supervisor.block_store import BlockStore
from serving.supervisor.child_process import ChildProcess
from serving.supervisor.crash_page import CrashPage, MarkedVersion
from serving.supervisor.events import STOP_SIGNALS, Events
from serving.supervisor.restarts import Death, Exit, Restart, Restarts

PULSE_SECONDS = 1.0
"""While the supervisor waits before a restart, it sends WATCHDOG=1 this often.

The limit of the service manager is at least twice as long.
"""

STANDBY_SECONDS = 3.0
"""The standby is started this long after its server, because its start takes a second of one core.

Most servers have loaded their models by then.
"""

Log = Callable[[str, str, str, Mapping[str, object]], None]
"""Logs an event: its level, its name, a message for people, and its fields."""


@dataclass(frozen=True)
class _Life:
    """A process of a server, and the crash page that it marks."""

    child: ChildProcess
    page: CrashPage


class Supervisor:
    """Runs one server after the other until one ends for good. One thread.

    While a server runs, a standby waits: a second process that has loaded a server's libraries, but has read
    no flag and no file. After a crash the standby serves a second sooner than a new process would.
    """

    def __init__(
        self,
        *,
        start_child: Callable[[CrashPage, int | None], ChildProcess],
        make_page: Callable[[], CrashPage],
        events: Events,
        restarts: Restarts,
        blocks: BlockStore,
        log: Log,
        service_manager: ServiceManager,
        clock: Clock,
    ) -> None:
        """`start_child` gets the crash page and the number of restarts; None as number makes it a standby."""
        self._start_child = start_child
        self._make_page = make_page
        self._events = events
        self._restarts = restarts
        self._blocks = blocks
        self._log = log
        self._service_manager = service_manager
        self._clock = clock
        self._stop_signal = 0
        self._restart_count = 0
        self._standby: _Life | None = None

    def run(self) -> int:
        """Runs servers, and returns the exit status of the last one."""
        try:
            return self._run()
        finally:
            if self._standby is not None:
                self._standby.child.discard()
                self._standby.page.close()

    def _run(self) -> int:
        while True:
            death = self._live()
            decision = self._decide(death)
            if isinstance(decision, Exit):
                return decision.status
            self._restart_count += 1
            if not self._pause(decision.delay_seconds):
                return 128 + death.signal if death.signal else death.status

    def _live(self) -> Death:
        """Starts a server, waits until it ends, and returns how it ended."""
        life = self._next_life()
        try:
            self._service_manager.notify(WATCHDOG=1)
            status = self._wait_for_end(life.child)
            marks = life.page.read()
        finally:
            life.page.close()
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return Death(
            signal=number,
            status=0 if number else os.WEXITSTATUS(status),
            suspects=marks.suspects,
            has_begun_loads=marks.has_begun_loads,
            is_stop_requested=bool(self._stop_signal),
        )

    def _next_life(self) -> _Life:
        standby, self._standby = self._standby, None
        if standby is not None:
            if standby.child.release(self._restart_count):
                return standby
            standby.page.close()
        return self._start(self._restart_count)

    def _start(self, restart_count: int | None) -> _Life:
        page = self._make_page()
        try:
            return _Life(self._start_child(page, restart_count), page)
        except OSError:
            page.close()
            raise

    def _wait_for_end(self, child: ChildProcess) -> int:
        while True:
            numbers = self._events.wait(STANDBY_SECONDS if self._standby is None else None)
            if not numbers and self._standby is None:
                # If the system cannot start another process, the server runs on without a standby.
                with suppress(OSError):
                    self._standby = self._start(None)
            for number in numbers:
                status = child.wait_status()
                if status is not None:
                    self._note_stop(number)
                    return status
                if self._note_stop(number):
                    child.send_signal(number)

    def _note_stop(self, number: int) -> bool:
        if number not in STOP_SIGNALS:
            return False
        self._stop_signal = number
        return True

    def _decide(self, death: Death) -> Exit | Restart:
        try:
            blocked = self._blocks.read()
        except (DataLoss, OSError):
            # The next server puts the damaged file aside, and logs that.
            blocked = {}
        decision = self._restarts.decide(death, blocked)
        if isinstance(decision, Exit):
            if death.signal:
                self._log("error", "server_died", f"the server ended for good: {death.cause}", {})
            return decision
        if decision.blocks:
            refusal = self._blocks.add(decision.blocks)
            if refusal:
                decision = Restart(delay_seconds=self._restarts.delay_seconds())
                self._log("error", "blocked_versions_not_kept", refusal, {"reason": refusal})
            for marked, block in decision.blocks.items():
                self._log_block(marked, block)
        self._log_restart(death, decision)
        return decision

    def _log_block(self, marked: MarkedVersion, block: BlockedVersion) -> None:
        self._log(
            "error",
            "version_crashed",
            f"{marked} is blocked: {block.reason}; millpond allow unblocks it",
            {"model": marked.name, "version": marked.version, "reason": block.reason},
        )

    def _log_restart(self, death: Death, decision: Restart) -> None:
        wait = f" in {decision.delay_seconds:g} s" if decision.delay_seconds else ""
        message = f"the server starts again{wait}: {death.cause}"
        fields = {
            "cause": death.cause,
            "signal": signal.Signals(death.signal).name if death.signal else "",
            "blocked": [str(marked) for marked in decision.blocks],
            "delay_seconds": decision.delay_seconds,
            "restart_count": self._restart_count + 1,
        }
        self._log("error", "server_restarts", message, fields)
        self._service_manager.notify(STATUS=message)

    def _pause(self, seconds: float) -> bool:
        """Waits before a restart. Returns False if a signal asks to stop meanwhile."""
        end_ns = self._clock.now_ns() + round(seconds * NS_PER_SECOND)
        while (remaining_ns := end_ns - self._clock.now_ns()) > 0:
            self._service_manager.notify(WATCHDOG=1)
            for number in self._events.wait(min(PULSE_SECONDS, remaining_ns / NS_PER_SECOND)):
                self._note_stop(number)
            if self._stop_signal:
                return False
        return True

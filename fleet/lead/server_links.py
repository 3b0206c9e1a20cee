"""The calls of a coordinator to its servers: reports and grants, over the servers' admin listeners.

A server that hangs takes a thread for the deadline of its call. It must not keep the coordinator from the
other servers, because these would then count as lost, or miss a rollback. So:

- Reports and grants have threads of their own.
- A server is *prompt* until a call to it fails or takes longer than PROMPT_SECONDS, which is the
  deadline of that call. From then on it is called with the whole deadline, from threads of their own
  for such servers, until it answers promptly again.
- A server that does not answer is asked for a report less and less often.

Each server that begins to hang takes a thread for prompt servers once, for PROMPT_SECONDS. So 16 threads
cope with 64 such servers a second.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from fleet.lead.observer import FleetObserver
from fleet.rollout.figures import EDGES_NS
from fleet.rollout.report_document import server_report
from fleet.rollout.reports import Grant, ServerReport
from serving.base.clock import Clock, seconds_since
from serving.base.errors import MillpondError, StatusCode

CALL_SECONDS = 2.0
"""The deadline of a call. A server answers in milliseconds; if it takes longer, it is asked again later."""

PROMPT_SECONDS = 0.25
"""The deadline of a call to a server that has answered promptly before."""

WAIT_ROUNDS_MAX = 4
"""A server that does not answer is asked at least in every fourth round, so that its return is seen soon.
"""

_REPORT = "report"

_log = structlog.get_logger(__name__)


class ServerClient(Protocol):
    """The part of `Client` that a coordinator uses."""

    def fleet_report(
        self, latency_edges_ns: Sequence[int], *, timeout_seconds: float = 10
    ) -> dict[str, Any]: ...
    def grant(
        self, name: str, version: int | None, order: int, *, timeout_seconds: float = 10
    ) -> int | None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _CallKey:
    """A kind of call to a server: a grant of a version of `model`, or with "" a request for its report."""

    server: str
    model: str = ""

    @property
    def kind(self) -> str:
        return "grant" if self.model else _REPORT


@dataclass(frozen=True, slots=True)
class _Delay:
    """A call that has failed: how many times without a success between, and in which round it is due again."""

    failed_count: int = 0
    due_round: int = 0


@dataclass(frozen=True, slots=True)
class _Link:
    """The client of one target of a server."""

    target: str
    client: ServerClient


class ServerLinks:
    """Calls servers from pools of threads (see above). A server gets one call of each kind at a time.

    A failure is logged once, until a call of its kind succeeds. The coordinator repeats the call.
    """

    def __init__(
        self,
        *,
        connect: Callable[[str], ServerClient],
        receive: Callable[[str, str, ServerReport], None],
        thread_count: int,
        clock: Clock,
        may_send: Callable[[], bool],
        expects_end: Callable[[str], bool],
        observer: FleetObserver | None = None,
    ) -> None:
        """Has no server before `set_targets`. Connects with the first call to each.

        `receive` takes the name of a server, the target that was asked, and its report. `expects_end`
        returns True for a server that is being ended: no warning is logged if it does not answer.

        There are four pools of `thread_count` threads, for reports and grants of prompt and of other
        servers. Threads start when they are needed. A grant is dropped if `may_send` returns False when its
        call is due.
        """
        self._targets: Mapping[str, str] = {}
        self._may_send = may_send
        self._connect = connect
        self._receive = receive
        self._expects_end = expects_end
        self._observer = observer or FleetObserver()
        self._clock = clock
        self._prompt = _pools("fleet", thread_count)
        self._patient = _pools("fleet-slow", thread_count)
        self._round = 0
        # Guards the members below.
        self._lock = threading.Lock()
        self._links: dict[str, _Link] = {}
        self._queued: set[tuple[_CallKey, bool]] = set()
        self._running: set[_CallKey] = set()
        # The grants that wait for a thread. A later grant takes the place of an earlier one.
        self._waiting: dict[_CallKey, Grant] = {}
        self._delays: dict[_CallKey, _Delay] = {}
        self._ignoring: set[_CallKey] = set()

    def set_targets(self, targets: Mapping[str, str]) -> None:
        """Sets the admin listeners by server.

        Closes the connections to servers that have left, and drops the grants that wait for them, because
        another server may have the name now.
        """
        with self._lock:
            moved = {name for name, target in self._targets.items() if targets.get(name) != target}
            self._targets = dict(targets)
            gone = [name for name, link in self._links.items() if targets.get(name) != link.target]
            clients = [self._links.pop(name).client for name in gone]
            for key in [key for key in self._delays if key.server in moved]:
                del self._delays[key]
            for key in [key for key in self._waiting if key.server in moved]:
                del self._waiting[key]
            self._ignoring = {key for key in self._ignoring if key.server not in moved}
        for client in clients:
            client.close()

    def poll(self) -> None:
        """Asks each server for a report, except those that still owe one, or have failed lately."""
        self._round += 1
        for name in self._targets:
            key = _CallKey(name)
            delay = self._delays.get(key)
            if delay is None or delay.due_round <= self._round:
                self._submit(key)

    def send(self, grants: Sequence[Grant]) -> None:
        """Sends grants. If a server still takes the last grant, the next decision sends it again."""
        for grant in grants:
            key = _CallKey(grant.server, grant.model)
            with self._lock:
                if key in self._running:
                    continue
                self._waiting[key] = grant
            self._submit(key)

    def stop(self) -> None:
        """Ends the calls. A call that is under way ends within its deadline."""
        pools = [*self._prompt.values(), *self._patient.values()]
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in pools:
            pool.shutdown()
        for link in self._links.values():
            link.client.close()

    def _submit(self, key: _CallKey) -> None:
        with self._lock:
            # A server that does not report is not asked for a grant by the prompt threads either.
            is_patient = key in self._delays or _CallKey(key.server) in self._delays
            if key in self._running or (key, is_patient) in self._queued:
                return
            self._queued.add((key, is_patient))
        pools = self._patient if is_patient else self._prompt
        pools[key.kind].submit(self._run, key, is_patient)

    def _run(self, key: _CallKey, is_patient: bool) -> None:
        with self._lock:
            self._queued.discard((key, is_patient))
            grant = self._waiting.pop(key, None)
            if key in self._running or (key.model and grant is None):
                # A thread of the other pool has taken it.
                return
            self._running.add(key)
        is_ok = False
        try:
            is_ok = self._called(key, grant, is_patient=is_patient)
        finally:
            self._observer.called(key.kind, is_ok=is_ok)
            with self._lock:
                self._running.discard(key)

    def _called(self, key: _CallKey, grant: Grant | None, *, is_patient: bool) -> bool:
        """Calls the server, and returns True if the call succeeded."""
        started_ns = self._clock.now_ns()
        timeout_seconds = CALL_SECONDS if is_patient else PROMPT_SECONDS
        link = None
        try:
            link = self._link(key.server)
            if link is not None and grant is not None:
                self._grant(link, key, grant, timeout_seconds)
            elif link is not None:
                self._report(link, key.server, timeout_seconds)
        except (MillpondError, OSError) as error:
            seconds = seconds_since(self._clock, started_ns)
            if not is_patient and (_is_deadline(error) or seconds >= PROMPT_SECONDS):
                # Not counted as a failure yet: it is called again, with the whole deadline.
                self._set_delay(key, _Delay())
            elif self._note_failure(key, link):
                log = _log.info if self._expects_end(key.server) else _log.warning
                log("fleet_server_unreachable", server=key.server, call=key.kind, reason=str(error))
            return False
        except Exception:  # noqa: BLE001 (a bug; the other servers are still called)
            if self._note_failure(key, link):
                _log.exception("fleet_call_failed", server=key.server, call=key.kind)
            return False
        is_prompt = seconds_since(self._clock, started_ns) <= PROMPT_SECONDS
        self._set_delay(key, None if is_prompt else _Delay())
        return True

    def _report(self, link: _Link, name: str, timeout_seconds: float) -> None:
        document = link.client.fleet_report(EDGES_NS, timeout_seconds=timeout_seconds)
        self._receive(name, link.target, server_report(document))

    def _grant(self, link: _Link, key: _CallKey, grant: Grant, timeout_seconds: float) -> None:
        # Asked at the last moment, because the call may have waited for a thread.
        if not self._may_send():
            return
        granted = link.client.grant(
            grant.model, grant.version, grant.order, timeout_seconds=timeout_seconds
        )
        self._note_granted(key, grant, granted)
        # Reported at once, so that the next decision knows that the grant was taken.
        self._report(link, key.server, timeout_seconds)

    def _note_granted(self, key: _CallKey, grant: Grant, granted: int | None) -> None:
        """Logs once that a server goes by another grant than the one that it was sent."""
        with self._lock:
            is_logged = key in self._ignoring
            if granted == grant.version:
                self._ignoring.discard(key)
            else:
                self._ignoring.add(key)
        if granted != grant.version and not is_logged:
            _log.warning(
                "fleet_grant_ignored",
                server=grant.server,
                model=grant.model,
                version=grant.version,
                order=grant.order,
                granted=granted,
                reason="the server has taken a grant with a higher order: of another coordinator, "
                "or of this one before its state was lost (keep state_directory or the ConfigMap)",
            )

    def _link(self, name: str) -> _Link | None:
        """Connects to a server if that has not been done; None if the server has left the fleet."""
        with self._lock:
            target = self._targets.get(name)
            if target is None:
                return None
            if name not in self._links:
                self._links[name] = _Link(target, self._connect(target))
            return self._links[name]

    def _set_delay(self, key: _CallKey, delay: _Delay | None) -> None:
        with self._lock:
            if delay is not None and key.server in self._targets:
                self._delays[key] = delay
            else:
                self._delays.pop(key, None)

    def _note_failure(self, key: _CallKey, link: _Link | None) -> bool:
        """Sets when the call is due again. Returns True for its first failure."""
        with self._lock:
            # A server that has left the fleet: its call ended with its connection.
            if link is not None and self._links.get(key.server) is not link:
                return False
            failed_count = self._delays.get(key, _Delay()).failed_count + 1
            rounds = min(2 ** (failed_count - 1), WAIT_ROUNDS_MAX)
            self._delays[key] = _Delay(min(failed_count, WAIT_ROUNDS_MAX), self._round + rounds)
        return failed_count == 1


def _pools(name: str, thread_count: int) -> Mapping[str, ThreadPoolExecutor]:
    return {
        kind: ThreadPoolExecutor(thread_count, thread_name_prefix=f"{name}-{kind}")
        for kind in (_REPORT, "grant")
    }


def _is_deadline(error: Exception) -> bool:
    return isinstance(error, MillpondError) and error.code is StatusCode.DEADLINE_EXCEEDED

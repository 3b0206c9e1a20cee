"""The calls of a coordinator to its servers: reports and grants, over the servers' admin listeners.

A call to a server that hangs takes a thread until the deadline of the call. Such servers must not keep the
coordinator from calling the other servers, because the other servers would then count as lost, or miss a
rollback. So:

- Reports and grants have separate threads.
- A server is *prompt* until a call to it fails or takes longer than PROMPT_SECONDS, the deadline of calls to
  prompt servers. From then on, other threads call the server with the longer deadline CALL_SECONDS, until it
  answers within PROMPT_SECONDS again.
- A server that does not answer is asked for a report less and less often.

So a server that begins to hang takes a thread for prompt servers only once, for PROMPT_SECONDS. With 16
threads, 64 servers may begin to hang each second before the prompt servers have to wait.
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
"""The deadline of a call to a server that is not prompt. A healthy server answers in milliseconds."""

PROMPT_SECONDS = 0.25
"""The deadline of a call to a prompt server."""

WAIT_ROUNDS_MAX = 4
"""A server that does not answer is still asked in every fourth poll, so that its return is seen soon."""

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
    """A kind of call to a server: a grant for `model`, or a request for the server's report if `model` is ""."""

    server: str
    model: str = ""

    @property
    def kind(self) -> str:
        return "grant" if self.model else _REPORT


@dataclass(frozen=True, slots=True)
class _Delay:
    """Delays a kind of call to a server that is not prompt."""

    # The number of calls that have failed since the last success.
    failed_count: int = 0
    # The poll in which the server is asked again. The polls are numbered from 1.
    due_round: int = 0


@dataclass(frozen=True, slots=True)
class _Link:
    """The client for a server, and the target to which it connects."""

    target: str
    client: ServerClient


class ServerLinks:
    """Calls servers from pools of threads (see above). A server gets one call of each kind at a time.

    A failure is logged once. Later failures of that kind of call are logged only after a success. A failed call
    is not repeated here, because the coordinator asks for it again.
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
        """Has no server before `set_targets`. Connects to a server at the first call to it.

        `receive` gets the name of a server, the target that was called, and the report. `expects_end`
        returns True for a server that is being ended: if it does not answer, no warning is logged.
        `may_send` is asked right before a grant is sent; if it returns False, the grant is dropped.

        There are four pools of at most `thread_count` threads each: for reports and for grants, of prompt
        servers and of other servers.
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
        # Guards all members below.
        self._lock = threading.Lock()
        self._links: dict[str, _Link] = {}
        # The calls that wait for a thread. The second value is True for the threads of servers that are not
        # prompt.
        self._queued: set[tuple[_CallKey, bool]] = set()
        # The calls that a thread makes now.
        self._running: set[_CallKey] = set()
        # The grants that wait for a thread. A later grant for the same server and model replaces an earlier
        # one.
        self._waiting: dict[_CallKey, Grant] = {}
        # The delay of each kind of call to a server that is not prompt. A prompt server has none here.
        self._delays: dict[_CallKey, _Delay] = {}
        # The grants that a server has ignored, so that this is logged once.
        self._ignoring: set[_CallKey] = set()

    def set_targets(self, targets: Mapping[str, str]) -> None:
        """Sets the servers: the target of each server's admin listener, by name.

        Closes the connections to targets that have left, and drops the grants that wait for them, because
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
        """Asks each server for a report, except servers that still owe one or whose delay is not over."""
        self._round += 1
        for name in self._targets:
            key = _CallKey(name)
            delay = self._delays.get(key)
            if delay is None or delay.due_round <= self._round:
                self._submit(key)

    def send(self, grants: Sequence[Grant]) -> None:
        """Sends grants. Skips a grant while the last one for that server and model is being sent.

        The coordinator's next decision asks for a skipped grant again.
        """
        for grant in grants:
            key = _CallKey(grant.server, grant.model)
            with self._lock:
                if key in self._running:
                    continue
                self._waiting[key] = grant
            self._submit(key)

    def stop(self) -> None:
        """Drops calls that wait, waits for calls under way until their deadlines, and closes all clients."""
        pools = [*self._prompt.values(), *self._patient.values()]
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in pools:
            pool.shutdown()
        for link in self._links.values():
            link.client.close()

    def _submit(self, key: _CallKey) -> None:
        with self._lock:
            # A server must report in time to count as prompt for grants too.
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
                # A thread of the other pool makes this call, or has made it.
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
                # This is no failure yet: the server is called again with the longer deadline.
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
        # Asked at the last moment, because this term may have ended while the call waited for a thread.
        if not self._may_send():
            return
        granted = link.client.grant(
            grant.model, grant.version, grant.order, timeout_seconds=timeout_seconds
        )
        self._note_granted(key, grant, granted)
        # The report is fetched at once, so that the next decision knows that the server has the grant.
        self._report(link, key.server, timeout_seconds)

    def _note_granted(self, key: _CallKey, grant: Grant, granted: int | None) -> None:
        """Logs once that a server has ignored this grant, and keeps an earlier one."""
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
        """The link to a server; None if the server has left the fleet. The first call makes the link."""
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
        """Delays the next call of this kind. Returns True for the first failure since a success."""
        with self._lock:
            # The server has left the fleet, and its call failed because the connection was closed.
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

"""The calls of a coordinator to its servers: reports and grants, over the servers' admin listeners."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import structlog

from serving.base.errors import MillpondError
from serving.fleet.figures import EDGES_NS
from serving.fleet.observer import FleetObserver
from serving.fleet.report_document import server_report
from serving.fleet.reports import Grant, ServerReport

CALL_SECONDS = 2.0
"""The deadline of a call. A server answers in milliseconds; one that takes longer is asked again later."""

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


class ServerLinks:
    """Calls servers from a pool of threads. A server gets one call of each kind at a time.

    A call that fails is logged once, until one of its kind succeeds: the coordinator repeats it.
    """

    def __init__(
        self,
        *,
        connect: Callable[[str], ServerClient],
        receive: Callable[[str, ServerReport], None],
        thread_count: int,
        may_send: Callable[[], bool] = lambda: True,
        observer: FleetObserver | None = None,
    ) -> None:
        """Has no server before `set_targets`. Connects with the first call to each.

        A grant is dropped if `may_send` returns False when its call is due.
        """
        self._targets: Mapping[str, str] = {}
        self._may_send = may_send
        self._connect = connect
        self._receive = receive
        self._observer = observer or FleetObserver()
        self._executor = ThreadPoolExecutor(thread_count, thread_name_prefix="fleet-call")
        # Guards the members below.
        self._lock = threading.Lock()
        self._clients: dict[str, tuple[str, ServerClient]] = {}
        self._busy: set[tuple[str, str]] = set()
        self._failing: set[tuple[str, str]] = set()

    def set_targets(self, targets: Mapping[str, str]) -> None:
        """Sets the admin listeners by server. Closes connections to servers that are not there any more."""
        with self._lock:
            self._targets = dict(targets)
            gone = [
                name for name, (target, _) in self._clients.items() if targets.get(name) != target
            ]
            clients = [self._clients.pop(name)[1] for name in gone]
            self._failing = {call for call in self._failing if call[0] in targets}
        for client in clients:
            client.close()

    def poll(self) -> None:
        """Asks each server for a report, except those that have not answered the last time."""
        for name in self._targets:
            self._submit(name, "report", self._report)

    def send(self, grants: Sequence[Grant]) -> None:
        """Sends grants. One to a server that still takes the last grant is left to the next decision."""
        for grant in grants:
            self._submit(grant.server, f"grant {grant.model}", self._grant, grant)

    def stop(self) -> None:
        """Ends the calls, those under way within their deadline."""
        self._executor.shutdown(cancel_futures=True)
        for _, client in self._clients.values():
            client.close()

    def _submit(self, name: str, kind: str, call: Callable[..., None], *arguments: object) -> None:
        with self._lock:
            if (name, kind) in self._busy:
                return
            self._busy.add((name, kind))
        self._executor.submit(self._run, name, kind, call, *arguments)

    def _run(self, name: str, kind: str, call: Callable[..., None], *arguments: object) -> None:
        is_ok = False
        client = None
        try:
            client = self._client(name)
            if client is not None:
                call(client, name, *arguments)
            is_ok = True
        except (MillpondError, OSError) as error:
            self._note_failure(name, kind, client, str(error))
        except Exception:  # noqa: BLE001 (a bug; the other servers are still called)
            _log.exception("fleet_call_failed", server=name, call=kind)
        else:
            with self._lock:
                self._failing.discard((name, kind))
        finally:
            # A kind of a grant also names its model.
            self._observer.called(kind.partition(" ")[0], is_ok=is_ok)
            with self._lock:
                self._busy.discard((name, kind))

    def _report(self, client: ServerClient, name: str) -> None:
        document = client.fleet_report(EDGES_NS, timeout_seconds=CALL_SECONDS)
        self._receive(name, server_report(document))

    def _grant(self, client: ServerClient, name: str, grant: Grant) -> None:
        # At the last moment: the call may have waited for a thread.
        if not self._may_send():
            return
        client.grant(grant.model, grant.version, grant.order, timeout_seconds=CALL_SECONDS)
        # At once, so that the next decision knows that the grant was taken.
        self._report(client, name)

    def _client(self, name: str) -> ServerClient | None:
        """Returns the client of a server; None if the server has left the fleet."""
        with self._lock:
            target = self._targets.get(name)
            if target is None:
                return None
            if name not in self._clients:
                self._clients[name] = target, self._connect(target)
            return self._clients[name][1]

    def _note_failure(self, name: str, kind: str, client: ServerClient | None, reason: str) -> None:
        with self._lock:
            known = self._clients.get(name)
            # The call of a server that has left the fleet ends with its connection.
            is_gone = client is not None and (known is None or known[1] is not client)
            is_logged = is_gone or (name, kind) in self._failing
            if not is_gone:
                self._failing.add((name, kind))
        if not is_logged:
            _log.warning("fleet_server_unreachable", server=name, call=kind, reason=reason)

"""The server of gRPC and HTTP, and its rare calls."""

import os
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.data_plane.requests import GrpcServerOptions, RareCall
from tests.unit.fakes.tracing import FakeTraceContext


class FakeRareCall:
    """A call and its answer."""

    def __init__(
        self,
        method: str,
        request: bytes = b"",
        remaining_seconds: float | None = None,
        trace_context: "FakeTraceContext | None" = None,
    ) -> None:
        self.method = method
        self.request = request
        self.remaining_seconds = remaining_seconds
        self.trace_context = trace_context
        self.peer = "ipv4:127.0.0.1:50000"
        self.client_names: tuple[str, ...] = ()
        self.is_forwarded = False
        self.is_wanted = True
        self.http_method = ""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.http_answers: list[tuple[int, dict[bytes, bytes], bytes]] = []
        self.answers: list[bytes | tuple[int, str]] = []
        self.is_answered = threading.Event()

    def reply(self, response: bytes) -> None:
        self.answers.append(response)
        self.is_answered.set()

    def reply_http(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.http_answers.append((status, dict(headers), body))
        self.is_answered.set()

    def fail(self, code: int, message: str) -> None:
        self.answers.append((code, message))
        self.is_answered.set()


class FakeGrpcServer:
    """Records its calls without listening. `start` raises `start_error`."""

    def __init__(self, start_error: Exception | None = None) -> None:
        self.port = 0
        self.connection_count = 0
        self.limit_counts: dict[str, int] = {}
        self.health: dict[str, bool] = {}
        self.log: list[str] = []
        self.pins: list[bool] = []
        self.http_documents: dict[str, tuple[int, bytes]] = {}
        # The items and the tail of each list.
        self._lists: dict[str, tuple[list[bytes], bytes]] = {}
        # The items of each `change_http_list`, and the documents that a reader could see after any change.
        self.list_changes: list[tuple[str, dict[int, bytes]]] = []
        self.seen_lists: list[tuple[int, bytes]] = []
        self.http_calls: dict[bool, deque[RareCall]] = {False: deque(), True: deque()}
        self.is_http_shut_down = False
        self.options = GrpcServerOptions(addresses=[])
        self.finishes_in_time = True
        self._start_error = start_error
        self.http_port = 0
        self.http_addresses: list[str] = []
        self._listeners: list[socket.socket] = []
        self._calls: deque[RareCall] = deque()
        self._changed = threading.Condition()
        self._is_shut_down = False

    def start(self) -> None:
        if self._start_error is not None:
            raise self._start_error
        self.port = 12345
        self.log.append("start")
        for address in self._unix_addresses():
            self._listeners.append(socket.socket(socket.AF_UNIX))
            self._listeners[-1].bind(address.removeprefix("unix:"))
            self._listeners[-1].listen()

    def _unix_addresses(self) -> list[str]:
        addresses = list(self.options.addresses)
        return addresses if all(item.startswith("unix:") for item in addresses) else []

    def call(self, call: RareCall) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def take_rare_call(self, timeout_seconds: float) -> RareCall | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_shut_down, timeout_seconds)
            if self._calls:
                return self._calls.popleft()
            if self._is_shut_down:
                raise StopIteration
            return None

    def set_health(self, service: str, is_serving: bool) -> None:
        self.health[service] = is_serving

    def remove_health(self, service: str) -> None:
        del self.health[service]

    def start_http(self, addresses: Sequence[str]) -> None:
        self.http_addresses = list(addresses)
        self.log.append("start_http")

    def take_http_call(self, is_probe: bool, timeout_seconds: float) -> RareCall | None:
        calls = self.http_calls[is_probe]
        with self._changed:
            self._changed.wait_for(lambda: calls or self.is_http_shut_down, timeout_seconds)
            if calls:
                return calls.popleft()
            if self.is_http_shut_down:
                raise StopIteration
            return None

    def call_http(self, call: RareCall, *, is_probe: bool = False) -> None:
        with self._changed:
            self.http_calls[is_probe].append(call)
            self._changed.notify_all()

    def set_http_document(self, path: str, status: int, body: bytes) -> None:
        self.http_documents[path] = status, body

    def remove_http_document(self, path: str) -> None:
        del self.http_documents[path]

    def set_http_list(
        self, path: str, status: int, head: bytes, items: list[bytes], tail: bytes
    ) -> None:
        self._lists[path] = list(items), tail
        self._join(path, status, head)

    def change_http_list(
        self, path: str, status: int, head: bytes, items: dict[int, bytes]
    ) -> None:
        self.list_changes.append((path, dict(items)))
        for number, item in items.items():
            self._lists[path][0][number] = item
        self._join(path, status, head)

    def _join(self, path: str, status: int, head: bytes) -> None:
        items, tail = self._lists[path]
        self.http_documents[path] = status, head + b",".join(items) + tail
        self.seen_lists.append(self.http_documents[path])

    def ask_http_to_go(self) -> None:
        self.log.append("ask_http_to_go")

    def shutdown_http(self, drain_seconds: float) -> bool:
        self.log.append(f"shutdown_http {drain_seconds:g}")
        for address in self.http_addresses:
            kind, _, number = address.partition(":")
            if kind != "unix":
                os.close(int(number))
        self.http_addresses.clear()
        with self._changed:
            self.is_http_shut_down = True
            self._changed.notify_all()
        return self.finishes_in_time

    def pin_request_threads(self, is_pinned: bool) -> bool:
        self.pins.append(is_pinned)
        return True

    def shutdown(self, drain_seconds: float) -> bool:
        self.log.append(f"shutdown {drain_seconds:g}")
        for listener in self._listeners:
            listener.close()
        with self._changed:
            self._is_shut_down = True
            self._changed.notify_all()
        return self.finishes_in_time


@dataclass
class FakeServerCertificates:
    """Records the first certificates, and each `replace` after them."""

    first: Mapping[str, object]
    replaced: list[Mapping[str, str]] = field(default_factory=list)

    def replace(self, **certificates: str) -> None:
        self.replaced.append(certificates)

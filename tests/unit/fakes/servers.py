"""The gRPC server, its rare calls, and the workers of REST."""

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.data_plane.requests import GrpcServerOptions, RareCall
from tests.unit.fakes.errors import StatusError
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
        self.answers: list[bytes | tuple[int, str]] = []
        self.is_answered = threading.Event()

    def reply(self, response: bytes) -> None:
        self.answers.append(response)
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
        self.batch_partners: list[object] = []
        self.options = GrpcServerOptions(addresses=[])
        self.finishes_in_time = True
        self._start_error = start_error
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

    def share_batches_with(self, others: object) -> None:
        self.batch_partners.append(others)

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


@dataclass(frozen=True)
class FakeEndedRequest:
    """A fake of `_native.EndedRestRequest`."""

    id: int
    code: int = 0
    message: str = ""
    body: bytes = b"{}"
    content_type: str = "application/json"
    json_bytes: int | None = None
    is_gzip: bool = False
    version: int | None = 1

    def take_body(self) -> bytes:
        return self.body


class FakeRestWorkers:
    """Answers only when a test calls `ends` for a request. `refusal` refuses all requests."""

    def __init__(self) -> None:
        self.options: dict[str, object] = {}
        self.submitted: dict[int, tuple[object, ...]] = {}
        self.cancelled: list[int] = []
        self.metadata: dict[str, bytes] = {}
        self.refusal: Exception | None = None
        self.log: list[str] = []
        self.is_awaiting_ended = False
        self.waiting_requests = object()
        self._ended: list[FakeEndedRequest] = []
        self._descriptor = -1

    @property
    def ended_descriptor(self) -> int:
        return self._descriptor

    def start(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.log.append("start")

    def submit(
        self,
        method: str,
        model: str,
        version: int | None,
        label: str | None,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        timeout_seconds: float,
    ) -> int:
        if self.refusal is not None:
            raise self.refusal
        number = len(self.submitted) + 1
        self.submitted[number] = (method, model, version, label, headers, body, timeout_seconds)
        return number

    def ends(self, ended: FakeEndedRequest) -> None:
        self._ended.append(ended)
        os.eventfd_write(self._descriptor, 1)

    def cancel(self, id: int) -> None:  # noqa: A002
        self.cancelled.append(id)

    def take_ended(self) -> list[FakeEndedRequest]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        taken, self._ended = self._ended, []
        return taken

    def get_model_metadata(self, model: str, version: int | None, label: str | None) -> bytes:
        del version, label
        if model not in self.metadata:
            raise StatusError(5, f"Servable not found for request: Latest({model})")
        return self.metadata[model]

    def end_awaiting(self) -> None:
        self.is_awaiting_ended = True

    def shutdown(self, drain_seconds: float) -> bool:
        self.log.append(f"shutdown {drain_seconds:g}")
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        return True

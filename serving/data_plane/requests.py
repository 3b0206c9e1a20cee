"""Requests under way, their memory and their spans, as the control plane sees them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from serving.base.trace_context import TraceContext


class Admission(Protocol):
    """`_native.Admission`: admits or refuses requests, over gRPC and HTTP together."""

    @property
    def in_flight_count(self) -> int: ...
    @property
    def refused_count(self) -> int: ...
    def set_model_limits(self, limits: Mapping[str, int]) -> None: ...


class BudgetCounts(Protocol):
    """The counts of a `_native.ByteBudget`, in bytes and refusals."""

    @property
    def limit_bytes(self) -> int: ...
    @property
    def in_use_bytes(self) -> int: ...
    @property
    def refused_count(self) -> int: ...


class ByteShare(Protocol):
    """`_native.ByteShare`: the bytes of one holder, until the share shrinks or is destroyed."""

    def resize(self, bytes: int) -> bool: ...  # noqa: A002 (the module's name for it)
    @property
    def bytes(self) -> int: ...


class ByteBudget(BudgetCounts, Protocol):
    """`_native.ByteBudget`: the bytes that clients take, over all protocols.

    A share for calls, and a share for connections and probes, may exceed the limit by a reserve.
    """

    def message_share(self) -> ByteShare: ...
    def call_share(self) -> ByteShare: ...
    def connection_share(self) -> ByteShare: ...


class RareCall(Protocol):
    """`_native.RareCall`: answered once, from any thread."""

    @property
    def method(self) -> str: ...
    @property
    def request(self) -> bytes: ...
    @property
    def remaining_seconds(self) -> float | None: ...
    @property
    def is_wanted(self) -> bool: ...
    @property
    def trace_context(self) -> TraceContext | None: ...
    @property
    def peer(self) -> str: ...
    @property
    def client_names(self) -> Sequence[str]: ...
    @property
    def is_forwarded(self) -> bool: ...
    def reply(self, response: bytes) -> None: ...
    def fail(self, code: int, message: str) -> None: ...


class RestAnswer(Protocol):
    """The answer to a request. If binary data follow the JSON, the first `json_bytes` are JSON."""

    @property
    def code(self) -> int: ...
    @property
    def message(self) -> str: ...
    def take_body(self) -> bytes:
        """Returns the body and releases it; call this once."""
        ...

    @property
    def content_type(self) -> str: ...
    @property
    def json_bytes(self) -> int | None: ...
    @property
    def is_gzip(self) -> bool: ...
    @property
    def version(self) -> int | None:
        """The version that the request reached, even if it failed there."""
        ...


class EndedRequest(RestAnswer, Protocol):
    """`_native.EndedRestRequest`."""

    @property
    def id(self) -> int: ...


class RestWorkers(Protocol):
    """`_native.RestWorkers`."""

    @property
    def waiting_requests(self) -> object: ...
    @property
    def ended_descriptor(self) -> int: ...
    def start(self) -> None: ...
    def submit(
        self,
        method: str,
        model: str,
        version: int | None,
        label: str | None,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        timeout_seconds: float,
    ) -> int: ...
    def cancel(self, id: int) -> None: ...  # noqa: A002 (the module's name for it)
    def take_ended(self) -> Sequence[EndedRequest]: ...
    def get_model_metadata(self, model: str, version: int | None, label: str | None) -> bytes: ...
    def end_awaiting(self) -> None: ...
    def shutdown(self, drain_seconds: float) -> bool: ...


class RequestSpan(Protocol):
    """A request that has ended (`_native.RequestSpan`). Instants are monotonic."""

    @property
    def context(self) -> TraceContext: ...
    @property
    def method(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    @property
    def code(self) -> int: ...
    @property
    def message(self) -> str: ...
    @property
    def received_ns(self) -> int: ...
    @property
    def phase_ns(self) -> Mapping[str, int]: ...
    @property
    def batch_after_run_ns(self) -> int:
        """The part of the phase `batch` that came after the run."""
        ...

    @property
    def total_ns(self) -> int: ...
    @property
    def request_bytes(self) -> int: ...
    @property
    def response_bytes(self) -> int: ...


class SpanBuffer(Protocol):
    """The buffer of requests that have ended (`_native.SpanBuffer`)."""

    def take(self, count_max: int) -> Sequence[RequestSpan]: ...
    @property
    def dropped_counts(self) -> Mapping[str, int]: ...


class ServerCertificates(Protocol):
    """`_native.ServerCertificates`."""

    def replace(self, *, key: str, chain: str, client_ca: str) -> None: ...

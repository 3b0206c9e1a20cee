"""How much memory requests and replies may take: what the flags and the machine come to.

The data plane counts and refuses (`native/base/byte_budget.h`); over HTTP a `MemoryHold` counts what
Python holds of one request: its body until it is answered, its answer until the client has it.
"""

from dataclasses import dataclass

from serving.base.errors import MillpondError, StatusCode
from serving.config.server_config import ServerConfig
from serving.data_plane.requests import ByteBudget
from serving.loading.memory_fit import UNLIMITED_BYTES

BUDGET_SHARE = 4
"""One part in so many of what the machine leaves: models, their next versions and what kernels compute
have the others."""

RUN_SHARE = 2
"""One run may take one part in so many of the budget."""

BUDGET_MESSAGES_MIN = 2
"""The largest gRPC messages that the budget holds at least, however little the machine leaves: one
request and its reply."""

RUN_BYTES_MIN = 2**28
"""One run may take at least this much, however little the machine leaves: a smaller limit would
refuse every request of common models for as long as the server runs."""

GRPC_REPLY_BYTES_MAX = 2**30
"""Half of what gRPC can carry: no client that reads its replies into memory has asked for more."""

REST_REPLY_BYTES_MAX = 2**28
"""Of JSON text, of which a client has several times as much in objects."""


@dataclass(frozen=True, kw_only=True)
class RequestMemoryLimits:
    """Limits in bytes, of a server."""

    budget_bytes: int
    run_bytes: int
    grpc_reply_bytes_max: int
    rest_reply_bytes_max: int


def request_memory_limits(config: ServerConfig, available_bytes: int) -> RequestMemoryLimits:
    """Decides what the flags leave open. `available_bytes` is what the machine has left. Pure."""
    budget_bytes = config.request_memory_bytes or max(
        _share(available_bytes, BUDGET_SHARE), BUDGET_MESSAGES_MIN * config.max_message_bytes
    )
    # A budget that was asked for is a statement on runs too.
    run_bytes_min = 0 if config.request_memory_bytes else RUN_BYTES_MIN
    return RequestMemoryLimits(
        budget_bytes=budget_bytes,
        run_bytes=config.run_memory_bytes or max(_share(budget_bytes, RUN_SHARE), run_bytes_min),
        grpc_reply_bytes_max=config.max_reply_bytes or GRPC_REPLY_BYTES_MAX,
        rest_reply_bytes_max=config.max_reply_bytes or REST_REPLY_BYTES_MAX,
    )


def _share(total_bytes: int, parts: int) -> int:
    return UNLIMITED_BYTES if total_bytes >= UNLIMITED_BYTES else total_bytes // parts


@dataclass(frozen=True, kw_only=True)
class RequestMemory:
    """The limits and the budget that all protocols of a server share."""

    limits: RequestMemoryLimits
    budget: ByteBudget


class MemoryBusy(MillpondError):
    """No memory is left for a request or reply: 429, and the connection is closed."""

    code = StatusCode.RESOURCE_EXHAUSTED


class MemoryHold:
    """One HTTP request's part of the budget. Call `release` however the request ends.

    On the event loop's thread. Without a budget nothing is counted.
    """

    def __init__(self, budget: ByteBudget | None) -> None:
        self._budget = budget
        self._held_bytes = 0

    def check_fits(self, byte_count: int) -> None:
        """Raises MemoryBusy if so many bytes are more than is left. Takes nothing: a client that
        announces a body and sends none keeps nobody else away.
        """
        budget = self._budget
        if budget is not None and byte_count > budget.limit_bytes - budget.in_use_bytes:
            # Counts the refusal, as the bytes would not fit now.
            if budget.take(byte_count):
                budget.return_bytes(byte_count)
                return
            raise self._busy(byte_count)

    def grow(self, byte_count: int) -> None:
        """Takes so many bytes more. Raises MemoryBusy."""
        if self._budget is None or byte_count == 0:
            return
        if not self._budget.take(byte_count):
            raise self._busy(byte_count)
        self._held_bytes += byte_count

    def release(self) -> None:
        """Returns all. A second call does nothing."""
        if self._held_bytes:
            assert self._budget is not None
            self._budget.return_bytes(self._held_bytes)
            self._held_bytes = 0

    def _busy(self, byte_count: int) -> MemoryBusy:
        assert self._budget is not None
        total_bytes = self._held_bytes + byte_count
        if total_bytes > self._budget.limit_bytes:
            return MemoryBusy(
                f"a request or reply of {total_bytes} bytes is larger than all of the "
                f"{self._budget.limit_bytes} bytes of --request_memory_bytes; raise the flag, or "
                "send less"
            )
        return MemoryBusy(
            f"no memory is left for {byte_count} bytes: requests and replies under way take "
            f"{self._budget.in_use_bytes} of the {self._budget.limit_bytes} bytes of "
            "--request_memory_bytes; try again later, send or ask for less at a time, or ask "
            "another server"
        )

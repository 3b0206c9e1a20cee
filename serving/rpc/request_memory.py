"""The limits on the memory of requests and replies, from the flags and the machine's memory.

The data plane counts and refuses (`native/base/byte_budget.h`). Over HTTP, a `MemoryHold` counts the
memory of one request in Python: its body until the workers have it, its answer until the client has
it.
"""

from dataclasses import dataclass

from serving.base.errors import MillpondError, StatusCode
from serving.config.server_config import ServerConfig
from serving.data_plane.requests import ByteBudget
from serving.loading.memory_fit import UNLIMITED_BYTES

BUDGET_SHARE = 4
"""The free memory is divided by this to give the budget.

The rest is for models, their next versions and kernels.
"""

RUN_SHARE = 2
"""The budget is divided by this to give the limit of one run."""

BUDGET_MESSAGES_MIN = 2
"""The number of largest gRPC messages that every budget holds, however little memory is free: one
request and its reply."""

ALL_RUNS_COUNT = 2
"""All runs together always have room for this many runs of the largest size."""

RUN_BYTES_MIN = 2**28
"""The smallest limit of one run, however little memory is free. A smaller limit would refuse every
request of common models for as long as the server runs."""

GRPC_REPLY_BYTES_MAX = 2**30
"""Half of the most that gRPC can carry. Clients read replies into memory, and need no more."""

REST_REPLY_BYTES_MAX = 2**28
"""The limit of a reply's JSON text. As objects, it takes several times as much in the client."""


@dataclass(frozen=True, kw_only=True)
class RequestMemoryLimits:
    """A server's limits, in bytes."""

    budget_bytes: int
    run_bytes: int
    all_runs_bytes: int
    grpc_reply_bytes_max: int
    rest_reply_bytes_max: int


def request_memory_limits(config: ServerConfig, available_bytes: int) -> RequestMemoryLimits:
    """The limits that the flags set, with defaults for the others. Pure.

    `available_bytes` is the machine's free memory.
    """
    budget_bytes = config.request_memory_bytes or max(
        _share(available_bytes, BUDGET_SHARE), BUDGET_MESSAGES_MIN * config.max_request_bytes
    )
    # A budget set by its flag limits runs too, even below RUN_BYTES_MIN.
    run_bytes_min = 0 if config.request_memory_bytes else RUN_BYTES_MIN
    run_bytes = config.run_memory_bytes or max(_share(budget_bytes, RUN_SHARE), run_bytes_min)
    return RequestMemoryLimits(
        budget_bytes=budget_bytes,
        run_bytes=run_bytes,
        # As much as requests have, so that models keep half of the free memory, however many runs there
        # are.
        all_runs_bytes=min(
            max(_share(available_bytes, BUDGET_SHARE), ALL_RUNS_COUNT * run_bytes), UNLIMITED_BYTES
        ),
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
    """One HTTP request's part of the budget. Call `release` in any case when the request ends.

    Used on the event loop's thread. Without a budget, bytes are not counted.
    """

    def __init__(self, budget: ByteBudget | None) -> None:
        self._budget = budget
        self._share = budget.message_share() if budget is not None else None

    @property
    def held_bytes(self) -> int:
        """The bytes that it has taken; 0 without a budget."""
        return self._share.bytes if self._share is not None else 0

    def check_fits(self, byte_count: int) -> None:
        """Raises MemoryBusy if fewer bytes are left in the budget.

        Takes no bytes, so a client that announces a body and does not send it blocks no other.
        """
        budget = self._budget
        if budget is None or byte_count <= budget.limit_bytes - budget.in_use_bytes:
            return
        # The bytes would not fit now. Counts the refusal.
        if not budget.message_share().resize(byte_count):
            raise self._busy(byte_count)

    def grow(self, byte_count: int) -> None:
        """Takes more bytes of the budget. Raises MemoryBusy if it does not have them."""
        if self._share is None or byte_count == 0:
            return
        if not self._share.resize(self._share.bytes + byte_count):
            raise self._busy(byte_count)

    def release(self) -> None:
        """Gives all bytes back to the budget. A second call does nothing."""
        if self._share is not None:
            self._share.resize(0)

    def _busy(self, byte_count: int) -> MemoryBusy:
        assert self._budget is not None
        total_bytes = self.held_bytes + byte_count
        if total_bytes > self._budget.limit_bytes:
            return MemoryBusy(
                f"a request or reply of {total_bytes} bytes is larger than all of the "
                f"{self._budget.limit_bytes} bytes of --request_memory_bytes; raise the flag, or "
                "send less"
            )
        return MemoryBusy(
            f"no memory is left for {byte_count} bytes: requests and replies under way take "
            f"{self._budget.in_use_bytes} of the {self._budget.limit_bytes} bytes of "
            "--request_memory_bytes; try again later, send or ask for less at a time, or use "
            "another server"
        )

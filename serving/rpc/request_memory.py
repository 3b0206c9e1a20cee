"""The limits on the memory of requests and replies, from the flags and the machine's memory.

The data plane counts and refuses (`native/base/byte_budget.h`).
"""

from dataclasses import dataclass

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

"""Limits the connections of HTTP by the process's file descriptors.

The limit keeps clients from taking the descriptors that probes and calls to servers need.
"""

import resource

PARTS = 6
"""Each of HTTP's two loops may take one part in six of the descriptors.

The rest is for calls to servers, the state, logs and libraries.
"""


def connection_count_max(wanted: int, descriptor_limit: int | None = None) -> int:
    """The most connections of a loop: `wanted`, but no more than the loop's share of descriptors; at least 1."""
    limit = descriptor_limit or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, limit // PARTS))

"""The number of connections that HTTP may have.

Clients must not take the descriptors of probes, and of the calls to servers.
"""

import resource

PARTS = 6
"""The divisor of the process's descriptors that gives the part of each of HTTP's two loops. The rest is for
calls to servers, the state, logs and libraries."""


def connection_count_max(wanted: int, descriptor_limit: int | None = None) -> int:
    """`wanted`, or a loop's part of the descriptors if that is less; at least 1."""
    limit = descriptor_limit or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, limit // PARTS))

#!/opt/millpond/bin/python
"""Exit status 0 where the server in this container answers SERVING to grpc.health.v1.Health/Check.

The two messages are bytes: a HealthCheckRequest for the whole server is empty, and the reply's
only field is its status.
"""

from __future__ import annotations

import os
import sys

import grpc

# Below the HEALTHCHECK's own 5 s, so that the reason is printed.
TIMEOUT_SECONDS = 3.0
# HealthCheckResponse with field 1, a varint, at SERVING.
SERVING = b"\x08\x01"


def check(target: str) -> str | None:
    """What is wrong with the server at `target`, or None."""
    with grpc.insecure_channel(target) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/grpc.health.v1.Health/Check"
        )
        try:
            reply = call(b"", timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            return f"{target}: {error.code().name}: {error.details()}"
    return None if reply == SERVING else f"{target}: not serving (status bytes {reply!r})"


if __name__ == "__main__":
    problem = check(f"localhost:{os.environ.get('MILLPOND_PORT', '8500')}")
    if problem is not None:
        sys.exit(problem)

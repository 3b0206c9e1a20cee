#!/opt/millpond/bin/python
"""Ends with status 0 if the server in this container is ready: by gRPC's health, else by `/readyz`.

With --ssl_config_file gRPC needs TLS, so HTTP is used, which reports the same. The two messages of
gRPC are written as bytes: a HealthCheckRequest for the whole server is empty, and the reply's only
field is its status.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

import grpc

# Together below the HEALTHCHECK's own 5 s, so that the reason is printed.
GRPC_TIMEOUT_SECONDS = 3.0
HTTP_TIMEOUT_SECONDS = 1.5
# HealthCheckResponse with field 1, a varint, at SERVING.
SERVING = b"\x08\x01"


def check_grpc(target: str) -> str | None:
    """Returns the problem of the server at `target`, or None. Raises RpcError if it does not
    answer.
    """
    with grpc.insecure_channel(target) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/grpc.health.v1.Health/Check"
        )
        reply = call(b"", timeout=GRPC_TIMEOUT_SECONDS)
    return None if reply == SERVING else f"{target}: not serving (status bytes {reply!r})"


def check_http(url: str) -> str | None:
    """Returns the problem of the server at `url`, or None."""
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"{url}: {error.code}: {error.read().decode(errors='replace')}"
    except OSError as error:
        return f"{url}: {error}"


def check(host: str, grpc_port: str, http_port: str) -> str | None:
    """Returns the problem of the server, or None."""
    target = f"{host}:{grpc_port}"
    try:
        return check_grpc(target)
    except grpc.RpcError as error:
        problem = check_http(f"http://{host}:{http_port}/readyz")
        if problem is None:
            return None
        return f"{target}: {error.code().name}: {error.details()}; {problem}"


if __name__ == "__main__":
    found = check(
        "localhost",
        os.environ.get("MILLPOND_PORT", "8500"),
        os.environ.get("MILLPOND_HTTP_PORT", "8501"),
    )
    if found is not None:
        sys.exit(found)

"""`millpond health`: exits with status 0 if a server is ready, for Docker and other supervisors.

It asks gRPC's health service. If gRPC does not answer, for example because the port has TLS, it asks
`/readyz`, which reports the same, with TLS if HTTP's port has it. It checks no certificate, because the
question and its answer are no secrets.

The messages of gRPC are written as bytes here, so that the command need not import message classes: the
request for the whole server is empty, and the reply has one field, the status.
"""

import argparse
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

import grpc

from serving.base.errors import Unavailable
from serving.commands.argument_types import target

# All timeouts together are below the 5 s of the Dockerfile's HEALTHCHECK, so that the command can print the
# reason. HTTP may be asked twice.
GRPC_TIMEOUT_SECONDS = 2.0
HTTP_TIMEOUT_SECONDS = 1.2
# The bytes of a HealthCheckResponse whose status is SERVING.
_SERVING = b"\x08\x01"
# The status of a plain request's answer on a port with TLS. `/readyz` itself never has it.
TLS_NEEDED = 400
# The image's environment variables for the ports, with the default port of each.
PORT_VARIABLES: Mapping[str, str] = {"MILLPOND_PORT": "8500", "MILLPOND_HTTP_PORT": "8501"}


def run(arguments: Sequence[str]) -> int:
    """Returns 0 if the server is ready. Raises Unavailable, with the reason, if it is not."""
    parsed = make_parser().parse_args(arguments)
    problem = _problem(parsed.target, parsed.http)
    if problem is not None:
        raise Unavailable(problem)
    return 0


def _problem(grpc_target: str, http_address: str) -> str | None:
    """The reason why the server is not ready; None if it is ready."""
    try:
        return _grpc_problem(grpc_target)
    except grpc.RpcError as error:
        problem = _http_problem(http_address)
        if problem is None:
            return None
        return f"{grpc_target}: {error.code().name}: {error.details()}; {problem}"


def _grpc_problem(grpc_target: str) -> str | None:
    """The reason, by gRPC's health service, why the server is not ready; None if it is SERVING.

    Raises RpcError if gRPC does not answer.
    """
    with grpc.insecure_channel(grpc_target) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/grpc.health.v1.Health/Check"
        )
        reply = call(b"", timeout=GRPC_TIMEOUT_SECONDS)
    return None if reply == _SERVING else f"{grpc_target}: not serving (status bytes {reply!r})"


def _http_problem(address: str) -> str | None:
    """The reason why `/readyz` does not answer 200, or None if it does."""
    status, problem = _ask(f"http://{address}/readyz")
    if status == TLS_NEEDED:
        _, problem = _ask(f"https://{address}/readyz")
    return problem


def _ask(url: str) -> tuple[int, str | None]:
    """Asks for a page. Returns its status, or 0 without an answer, and the problem unless it is 200."""
    # Proxies that the environment names are ignored, because they cannot reach the ports of this machine.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_unverified())
    )
    try:
        with opener.open(url, timeout=HTTP_TIMEOUT_SECONDS) as reply:
            return reply.status, None
    except urllib.error.HTTPError as error:
        return error.code, f"{url}: {error.code}: {error.read().decode(errors='replace')}"
    except OSError as error:
        return 0, f"{url}: {error}"


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond health",
        description="Exit with status 0 if a server is ready, else print the reason and exit with 1.",
        allow_abbrev=False,
    )
    grpc_port, http_port = (os.environ.get(*item) for item in PORT_VARIABLES.items())
    parser.add_argument(
        "--target",
        type=target,
        default=f"localhost:{grpc_port}",
        metavar="HOST:PORT",
        help="gRPC's address; default localhost and $MILLPOND_PORT, or 8500",
    )
    parser.add_argument(
        "--http",
        type=target,
        default=f"localhost:{http_port}",
        metavar="HOST:PORT",
        help="HTTP's address, asked if gRPC does not answer; default localhost and "
        "$MILLPOND_HTTP_PORT, or 8501",
    )
    return parser

"""Failed gRPC calls, as values for decisions and as MillpondErrors."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from serving.base.errors import MillpondError, StatusCode, Unavailable, from_status

CLOSED_MESSAGE = "the client is closed; make another one"

_PUSHBACK_KEY = "grpc-retry-pushback-ms"

# The message of grpcio when it gives up a call itself.
_DEADLINE_MESSAGE = "Deadline Exceeded"

# The messages of gRPC servers in C++ and in Python for a method that they do not have.
_NO_METHOD_MESSAGES = frozenset({"", "Method not found!"})


@dataclass(frozen=True)
class Failure:
    """The failure of an attempt.

    `pushback_seconds` is the pause that the server requires before the next attempt. It is None if the
    server sends no pause, and negative if the server forbids another attempt.
    """

    code: StatusCode
    message: str = ""
    pushback_seconds: float | None = None


def failure_of(error: Any) -> Failure:
    """Returns the failure of a `grpc.RpcError`, which is also the call (grpcio's types lack that)."""
    return Failure(
        StatusCode(error.code().value[0]),
        error.details() or "",
        _pushback_seconds(error.trailing_metadata() or ()),
    )


def _pushback_seconds(trailing_metadata: Iterable[tuple[str, str | bytes]]) -> float | None:
    for key, value in trailing_metadata:
        if key == _PUSHBACK_KEY:
            try:
                return int(value) / 1e3
            except ValueError:
                # A value that cannot be read forbids another attempt, as in gRPC's own clients.
                return -1
    return None


def _tls_question(message: str) -> str:
    """Returns advice for a channel without TLS to a port with TLS; a broken connection looks the same."""
    if not message.endswith("Socket closed"):
        return ""
    return " If it uses TLS, give the certificate authority: --tls_ca, or Client(…, tls=Tls(ca_file=…))"


def error_of(failure: Failure, target: str, timeout_seconds: float) -> MillpondError:
    """Returns the error to raise after the last attempt. Its message names the server."""
    if failure.code is StatusCode.UNAVAILABLE:
        return Unavailable(
            f"no server answers at {target} ({failure.message}); "
            f"is it running, and is this its host and port?{_tls_question(failure.message)}"
        )
    message = failure.message
    if message == _DEADLINE_MESSAGE:
        message = f"no answer from {target} in {timeout_seconds:g} s"
    elif failure.code is StatusCode.UNIMPLEMENTED and message in _NO_METHOD_MESSAGES:
        message = (
            f"the server at {target} does not have this method; "
            "is it a Millpond server, and as new as this client?"
        )
    return from_status(failure.code, message)

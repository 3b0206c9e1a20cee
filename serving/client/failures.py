"""A gRPC call that failed: as a value to decide by, and as an error of Millpond's tree."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from serving.base.errors import MillpondError, StatusCode, Unavailable, from_status

CLOSED_MESSAGE = "the client is closed; make another one"

_PUSHBACK_KEY = "grpc-retry-pushback-ms"

# What grpcio says where it gives up itself.
_DEADLINE_MESSAGE = "Deadline Exceeded"

# What servers of gRPC, in C++ and in Python, say of a method that they do not have.
_NO_METHOD_MESSAGES = frozenset({"", "Method not found!"})


@dataclass(frozen=True)
class Failure:
    """What an attempt ended with.

    `pushback_seconds` is what the server asks to be left alone for; None where it says nothing,
    negative where it does not want to be asked again.
    """

    code: StatusCode
    message: str = ""
    pushback_seconds: float | None = None


def failure_of(error: Any) -> Failure:
    """Of what grpcio raises, which is the error and the call in one; its types know the error only."""
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
                # What cannot be read forbids another attempt: gRPC's own clients take it so.
                return -1
    return None


def _tls_question(message: str) -> str:
    """What a channel without TLS hears of a port with it, and a broken connection too."""
    if not message.endswith("Socket closed"):
        return ""
    return " Where it speaks TLS, say whom to trust: --tls_ca, or Client(…, tls=Tls(ca_file=…))"


def error_of(failure: Failure, target: str, timeout_seconds: float) -> MillpondError:
    """What is raised at last: it names the server."""
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
            f"the server at {target} does not know this call; "
            "is it Millpond's, and as new as this client?"
        )
    return from_status(failure.code, message)

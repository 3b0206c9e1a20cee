"""The errors of failed gRPC calls."""

from typing import Any

from serving.base.errors import MillpondError, StatusCode, Unavailable, from_status

# The message of grpcio when it gives up a call itself.
_DEADLINE_MESSAGE = "Deadline Exceeded"

# gRPC's message ends so if a server whose health it watches does not report that it serves.
_UNHEALTHY = "backend unhealthy"

# The messages of gRPC servers in C++ and in Python for a method that they do not have.
_NO_METHOD_MESSAGES = frozenset({"", "Method not found!"})


def _tls_question(message: str) -> str:
    """A hint that the port may need TLS, if the channel has none. A broken connection looks the same."""
    if not message.endswith("Socket closed"):
        return ""
    return " If it uses TLS, give the certificate authority: --tls_ca, or Client(…, tls=Tls(ca_file=…))"


def error_of(error: Any, target: str, timeout_seconds: float) -> MillpondError:
    """Makes the MillpondError of a `grpc.RpcError`, which is also the call (grpcio's types hide that).

    Its message names the server.
    """
    code, message = StatusCode(error.code().value[0]), error.details() or ""
    if code is StatusCode.UNAVAILABLE:
        return Unavailable(f"{_unavailable(message, target)}{_tls_question(message)}")
    if message == _DEADLINE_MESSAGE:
        message = f"no answer from {target} in {timeout_seconds:g} s"
    elif code is StatusCode.UNIMPLEMENTED and message in _NO_METHOD_MESSAGES:
        message = (
            f"the server at {target} does not have this method; "
            "is it a Millpond server, and as new as this client?"
        )
    return from_status(code, message)


def _unavailable(message: str, target: str) -> str:
    if message.endswith(_UNHEALTHY):
        return (
            f"no server of {target} reports that it serves ({message}); "
            "for the health of one model, give Client(…, health_service=MODEL)"
        )
    return (
        f"no server answers at {target} ({message}); is it running, and is this its host and port?"
    )

"""Waits for a server's first answer, which any server of the PredictionService gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import Unavailable

_METHOD = "/tensorflow.serving.PredictionService/Predict"
_CALL_SECONDS = 1
# gRPC would wait for up to two minutes between its attempts to connect.
_CHANNEL_OPTIONS = [
    (f"grpc.{bound}_reconnect_backoff_ms", 100) for bound in ("initial", "min", "max")
]


def _nothing() -> None:
    pass


def _channel(target: str, root_certificates: Path | None) -> grpc.Channel:
    if root_certificates is None:
        return grpc.insecure_channel(target, _CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(root_certificates.read_bytes())
    return grpc.secure_channel(target, credentials, _CHANNEL_OPTIONS)


def wait_for_answer(
    target: str,
    request: bytes,
    clock: Clock,
    *,
    timeout_seconds: float,
    pause_seconds: float,
    check: Callable[[], None] = _nothing,
    root_certificates: Path | None = None,
) -> None:
    """Sends a serialized PredictRequest again and again until it is answered with OK.

    `check` is called after each failure, and may raise to end the wait. Raises Unavailable, with the
    last failure, at the timeout. Without `root_certificates` the channel has no TLS.
    """
    start_ns = clock.now_ns()
    with _channel(target, root_certificates) as channel:
        predict: Callable[..., bytes] = channel.unary_unary(_METHOD)
        while True:
            try:
                predict(request, timeout=_CALL_SECONDS)
            except grpc.RpcError as error:
                failed: Any = error
                failure = f"{failed.code().name}: {failed.details()}"
            else:
                return
            check()
            if seconds_since(clock, start_ns) > timeout_seconds:
                raise Unavailable(f"no answer to Predict in {timeout_seconds:g} s: {failure}")
            pause(clock, pause_seconds)

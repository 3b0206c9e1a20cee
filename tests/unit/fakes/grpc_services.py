"""gRPC servers of stock parts: a test gives the function that answers every method."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc

from serving.base.errors import MillpondError

Answer = Callable[[str, bytes, grpc.ServicerContext], bytes]
"""Gets the path of a method, the request and the context; returns the reply, or aborts."""


class _AnyMethod(grpc.GenericRpcHandler):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def service(self, call_details: grpc.HandlerCallDetails) -> Any:
        method = call_details.method
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(method, request, context)
        )


@contextmanager
def grpc_service(
    answer: Answer, credentials: grpc.ServerCredentials | None = None
) -> Iterator[int]:
    """Serves until the end of `with`, and yields the port on this machine."""
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((_AnyMethod(answer),))
    # One address: a port that is free on ::1 may be another process's on 127.0.0.1.
    address = "127.0.0.1:0"
    port = (
        server.add_secure_port(address, credentials)
        if credentials
        else server.add_insecure_port(address)
    )
    server.start()
    yield port
    server.stop(None)


def abort_with(error: MillpondError, context: grpc.ServicerContext) -> NoReturn:
    """Ends a call with the code and the message of `error`."""
    code = next(code for code in grpc.StatusCode if code.value[0] == error.code)
    context.abort(code, error.message)
    raise AssertionError("abort raises")

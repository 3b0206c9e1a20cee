"""Servers for clients: channels with methods that return prepared answers, and small gRPC servers."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import grpc

from serving.base.errors import StatusCode

HEALTH_WATCH = "/grpc.health.v1.Health/Watch"

_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}


class FakeRpcError(grpc.RpcError):
    """An RpcError like grpcio's, blocking or asynchronous."""

    def __init__(self, code: StatusCode, message: str = "") -> None:
        super().__init__(message)
        self._code = _GRPC_CODES[code]
        self._message = message

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._message


class FakeServer:
    """Answers each call with the next of `answers` and repeats the last one; raises an exception."""

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)
        self.calls: list[tuple[str, Any, float, Any]] = []
        """The path, request, timeout and metadata of each call."""
        self.closed = threading.Event()

    def answer(self, path: str, request: Any, timeout: float, metadata: Any) -> Any:
        self.calls.append((path, request, timeout, metadata))
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeChannel:
    """A `grpc.Channel` to a FakeServer."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def unary_unary(self, path: str, **serializers: object) -> Callable[..., Any]:
        def call(request: Any, timeout: float, metadata: Any = None) -> Any:
            return self.server.answer(path, request, timeout, metadata)

        return call

    def close(self) -> None:
        self.server.closed.set()


class FakeAsyncChannel(FakeChannel):
    """A `grpc.aio.Channel` to a FakeServer."""

    def unary_unary(self, path: str, **serializers: object) -> Callable[..., Any]:
        answer = super().unary_unary(path)

        async def call(request: Any, timeout: float, metadata: Any = None) -> Any:
            return answer(request, timeout, metadata)

        return call

    async def close(self) -> None:  # type: ignore[override]
        super().close()


@dataclass(frozen=True)
class Refusal:
    """A failed call."""

    code: grpc.StatusCode
    pushback_ms: str | None = None


UNAVAILABLE = Refusal(grpc.StatusCode.UNAVAILABLE)
HealthAnswer = Literal["serving", "not_serving", "no_service"]


class GrpcServer(grpc.GenericRpcHandler):
    """A gRPC server on a free port, from `__enter__` to `__exit__`.

    Answers each call with the next of `answers`, bytes or a Refusal, and repeats the last one.
    """

    def __init__(self, *answers: bytes | Refusal, health: HealthAnswer = "serving") -> None:
        self._answers = deque(answers)
        self._health = health
        self._lock = threading.Lock()
        self.paths: list[str] = []
        """The path of each call, but for health."""
        self.watched: list[bytes] = []
        """The request of each health watch."""
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self])
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "GrpcServer":
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.stop(None).wait()

    def service(self, call_details: grpc.HandlerCallDetails) -> Any:
        path: Any = call_details.method
        if path == HEALTH_WATCH:
            return grpc.unary_stream_rpc_method_handler(self._watch)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(path, context)
        )

    def _answer(self, path: str, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            self.paths.append(path)
            answer = self._answers[0] if len(self._answers) == 1 else self._answers.popleft()
        if isinstance(answer, bytes):
            return answer
        if answer.pushback_ms is not None:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", answer.pushback_ms),))
        context.abort(answer.code, "refused")
        raise AssertionError("abort raises")

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.watched.append(request)
        if self._health == "no_service":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
        # The end of the call, by its client or by `__exit__`, which stops the server.
        ended = threading.Event()
        context.add_callback(ended.set)
        yield b"\x08\x01" if self._health == "serving" else b"\x08\x02"
        ended.wait()

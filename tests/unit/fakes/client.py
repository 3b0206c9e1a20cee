"""Servers without a network: channels with methods that return prepared answers, or fail."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import grpc

from serving.base.errors import StatusCode
from serving.client.rotation import HEALTH_WATCH

OPEN_WATCH = (b"\x08\x01",)

_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}


class FakeRpcError(grpc.RpcError):
    """An RpcError like grpcio's, blocking or asynchronous."""

    def __init__(self, code: StatusCode, message: str = "", pushback_ms: str | None = None) -> None:
        super().__init__(message)
        self._code = _GRPC_CODES[code]
        self._message = message
        self._trailing = () if pushback_ms is None else (("grpc-retry-pushback-ms", pushback_ms),)

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._message

    def trailing_metadata(self) -> tuple[Any, ...]:
        return self._trailing


class FakeServer:
    """Answers each call with the next of `answers` and repeats the last one; raises an exception.

    Each of `watches` has the statuses of one health watch, and may end with an exception. After
    them a watch reports SERVING and stays open until its channel is closed.
    """

    def __init__(self, *answers: Any, watches: Sequence[Sequence[Any]] = ()) -> None:
        self.answers = deque(answers)
        self.watches = deque(watches)
        self.calls: list[tuple[str, Any, float, Any]] = []
        """The path, request, timeout and metadata of each call."""
        self.closed = threading.Event()

    def answer(self, path: str, request: Any, timeout: float, metadata: Any) -> Any:
        self.calls.append((path, request, timeout, metadata))
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.popleft()
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def next_watch(self) -> Sequence[Any]:
        return self.watches.popleft() if self.watches else OPEN_WATCH


class _FakeWatch:
    """A running watch, blocking or not."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._said = server.next_watch()

    def __iter__(self) -> Iterator[Any]:
        yield from map(_raised, self._said)
        if self._said is OPEN_WATCH:
            self._server.closed.wait()

    async def __aiter__(self) -> AsyncIterator[Any]:
        for said in self._said:
            yield _raised(said)
        if self._said is OPEN_WATCH:
            await asyncio.Event().wait()

    def cancel(self) -> None:
        self._server.closed.set()


def _raised(said: Any) -> Any:
    if isinstance(said, Exception):
        raise said
    return said


class FakeChannel:
    """A `grpc.Channel` to a FakeServer."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    def unary_unary(self, path: str, **serializers: object) -> Callable[..., Any]:
        def call(request: Any, timeout: float, metadata: Any = None) -> Any:
            return self.server.answer(path, request, timeout, metadata)

        return call

    def unary_stream(self, path: str) -> Callable[[bytes], Any]:
        assert path == HEALTH_WATCH
        return lambda request: _FakeWatch(self.server)

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

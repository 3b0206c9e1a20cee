"""Rare calls: the gRPC methods that Python answers, from bytes to bytes."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from serving.base.clock import Clock
from serving.base.errors import InternalError, MillpondError, StatusCode, Unimplemented
from serving.base.trace_context import CallTrace, traced
from serving.data_plane.requests import RareCall
from serving.rpc.operator_access import Caller, grpc_caller

Handler = Callable[[bytes], bytes]
"""Makes the serialized response to a serialized request. Raises MillpondError."""

REPLY_MARGIN_SECONDS = 0.5
"""The part of a caller's time that is left for the answer's way back. An error with the reason must
arrive before the caller's own library gives up with DEADLINE_EXCEEDED."""

REPLY_MARGIN_RATIO_MAX = 0.5
"""The largest share of a caller's time that is left for the way back, if that time is short."""

TAKE_TIMEOUT_SECONDS = 1.0
"""The longest that a thread waits for a call before it checks if it should end.

The gRPC server's `shutdown` wakes it at once, so this matters only for a stop without `shutdown`.
"""

_log = structlog.get_logger(__name__)


TakeRareCall = Callable[[float], RareCall | None]
"""`GrpcServer.take_rare_call`: returns the next call, or None at the timeout (seconds). Raises StopIteration
after the server's shutdown."""


@dataclass(frozen=True, kw_only=True)
class AnsweredCall:
    """A call that is part of a trace. Instants are monotonic. `method` is the full name."""

    trace: CallTrace
    method: str
    code: StatusCode
    taken_ns: int
    ended_ns: int


@dataclass(frozen=True)
class Waiting:
    """A handler that may wait, and therefore gets its caller's deadline.

    `handle` gets the seconds until the deadline, or None if the caller has no deadline.
    """

    handle: Callable[[bytes, float | None], bytes]

    def __call__(self, request: bytes, remaining_seconds: float | None = None) -> bytes:
        return self.handle(request, remaining_seconds)


@dataclass(frozen=True)
class Deferred:
    """A handler that takes over the call and answers it later on another thread.

    `begin` returns soon. It raises MillpondError if it does not take over the call.
    """

    begin: Callable[[RareCall], None]


@dataclass(frozen=True)
class Guarded:
    """A handler for some callers only: `check` raises MillpondError for the others."""

    handler: Handler | Deferred
    check: Callable[[Caller], None]


AnyHandler = Handler | Deferred | Guarded


def patience_seconds(remaining_seconds: float | None, longest_seconds: float) -> float:
    """The longest that a handler may wait if its answer is to reach its caller in time. Pure.

    `longest_seconds` is the handler's own limit, and the only limit if the caller has no deadline (None).
    """
    if remaining_seconds is None:
        return longest_seconds
    margin_seconds = min(REPLY_MARGIN_SECONDS, REPLY_MARGIN_RATIO_MAX * remaining_seconds)
    return min(longest_seconds, remaining_seconds - margin_seconds)


class RareCallThreads:
    """Threads `rare-call-N` (or `thread_name`-N) that take calls, and answer each by one of `handlers`.

    `handlers` has full method names. `thread_count` is one more than the calls that may wait at once, so a
    status is still answered. Stop the threads after the gRPC server, because until then they answer the
    calls that are still running. Log lines of a call have its trace's ids.
    """

    def __init__(
        self,
        handlers: Mapping[str, AnyHandler],
        *,
        thread_count: int = 2,
        thread_name: str = "rare-call",
        on_answered: Callable[[AnsweredCall], None],
        clock: Clock,
    ) -> None:
        """`on_answered` is called on one of the threads, after each call that is part of a trace."""
        self._handlers = handlers
        self._thread_count = thread_count
        self._thread_name = thread_name
        self._on_answered = on_answered
        self._clock = clock
        self._is_stopping = False
        self._threads: list[threading.Thread] = []

    def start(self, take: TakeRareCall) -> None:
        """Starts the threads, which answer each call that `take` returns. Call it once."""
        for index in range(self._thread_count):
            name = f"{self._thread_name}-{index}"
            thread = threading.Thread(target=self._run, args=(take,), name=name, daemon=True)
            thread.start()
            # Only now, because a thread that the system refused cannot be joined.
            self._threads.append(thread)

    def stop(self, timeout_seconds: float = 2 * TAKE_TIMEOUT_SECONDS) -> bool:
        """Ends the threads. Returns False if a handler still runs after `timeout_seconds`."""
        self._is_stopping = True
        for thread in self._threads:
            thread.join(timeout_seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, take: TakeRareCall) -> None:
        # A thread that asked again after the shutdown would never wait, and would take a core from requests
        # that still drain.
        with suppress(StopIteration):
            while not self._is_stopping:
                call = take(TAKE_TIMEOUT_SECONDS)
                if call is not None:
                    self._answer_guarded(call)

    def _answer_guarded(self, call: RareCall) -> None:
        try:
            self._answer_in_trace(call)
        except Exception:  # noqa: BLE001 (the call is broken; the next one is innocent)
            _log.exception("rare_call_lost", method=call.method)

    def _answer_in_trace(self, call: RareCall) -> None:
        taken_ns = self._clock.now_ns()
        with traced(call.trace_context) as trace:
            code = answer(call, self._handlers)
        if trace is not None and code is not None:
            self._on_answered(
                AnsweredCall(
                    trace=trace,
                    method=call.method,
                    code=code,
                    taken_ns=taken_ns,
                    ended_ns=self._clock.now_ns(),
                )
            )


def answer(call: RareCall, handlers: Mapping[str, AnyHandler]) -> StatusCode | None:
    """Answers one call and returns its code; None if another thread answers it later.

    An error that is not a MillpondError is a defect of the server: it is logged as INTERNAL.
    """
    try:
        response = _handle(_handler(call.method, handlers), call)
    except MillpondError as error:
        call.fail(int(error.code), error.message)
        return error.code
    except Exception as error:  # noqa: BLE001 (the caller must get an answer)
        _log.exception("rare_call_failed", method=call.method)
        bug = InternalError(f"{type(error).__name__} in {call.method}; see the server's log")
        call.fail(int(bug.code), bug.message)
        return bug.code
    if response is None:
        return None
    call.reply(response)
    return StatusCode.OK


def _handle(handler: AnyHandler, call: RareCall) -> bytes | None:
    """Makes the response; None if the handler has taken over the call."""
    if isinstance(handler, Guarded):
        names = tuple(call.client_names)
        handler.check(grpc_caller(call.peer, names, is_forwarded=call.is_forwarded))
        handler = handler.handler
    if isinstance(handler, Deferred):
        handler.begin(call)
        return None
    if isinstance(handler, Waiting):
        return handler(call.request, call.remaining_seconds)
    return handler(call.request)


def _handler(method: str, handlers: Mapping[str, AnyHandler]) -> AnyHandler:
    handler = handlers.get(method)
    if handler is None:
        raise Unimplemented(f"unknown method {method}")
    return handler

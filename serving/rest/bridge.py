"""The bridge between the event loop and the data plane's workers.

No Python thread waits for a model. The workers signal finished requests by a descriptor, which the
loop reads like a socket.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from serving.base.errors import StatusCode
from serving.data_plane.requests import RestAnswer, RestWorkers
from serving.http.connections import Holder
from serving.loading.request_cores import RequestCores

SWEEP_SECONDS = 0.25
"""The time between two checks for requests that are late. A run ends by itself at its deadline,
before its next kernel, and returns an error. The check is for a kernel that does not end."""

LINGER_SECONDS = 2.0
"""How long requests over HTTP may pause before they count as ended."""


class RestTarget(NamedTuple):
    """The method and version that a request is for.

    `method` is the data plane's name: `RestPredict`, `RestClassify`, `RestRegress` or `RestModelInfer`.
    """

    method: str
    model: str
    version: int | None = None
    label: str | None = None


class Connection(Protocol):
    """A client's connection, as far as a request needs it (`serving.http.connections`)."""

    on_lost: Callable[[], None] | None
    answer_hold: Holder | None

    async def wait_until_sent(self) -> None:
        """Waits until the kernel has every byte written, or the client is gone."""
        ...

    @property
    def has_whole_request(self) -> bool:
        """True if the last byte of the body that is being read has arrived."""
        ...


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An answer that the bridge gives in place of a worker."""

    code: int
    message: str
    content_type: str = "application/json"
    json_bytes: int | None = None
    is_gzip: bool = False
    version: int | None = None

    def take_body(self) -> bytes:
        """Implements RestAnswer: a refusal has no body."""
        return b""


class _Pending(NamedTuple):
    answer: "asyncio.Future[RestAnswer]"
    deadline: float


class RestBridge:
    """Takes requests on one event loop, the loop of its first `submit`.

    `status_error` is the error that the data plane raises for a request that it refuses.
    `cores` are held from the first request until requests have ended; None: no thread is pinned.
    """

    def __init__(
        self,
        workers: RestWorkers,
        *,
        timeout_seconds: float,
        status_error: type[Exception],
        cores: RequestCores | None = None,
    ) -> None:
        self._workers = workers
        self._timeout_seconds = timeout_seconds
        self._status_error = status_error
        self._cores = cores
        self._pending: dict[int, _Pending] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # True from the first request until no request has come for LINGER_SECONDS.
        self._is_sweeping = False
        self._last_request = 0.0
        self._is_draining = False

    @property
    def is_draining(self) -> bool:
        """True if answers should send their clients to another server."""
        return self._is_draining

    def drain(self) -> None:
        """Prepares for a stop of the server. Requests are answered until it stops.

        Requests that wait for the first version of their model are answered at once.
        """
        self._is_draining = True
        self._workers.end_awaiting()

    @property
    def timeout_seconds(self) -> float:
        """The longest time of a request whose `submit` gives no other time."""
        return self._timeout_seconds

    async def submit(
        self,
        target: RestTarget,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        *,
        connection: Connection | None = None,
        timeout_seconds: float | None = None,
    ) -> RestAnswer:
        """Submits a request to the workers and returns its answer. A failure is an answer too.

        `headers` are all headers of the request: codings, trace and canary key are read from them.
        `body` is as received. If `connection` is lost or the task is cancelled, the run ends before
        its next kernel. RESOURCE_EXHAUSTED means too many requests in flight. DEADLINE_EXCEEDED means
        that `timeout_seconds` (default: `timeout_seconds` of the bridge) has passed.
        """
        loop = self._loop or self._attach()
        timeout = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            number = self._workers.submit(*target, headers, body, timeout)
        except self._status_error as error:
            return Refusal(code=error.args[0], message=error.args[1])
        answer: asyncio.Future[RestAnswer] = loop.create_future()
        self._last_request = loop.time()
        self._pending[number] = _Pending(answer, self._last_request + timeout)
        if not self._is_sweeping:
            self._is_sweeping = True
            self._hold_cores(is_held=True)
            self._sweep_later()
        if connection is not None:
            connection.on_lost = lambda: self._workers.cancel(number)
        try:
            return await answer
        except asyncio.CancelledError:
            self._workers.cancel(number)
            raise
        finally:
            if connection is not None:
                connection.on_lost = None

    def _hold_cores(self, *, is_held: bool) -> None:
        if self._cores is not None:
            self._cores.hold(is_held)

    def _attach(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._workers.ended_descriptor, self._take_ended)
        return self._loop

    def _take_ended(self) -> None:
        for ended in self._workers.take_ended():
            pending = self._pending.pop(ended.id, None)
            # The answer is done already if the request was late, or if its task is gone.
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(ended)

    def _sweep_later(self) -> None:
        assert self._loop is not None
        self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Answers late requests in place of the workers. Their runs continue until the kernel ends."""
        assert self._loop is not None
        # A worker's own answer is more precise, so the worker has until the next check.
        late = self._loop.time() - SWEEP_SECONDS
        for pending in self._pending.values():
            if pending.deadline < late and not pending.answer.done():
                pending.answer.set_result(_TOOK_TOO_LONG)
        if self._pending or self._loop.time() - self._last_request < LINGER_SECONDS:
            self._sweep_later()
        else:
            self._is_sweeping = False
            self._hold_cores(is_held=False)


_TOOK_TOO_LONG = Refusal(
    code=StatusCode.DEADLINE_EXCEEDED,
    message="the request's time ended before the model answered (--rest_api_timeout_in_ms)",
)

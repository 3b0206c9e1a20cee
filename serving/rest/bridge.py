"""The bridge from the event loop to the data plane's workers: a request goes over, an answer comes back.

No Python thread waits for a model. The workers tell by a descriptor that requests have ended, which
the loop reads as it reads a socket.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from serving.base.errors import StatusCode
from serving.data_plane.requests import RestAnswer, RestWorkers

SWEEP_SECONDS = 0.25
"""Between two looks at requests whose time is over. A run ends by itself at its deadline, before its
next kernel, and then says so; this is for the kernel that does not end."""

LINGER_SECONDS = 2.0
"""How long requests over HTTP may pause before that counts as the end of them."""

Headers = Sequence[tuple[bytes, bytes]]
"""Of ASGI: names in lower case."""


class RestTarget(NamedTuple):
    """Which method of which version a request is for. `method` is the data plane's name for it:
    `RestPredict`, `RestClassify`, `RestRegress` or `RestModelInfer`.
    """

    method: str
    model: str
    version: int | None = None
    label: str | None = None


class Connection(Protocol):
    """A client's connection, as far as a request needs it (`serving.http.connections`)."""

    on_lost: Callable[[], None] | None

    async def wait_until_sent(self) -> None:
        """Waits until the kernel has all that was written, or the client is gone."""
        ...

    @property
    def has_whole_request(self) -> bool:
        """Whether the body that is being read is there to its last byte."""
        ...


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An answer that no worker gave."""

    code: int
    message: str
    content_type: str = "application/json"
    json_bytes: int | None = None
    is_gzip: bool = False
    version: int | None = None

    def take_body(self) -> bytes:
        """RestAnswer's; a refusal has none."""
        return b""


class _Pending(NamedTuple):
    answer: "asyncio.Future[RestAnswer]"
    deadline: float


class RestBridge:
    """Takes requests on one event loop, that of its first `submit`.

    `status_error` is what the data plane raises for a request that it does not take. `hold_cores` is
    told when requests begin to come and when they have ceased (`RequestCores.hold`), on the loop.
    """

    def __init__(
        self,
        workers: RestWorkers,
        *,
        timeout_seconds: float,
        status_error: type[Exception],
        hold_cores: Callable[[bool], None] = lambda is_held: None,
    ) -> None:
        self._workers = workers
        self._timeout_seconds = timeout_seconds
        self._status_error = status_error
        self._hold_cores = hold_cores
        self._pending: dict[int, _Pending] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # From the first request to the look that finds none for LINGER_SECONDS.
        self._is_sweeping = False
        self._last_request = 0.0
        self._is_draining = False

    @property
    def is_draining(self) -> bool:
        """Whether answers should ask their clients to go to another server."""
        return self._is_draining

    def drain(self) -> None:
        """The server is about to stop. Requests are answered all the same, until it does.

        Those that wait for the first version of their model are answered at once.
        """
        self._is_draining = True
        self._workers.end_awaiting()

    @property
    def timeout_seconds(self) -> float:
        """How long a request may take unless its `submit` says otherwise."""
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
        """Gives a request to the workers and waits for its end; raises nothing for what fails there.

        `headers` are all of the request's: its codings, its trace and what a canary goes by are read
        from them. `body` is as it came. Where `connection` is lost, or the task is cancelled, the run
        ends before its next kernel. RESOURCE_EXHAUSTED where too many are in flight,
        DEADLINE_EXCEEDED after `timeout_seconds`, by default --rest_api_timeout_in_ms.
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
            self._hold_cores(True)
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

    def _attach(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._workers.ended_descriptor, self._take_ended)
        return self._loop

    def _take_ended(self) -> None:
        for ended in self._workers.take_ended():
            pending = self._pending.pop(ended.id, None)
            # Done already where its client was told that the time is over, or its task is gone.
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(ended)

    def _sweep_later(self) -> None:
        assert self._loop is not None
        self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Answers for the workers where these are late: the run goes on until its kernel ends."""
        assert self._loop is not None
        # The worker, which knows more, has until the next look.
        late = self._loop.time() - SWEEP_SECONDS
        for pending in self._pending.values():
            if pending.deadline < late and not pending.answer.done():
                pending.answer.set_result(_TOOK_TOO_LONG)
        if self._pending or self._loop.time() - self._last_request < LINGER_SECONDS:
            self._sweep_later()
        else:
            self._is_sweeping = False
            self._hold_cores(False)


_TOOK_TOO_LONG = Refusal(
    code=StatusCode.DEADLINE_EXCEEDED,
    message="the request's time was over before the model had its answer (--rest_api_timeout_in_ms)",
)

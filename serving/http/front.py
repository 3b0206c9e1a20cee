"""The requests over HTTP that Python answers: the data plane reads them, and sends the answers.

Two event loops answer them, each on a thread of its own: `http-probes` the probes and the metrics,
`http` all others. So a probe waits for no page, and for no change of what is served.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import anyio.to_thread
import structlog
from starlette.types import ASGIApp, Message, Scope

from serving.data_plane.requests import RareCall
from serving.http.app import answer_for_bug

HTTP_NICE = 10
"""The priority of the threads that answer HTTP in Python, and of those that they start.

A scrape takes milliseconds of Python in one piece, and a request thread that needs that core should have
it. If all cores are busy, nice 10 leaves a tenth of one core to probes. Nice 19 would leave a sixtieth, and
a probe that waits for seconds restarts a busy server. Beside 600 requests a second and a scrape every 0.1
s, the difference between nice 10 and 0 is too small to measure on two cores.
"""

PROBE_THREAD_COUNT = 2
"""The threads of probes whose handlers are not coroutines."""

ANSWERED_AT_ONCE = 64
"""The requests that one loop answers at a time. Others wait in the data plane, which refuses too many."""

TAKE_TIMEOUT_SECONDS = 1.0
"""The longest wait for a request before a thread checks if it should end. A shutdown wakes it at once."""

JOIN_SECONDS = 3.0
"""The longest that a stop waits for the threads: running answers have been cut short before."""

TakeHttpCall = Callable[[bool, float], RareCall | None]
"""`GrpcServer.take_http_call`."""

_log = structlog.get_logger(__name__)


class HttpFront:
    """Answers what `take` returns by one application. Started and stopped once.

    Stop it after `GrpcServer.shutdown_http`, because until then it answers the requests that are
    still running. `blocking_thread_count` is for handlers that are not coroutines.
    """

    def __init__(
        self,
        app: ASGIApp,
        take: TakeHttpCall,
        *,
        blocking_thread_count: int,
        nice: int = HTTP_NICE,
    ) -> None:
        self._loops = [
            _Loop("http-probes", app, take, is_probe=True, nice=nice, blocking=PROBE_THREAD_COUNT),
            _Loop("http", app, take, is_probe=False, nice=nice, blocking=blocking_thread_count),
        ]

    def start(self) -> None:
        """Answers from now on."""
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Takes no more requests. Returns at once; `join` waits."""
        for loop in self._loops:
            loop.stop()

    def join(self, timeout_seconds: float = JOIN_SECONDS) -> bool:
        """Waits for the threads' end; returns False if a handler still runs at the timeout."""
        # The first loop ends with the last one, so the others take no further time.
        are_over = [loop.join(timeout_seconds) for loop in self._loops]
        return all(are_over)


class _Loop:
    """One event loop: a thread takes requests, and a second one answers them."""

    def __init__(
        self,
        name: str,
        app: ASGIApp,
        take: TakeHttpCall,
        *,
        is_probe: bool,
        nice: int,
        blocking: int,
    ) -> None:
        self._app = app
        self._take = take
        self._is_probe = is_probe
        self._nice = nice
        self._blocking_thread_count = blocking
        self._is_stopping = False
        self._places = threading.BoundedSemaphore(ANSWERED_AT_ONCE)
        # Made by `start`, because a loop holds descriptors.
        self._loop: asyncio.AbstractEventLoop | None = None
        # Not `loop.stop`, which is lost if it comes before the loop runs.
        self._has_ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        # Daemons, because a handler that never returns must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._answer_all, name=name, daemon=True),
            threading.Thread(target=self._take_all, name=f"{name}-take", daemon=True),
        ]

    def start(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            # The system has no thread left.
            self._is_stopping = True
            if self._threads[0].ident is None:
                loop.close()
            else:
                loop.call_soon_threadsafe(self._has_ended.set)
            raise

    def stop(self) -> None:
        self._is_stopping = True

    def join(self, timeout_seconds: float) -> bool:
        started = [thread for thread in self._threads if thread.ident is not None]
        for thread in reversed(started):
            thread.join(timeout_seconds)
        return not any(thread.is_alive() for thread in started)

    def _take_all(self) -> None:
        assert self._loop is not None
        _lower_priority(self._nice)
        with contextlib.suppress(StopIteration):
            while not self._is_stopping:
                if not self._places.acquire(timeout=TAKE_TIMEOUT_SECONDS):
                    continue
                call = self._take(self._is_probe, TAKE_TIMEOUT_SECONDS)
                if call is None:
                    self._places.release()
                else:
                    self._loop.call_soon_threadsafe(self._begin, call)
        self._loop.call_soon_threadsafe(self._has_ended.set)

    def _answer_all(self) -> None:
        assert self._loop is not None
        _lower_priority(self._nice)
        try:
            self._loop.run_until_complete(self._answer_until_ended())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    async def _answer_until_ended(self) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = self._blocking_thread_count
        await self._has_ended.wait()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, call: RareCall) -> None:
        answering: Coroutine[Any, Any, None] = answer(call, self._app)
        assert self._loop is not None
        task = self._loop.create_task(answering)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()
        if not task.cancelled() and task.exception() is not None:
            _log.error("http_request_lost", exc_info=task.exception())


def _lower_priority(nice: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError as error:
        # Probes are answered even if a sandbox refuses the priority.
        _log.warning("http_priority_refused", requested=nice, reason=error.strerror)


async def answer(call: RareCall, app: ASGIApp) -> None:
    """Answers one request by `app`. An error before the whole answer becomes a 500, and a line of the log."""
    exchange = _Exchange(call)
    scope = scope_of(call)
    try:
        await app(scope, exchange.receive, exchange.send)
    except Exception as error:  # noqa: BLE001 (the client must get an answer)
        exchange.reset()
        await answer_for_bug(scope, error)(scope, exchange.receive, exchange.send)


def scope_of(call: RareCall) -> Scope:
    """The ASGI scope of a request. Pure."""
    raw_path, _, query = call.target.partition(b"?")
    raw_path = raw_path.partition(b"#")[0]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": call.http_method,
        "scheme": "http",
        "path": unquote(raw_path.decode("ascii", "replace")),
        "raw_path": raw_path,
        "query_string": query.partition(b"#")[0],
        "root_path": "",
        "headers": call.headers,
        "client": _client_of(call.peer),
        "client_names": call.client_names,
        "server": None,
    }


def _client_of(peer: str) -> tuple[str, int] | None:
    """The address and port of `ipv4:127.0.0.1:5` or `ipv6:%5B::1%5D:5`; "" and 0 for a UNIX socket."""
    scheme, _, rest = peer.partition(":")
    if scheme == "unix":
        return "", 0
    if scheme not in ("ipv4", "ipv6"):
        return None
    address, _, port = unquote(rest).rpartition(":")
    return address.strip("[]"), int(port)


class _Exchange:
    """One request and its answer, as an ASGI application receives and sends them."""

    def __init__(self, call: RareCall) -> None:
        self._call = call
        self._is_received = False
        self._status = 500
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []

    def reset(self) -> None:
        """Forgets the part of an answer that was sent."""
        self._parts.clear()

    async def receive(self) -> Message:
        if self._is_received:
            # The data plane does not report clients that leave, because an answer takes milliseconds.
            await asyncio.Event().wait()
        self._is_received = True
        return {"type": "http.request", "body": self._call.request, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            # The data plane sends the length.
            self._headers = [
                (name.lower(), value)
                for name, value in message.get("headers", ())
                if name.lower() != b"content-length"
            ]
            return
        self._parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            self._call.reply_http(self._status, self._headers, b"".join(self._parts))

"""The messages that the manager's control thread handles, and the inbox that they arrive in.

`Message` lists everything that can arrive. Other threads post messages and never touch the manager's
state. `AspiredVersionsManager` handles each message in one place.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from serving.base.clock import Clock
from serving.base.errors import MillpondError
from serving.core.servable import ServableId
from serving.data_plane.servables import Servable
from serving.manager.harness import LoaderHarness
from serving.manager.turn import Turn

Answer = TypeVar("Answer")
Result = TypeVar("Result")


StreamChange = Callable[[Turn], Answer]
"""Changes a stream in one turn of the control thread, and returns what the caller gets."""

LifeChange = Callable[[LoaderHarness], LoaderHarness]
"""Makes the next value of the life of one version."""


class Reply(Generic[Answer]):
    """The future of a request to the control thread, with the context of the thread that made it.

    Log lines of the request carry the trace ids of its caller, because `answer` runs in that context.
    """

    def __init__(self) -> None:
        self.future: Future[Answer] = Future()
        self._context = copy_context()

    def answer(self, request: Callable[[], Answer]) -> None:
        """Calls `request` and completes the future with its result or its exception."""
        try:
            self.future.set_result(self.run(request))
        except Exception as error:  # noqa: BLE001 (the caller gets it from the future)
            self.future.set_exception(error)

    def run(self, call: Callable[[], Result]) -> Result:
        """Calls `call` in the context of the thread that made the request."""
        return self._context.run(call)


@dataclass(frozen=True)
class Request:
    """An event of the source or of the configuration, as a change of a stream.

    A `reply` tells a caller that waits when the change is made.
    """

    name: str
    change: StreamChange[Any]
    reply: Reply[Any] | None = None


@dataclass(frozen=True)
class OperatorRequest:
    """An operator's change of a stream, which must have, await or block a version."""

    name: str
    change: StreamChange[Any]
    reply: Reply[Any]


@dataclass(frozen=True)
class Progress:
    """A load or an unload has come further, in these steps. No decision depends on them."""

    id: ServableId
    changes: tuple[LifeChange, ...]


@dataclass(frozen=True)
class Loaded:
    """A load has ended, so its version can be published."""

    id: ServableId
    servable: Servable


@dataclass(frozen=True)
class LoadFailed:
    """A load has failed or was cancelled, and everything of it is freed."""

    id: ServableId
    error: MillpondError


@dataclass(frozen=True)
class Unloaded:
    """An unload has ended. If `error` is set, some memory of the version was possibly not freed."""

    id: ServableId
    error: MillpondError | None = None


@dataclass(frozen=True)
class Stop:
    """The manager unloads all versions and ends."""


Outcome = Loaded | LoadFailed | Unloaded
Message = Request | OperatorRequest | Progress | Outcome | Stop


def concerned_streams(message: Message) -> Collection[str] | None:
    """The names of the streams that may have an action after `message`; None means all streams."""
    match message:
        case Stop():
            return None
        case Progress():
            return ()
        case Request(name) | OperatorRequest(name):
            return (name,)
        case _:
            return (message.id.name,)


class Inbox:
    """The messages that the control thread has not handled yet, in the order of their arrival."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: deque[Message] = deque()
        self._arrived = threading.Condition()

    def post(self, message: Message) -> None:
        """Adds `message` and wakes the control thread. Any thread.

        Joins the progress of a version with the progress before it that still waits. Each progress
        changes what users see, and a server that loads a thousand small models makes many at once.
        """
        with self._arrived:
            last = self._messages[-1] if self._messages else None
            match message, last:
                case Progress(servable_id, changes), Progress(last_id, earlier) if (
                    servable_id == last_id
                ):
                    self._messages[-1] = Progress(servable_id, (*earlier, *changes))
                case _:
                    self._messages.append(message)
            self._arrived.notify()

    def take(self) -> Iterator[Message]:
        """Yields and removes messages until none is left. Includes messages that arrive meanwhile."""
        while self._messages:
            # `post` changes the last message.
            with self._arrived:
                message = self._messages.popleft()
            yield message

    def wait(self, timeout_seconds: float | None) -> None:
        """Waits for a message, at most until the timeout."""
        with self._arrived:
            if not self._messages:
                self._clock.wait(self._arrived, timeout_seconds)

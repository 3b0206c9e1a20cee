"""The messages that the manager's control thread handles, and the inbox that they arrive in.

`Message` lists everything that can arrive. Other threads post messages and never touch the manager's
state. `AspiredVersionsManager` handles each message in one place.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar

from serving.base.clock import Clock
from serving.base.errors import MillpondError
from serving.core.model_settings import ModelSettings
from serving.core.servable import AspiredVersion, GateVerdict, LoadStage, UnloadStage
from serving.data_plane.servables import Servable
from serving.manager.harness import LoaderHarness
from serving.manager.rollout import Rollback

Answer = TypeVar("Answer")


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
            self.future.set_result(self._context.run(request))
        except Exception as error:  # noqa: BLE001 (the caller gets it from the future)
            self.future.set_exception(error)


@dataclass(frozen=True)
class SetAspired:
    """The source of a model aspires these versions and no others."""

    name: str
    versions: tuple[AspiredVersion, ...]


@dataclass(frozen=True)
class SetSettings:
    """The settings of a model have changed."""

    name: str
    settings: ModelSettings


@dataclass(frozen=True)
class FoundAnew:
    """The source of a model found a version for the first time, or with other files than before."""

    name: str
    version: int


@dataclass(frozen=True)
class LabelsChanged:
    """The labels of a model have changed."""

    name: str


@dataclass(frozen=True)
class RollBack:
    """An operator rolls a model back."""

    name: str
    is_cold_allowed: bool
    reply: Reply[Rollback]


@dataclass(frozen=True)
class Promote:
    """An operator promotes the canary of a model."""

    name: str
    reply: Reply[int]


@dataclass(frozen=True)
class Allow:
    """An operator unblocks a version."""

    name: str
    version: int
    reply: Reply[None]


@dataclass(frozen=True)
class StageBegan:
    """A load or an unload has entered a stage."""

    harness: LoaderHarness
    stage: LoadStage | UnloadStage


@dataclass(frozen=True)
class StageEnded:
    """A load or an unload has finished a stage. `ended_at_ns` is monotonic."""

    harness: LoaderHarness
    stage: LoadStage | UnloadStage
    seconds: float
    ended_at_ns: int


@dataclass(frozen=True)
class Measured:
    """A load or an unload has measured figures of itself, by name with unit."""

    harness: LoaderHarness
    figures: Mapping[str, float]


@dataclass(frozen=True)
class GateEnded:
    """A gate has judged the version that is being loaded."""

    harness: LoaderHarness
    verdict: GateVerdict


@dataclass(frozen=True)
class Loaded:
    """A load has ended, and its version is published."""

    harness: LoaderHarness
    servable: Servable


@dataclass(frozen=True)
class LoadFailed:
    """A load has failed or was cancelled, and everything of it is freed."""

    harness: LoaderHarness
    error: MillpondError


@dataclass(frozen=True)
class Unloaded:
    """An unload has ended. If `error` is set, some memory of the version was possibly not freed."""

    harness: LoaderHarness
    error: MillpondError | None = None


@dataclass(frozen=True)
class Stop:
    """The manager unloads all versions and ends."""


Progress = StageBegan | StageEnded | Measured | GateEnded
Outcome = Loaded | LoadFailed | Unloaded
Request = SetAspired | SetSettings | FoundAnew | LabelsChanged | RollBack | Promote | Allow | Stop
Message = Progress | Outcome | Request


def concerned_streams(message: Message) -> Collection[str] | None:
    """Returns the names of the streams that may have an action after `message`; None means all.

    No policy reads the progress of a load, so progress concerns no stream.
    """
    if isinstance(message, Stop):
        return None
    if isinstance(message, Progress):
        return ()
    return (message.harness.id.name if isinstance(message, Outcome) else message.name,)


class Inbox:
    """The messages that the control thread has not handled yet, in the order of their arrival."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: deque[Message] = deque()
        self._arrived = threading.Condition()

    def post(self, message: Message) -> None:
        """Adds `message` and wakes the control thread. Any thread."""
        with self._arrived:
            self._messages.append(message)
            self._arrived.notify()

    def take(self) -> Iterator[Message]:
        """Yields and removes messages until none is left, those that arrive meanwhile included."""
        while self._messages:
            yield self._messages.popleft()

    def wait(self, timeout_seconds: float | None) -> None:
        """Returns when there is a message, or at the timeout."""
        with self._arrived:
            if not self._messages:
                self._clock.wait(self._arrived, timeout_seconds)

"""Holds gRPC's port back until the models have been loaded, as TensorFlow Serving does.

Clients and probes that wait for the port then find a server that answers. A model is awaited until
one of its versions is AVAILABLE, or until a version has failed for good and none is on its way. A model whose base
path holds no version is awaited too: the log names it every few seconds.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, islice

import structlog

from serving.base.clock import Clock, seconds_since
from serving.core.servable import AVAILABLE, END, LOADING, START, ServableStatus

LOG_SECONDS = 5.0
"""The time between two log lines with the awaited models. A person soon sees why a port is closed, and
a start of ten minutes logs about a hundred lines."""

_log = structlog.get_logger(__name__)


def is_decided(versions: Collection[ServableStatus], aspired: Collection[int] = ()) -> bool:
    """True if a version is AVAILABLE, or if a version has ended and none is on its way. Pure."""
    states = {status.state for status in versions}
    return AVAILABLE in states or (END in states and not is_one_coming(versions, aspired))


def is_one_coming(versions: Iterable[ServableStatus], aspired: Collection[int]) -> bool:
    """True if a version is on its way. Pure.

    `aspired` are the versions that the source aspires. Such a version without a status has not come to the manager
    yet.
    """
    states = {status.id.version: status.state for status in versions}
    is_loading = START in states.values() or LOADING in states.values()
    return is_loading or not states.keys() >= set(aspired)


class AwaitedModel:
    """Finds one awaited model. A server of thousands of models calls it each time a model has come.

    It remembers the model that it found, and begins the next search there. So it mostly looks at one
    model, or at two. Not safe for threads.
    """

    def __init__(self, is_decided: Callable[[str], bool]) -> None:
        """`is_decided` is True for a model that is not awaited (see the function)."""
        self._is_decided = is_decided
        self._last: str | None = None

    def find(self, models: Sequence[str], unloaded: Collection[str] = ()) -> str | None:
        """Finds a model that is awaited; None if all have come.

        A model in `unloaded` is not awaited, because its versions were taken out by request. Begins at the model
        that it found last.
        """
        start = models.index(self._last) if self._last in models else 0
        in_turn = chain(islice(models, start, None), islice(models, start))
        self._last = next(
            (name for name in in_turn if name not in unloaded and not self._is_decided(name)),
            None,
        )
        return self._last


class StartupWait:
    """Waits until no model is awaited. One thread waits; any thread reports changes.

    `awaited` returns the reason of each awaited model; it may be called at any time.
    """

    def __init__(
        self, awaited: Callable[[], Mapping[str, str]], *, max_seconds: float, clock: Clock
    ) -> None:
        """`max_seconds` of 0 or less waits without limit."""
        self._awaited = awaited
        self._max_seconds = max_seconds if max_seconds > 0 else float("inf")
        self._clock = clock
        self._changed = threading.Condition()
        self._change_count = 0
        self._is_cancelled = False

    def changed(self) -> None:
        """Wakes the waiting thread, which then looks again."""
        with self._changed:
            self._change_count += 1
            self._changed.notify_all()

    def cancel(self) -> None:
        """Ends the wait, now or later: the server stops."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def wait(self) -> bool:
        """Waits until the port may open, and logs what it waits for.

        Returns False if the wait was cancelled.
        """
        start_ns = self._clock.now_ns()
        next_log_seconds = LOG_SECONDS
        while True:
            seen_count = self._change_count
            awaited = self._awaited()
            waited_seconds = seconds_since(self._clock, start_ns)
            if self._is_cancelled or not awaited:
                return not self._is_cancelled
            if waited_seconds >= self._max_seconds:
                _log.warning("startup_wait_over", seconds=self._max_seconds, models=dict(awaited))
                return True
            if waited_seconds >= next_log_seconds:
                next_log_seconds = waited_seconds + LOG_SECONDS
                _log.info(
                    "waiting_for_models",
                    models=dict(awaited),
                    seconds=round(waited_seconds),
                    consequence="gRPC's port stays closed until each model serves or has failed",
                    remedy="drop a version, or open the port by --listen_before_ready=true or "
                    "--max_startup_wait_seconds",
                )
            self._pause(seen_count, min(next_log_seconds, self._max_seconds) - waited_seconds)

    def _pause(self, seen_count: int, seconds: float) -> None:
        """Waits for a change since `seen_count`, for up to `seconds`."""
        with self._changed:
            if self._change_count == seen_count and not self._is_cancelled:
                self._clock.wait(self._changed, seconds)

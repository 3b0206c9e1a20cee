"""Watches the health that a server reports."""

import threading
from collections.abc import Callable
from typing import Any

import grpc

from serving.base.clock import Clock
from serving.client.failures import failure_of
from serving.client.rotation import (
    HEALTH_WATCH,
    Health,
    health_of_failed_watch,
    health_of_response,
    watch_request,
)

WATCH_AGAIN_SECONDS = 1.0
"""The pause between two watches. A restarted server is noticed after at most this time."""


class HealthWatch:
    """Watches one server on its own thread, from `start` to `close`.

    `report` is called with each change on that thread.
    """

    def __init__(
        self, channel: grpc.Channel, service: str, report: Callable[[Health], object], clock: Clock
    ) -> None:
        """`service` "" is the health of the server; on Millpond, a name is the health of that model."""
        self._watch: Any = channel.unary_stream(HEALTH_WATCH)
        self._request = watch_request(service)
        self._report = report
        self._clock = clock
        self._running: Any = None
        self._is_closed = False
        # Guards the two fields above, and is notified when the second changes.
        self._changed = threading.Condition()
        # A daemon: a client that is never closed must not keep its process from ending.
        self._thread = threading.Thread(target=self._run, name="health-watch", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def close(self) -> None:
        """Ends the watch and its thread. Returns at once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            running = self._running
        if running is not None:
            running.cancel()

    def follow(self) -> bool:
        """Watches until the server ends the watch. Returns False after `close`.

        Called by the thread, or by a test.
        """
        with self._changed:
            if self._is_closed:
                return False
            self._running = self._watch(self._request)
        try:
            for response in self._running:
                self._report(health_of_response(response))
            self._report(Health.DOWN)
        except grpc.RpcError as error:
            self._report(health_of_failed_watch(failure_of(error).code))
        return True

    def _run(self) -> None:
        while self.follow():
            with self._changed:
                if not self._is_closed:
                    self._clock.wait(self._changed, WATCH_AGAIN_SECONDS)

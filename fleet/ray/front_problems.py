"""Keeps the problems that the fronts of a fleet report, because the coordinator cannot see their files."""

import threading
from collections.abc import Sequence

from serving.base.clock import Clock, seconds_since

FRESH_SECONDS = 30.0
"""A front that has not reported for this time has ended, or reports to another coordinator."""


class FrontProblems:
    """Keeps the last report of each front. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._fronts: dict[str, tuple[int, Sequence[str]]] = {}

    def note(self, front: str, problems: Sequence[str]) -> None:
        """Notes the present problems of the front with this name."""
        with self._lock:
            self._fronts[front] = self._clock.now_ns(), problems

    def present(self) -> list[str]:
        """The problems of the fronts that still run, each after its front's name. Forgets other fronts."""
        with self._lock:
            self._fronts = {
                front: row
                for front, row in self._fronts.items()
                if seconds_since(self._clock, row[0]) <= FRESH_SECONDS
            }
            return [
                f"{front}: {text}" for front, (_, rows) in self._fronts.items() for text in rows
            ]

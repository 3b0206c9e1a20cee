"""Stores of a fleet's state in memory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_SECONDS = 20


class MemoryStore:
    """Holds the state. While it is full, a write fails."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text
        self.is_full = False

    def read(self) -> str | None:
        """Returns the text that was written last."""
        return self.text

    def write(self, text: str) -> None:
        """Replaces the text. Raises OSError while the store is full."""
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.text = text


class HeldStore(MemoryStore):
    """A store whose writes a test can hold, like a disk that hangs."""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text)
        self.write_count = 0
        self.has_begun = threading.Event()
        self._may_write = threading.Event()
        self._may_write.set()

    def write(self, text: str) -> None:
        """Replaces the text, when the test lets it."""
        self.has_begun.set()
        assert self._may_write.wait(WAIT_SECONDS)
        super().write(text)
        self.write_count += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the writes that begin inside `with`."""
        self.has_begun.clear()
        self._may_write.clear()
        try:
            yield
        finally:
            self._may_write.set()

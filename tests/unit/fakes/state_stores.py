"""A store of a fleet's state in memory."""


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

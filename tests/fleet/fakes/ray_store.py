"""The key-value store of a Ray cluster, in a dictionary."""


class FakeStore:
    """A `KeyValueStore`. Coordinators with the same `values` share them."""

    def __init__(self, values: dict[str, str] | None = None) -> None:
        self.values = {} if values is None else values
        self.is_down = False
        self.calls = 0

    def call(self) -> None:
        """Runs before each call."""
        self.calls += 1
        if self.is_down:
            raise OSError("no answer")

    def get(self, key: str) -> str | None:
        self.call()
        return self.values.get(key)

    def put(self, key: str, text: str, *, is_new: bool = False) -> bool:
        self.call()
        if is_new and key in self.values:
            return False
        self.values[key] = text
        return True

    def remove(self, key: str) -> None:
        self.call()
        self.values.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        self.call()
        return [key for key in self.values if key.startswith(prefix)]

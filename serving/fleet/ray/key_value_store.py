"""The state of a fleet in the key-value store of a Ray cluster."""

from typing import Any

from ray.experimental import internal_kv

from serving.base.errors import FailedPrecondition

_NAMESPACE = b"millpond"


class KeyValueStore:
    """The values of one fleet, by name. Any thread, in a process that is connected to the cluster."""

    def __init__(self, fleet: str) -> None:
        self._prefix = f"{fleet}/"

    def get(self, key: str) -> str | None:
        """Returns a value; None if there is none. Raises OSError."""
        try:
            # Ray's annotation leaves None out.
            value: Any = internal_kv._internal_kv_get(self._key(key), namespace=_NAMESPACE)  # noqa: SLF001
        except Exception as error:
            raise OSError(f"Ray's key-value store does not answer: {error}") from error
        return None if value is None else bytes(value).decode()

    def put(self, key: str, text: str, *, is_new: bool = False) -> bool:
        """Sets a value, and returns False if it `is_new` and another process was first. Raises OSError."""
        try:
            was_there = internal_kv._internal_kv_put(  # noqa: SLF001
                self._key(key), text.encode(), overwrite=not is_new, namespace=_NAMESPACE
            )
        except Exception as error:
            raise OSError(f"Ray's key-value store does not answer: {error}") from error
        return not (is_new and was_there)

    def remove(self, key: str) -> None:
        """Removes a value if it is there. Raises OSError."""
        try:
            internal_kv._internal_kv_del(self._key(key), namespace=_NAMESPACE)  # noqa: SLF001
        except Exception as error:
            raise OSError(f"Ray's key-value store does not answer: {error}") from error

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()


class Term:
    """The time in which one process may write the state of a fleet. The next term ends it.

    Ray runs one actor of a name. But an actor that is cut off may live on while the next one has begun:
    it finds the next term in the store, and writes nothing more.
    """

    def __init__(self, store: KeyValueStore) -> None:
        """Begins the next term. Raises OSError."""
        self._store = store
        number = int(store.get("term") or 0) + 1
        while not store.put(f"term/{number}", "", is_new=True):
            number += 1
        store.put("term", str(number))
        store.remove(f"term/{number - 1}")
        self._number = number

    def check(self) -> None:
        """Raises FailedPrecondition if the next term has begun, and OSError."""
        if int(self._store.get("term") or 0) > self._number:
            raise FailedPrecondition("another coordinator of this fleet has begun")


class StoredText:
    """A `StateStore`: one value of a fleet, written in a term."""

    def __init__(self, store: KeyValueStore, term: Term, key: str) -> None:
        self._store = store
        self._term = term
        self._key = key

    def read(self) -> str | None:
        """See `StateStore`."""
        return self._store.get(self._key)

    def write(self, text: str) -> None:
        """See `StateStore`."""
        self._term.check()
        self._store.put(self._key, text)

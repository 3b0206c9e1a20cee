"""Keeps the state of a fleet in the key-value store of a Ray cluster, in terms.

The store has no compare-and-swap. But if two writers set the same *new* key, only one of them succeeds. With
two rules that is enough:

1. Each term writes its own keys, `NAME/TERM`, and begins with the value of the highest term before it. So
   a late write of an earlier term has no effect on later terms that have begun.
2. Each write ends with a look at the terms. If the write returns, no later term had begun, so each later term
   begins with the written value. If the write raises, the writer must not act on the value.

Each term also has a key with a random mark of its process. If an operator deletes the keys, a number may be
used again. So a term whose mark is gone is over.
"""

import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.experimental import internal_kv

from serving.base.clock import Clock, seconds_since

_NAMESPACE = b"millpond"
_TERMS = "term"
# The character before the mark in a key.
_MARK = "."

# The number of earlier terms whose values stay in the store, for people and for coordinators that are reading.
_KEPT_TERMS = 3
# A look at the terms is valid for this time. Grants within this time need no further look.
_VALID_SECONDS = 1.0
# The low bits of an order count the changes of one term, which are fewer than 268 million. The number of the
# term is in the high bits, so that an order fits 59 bits until 2038.
_ORDER_BITS = 28


class AnotherCluster(OSError):
    """The cluster was started anew with an empty store, and this process belongs to the earlier cluster."""


class Deposed(OSError):
    """Another coordinator of this fleet has begun a later term, so this coordinator must not write or act."""


class KeyValueStore:
    """The values of one fleet, by name. Any thread, in a process that is connected to the cluster."""

    def __init__(self, fleet: str) -> None:
        self._prefix = f"{fleet}/"

    def get(self, key: str) -> str | None:
        """Reads a value; None if there is none. Raises OSError."""
        # Ray's annotation lacks None, which is returned for a key that is not there.
        value: Any
        with _as_errors_of_the_store():
            value = internal_kv._internal_kv_get(self._key(key), namespace=_NAMESPACE)  # noqa: SLF001
        return None if value is None else bytes(value).decode()

    def put(self, key: str, text: str, *, is_new: bool = False) -> bool:
        """Sets a value. With `is_new`, keeps a value that is there already, and returns False.

        Raises OSError.
        """
        with _as_errors_of_the_store():
            was_there = internal_kv._internal_kv_put(  # noqa: SLF001
                self._key(key), text.encode(), overwrite=not is_new, namespace=_NAMESPACE
            )
        return not (is_new and was_there)

    def remove(self, key: str) -> None:
        """Removes a value if it is there. Raises OSError."""
        with _as_errors_of_the_store():
            internal_kv._internal_kv_del(self._key(key), namespace=_NAMESPACE)  # noqa: SLF001

    def keys(self, prefix: str) -> list[str]:
        """Lists the names that begin with `prefix`. Raises OSError."""
        with _as_errors_of_the_store():
            found = internal_kv._internal_kv_list(self._key(prefix), namespace=_NAMESPACE)  # noqa: SLF001
        return [bytes(key).decode().removeprefix(self._prefix) for key in found]

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()


class StoredTerm:
    """A term: the time in which one process may write the state of a fleet. Thread-safe.

    Ray runs one actor with the coordinator's name. But an actor that is cut off may live on after the next
    actor has begun. When it reaches the store again, it finds the next term there, and does nothing more.
    """

    def __init__(self, store: KeyValueStore, clock: Clock, first: int = 1) -> None:
        """Begins the next term, with a number of at least `first`. Raises OSError and Deposed."""
        self._store = store
        self._clock = clock
        # Guards `_checked_ns` and `_is_over`.
        self._lock = threading.Lock()
        # The time of the last look at the terms; None before the first.
        self._checked_ns: int | None = None
        self._is_over = False
        self._mark = uuid.uuid4().hex
        self.number = self._claimed(first)
        self._store.put(self._marked(), "")
        # Checked after the claim, because the claim may have taken effect late. By then a later term may have
        # removed the key of this number, so that the number was free again.
        self.check()

    @property
    def order_min(self) -> int:
        """The lowest order of a grant in this term. It is above each order of an earlier term."""
        return self.number << _ORDER_BITS

    @property
    def is_over(self) -> bool:
        """True once a look has found a later term, or has found this term deleted. Never False again."""
        with self._lock:
            return self._is_over

    def check(self) -> None:
        """Looks at the terms. Raises Deposed if a later term has begun or this term was deleted, and OSError."""
        now_ns = self._clock.now_ns()
        keys = self._store.keys(f"{_TERMS}/")
        is_over = self._marked() not in keys or any(row > self.number for row in _numbers_in(keys))
        with self._lock:
            self._checked_ns = now_ns
            self._is_over = self._is_over or is_over
            is_over = self._is_over
        if is_over:
            raise Deposed(
                f"another coordinator of this fleet has begun after term {self.number}, or the term was "
                "deleted from the store"
            )

    def is_valid(self) -> bool:
        """True if no later term had begun at the last look, which is at most _VALID_SECONDS ago.

        Looks again if the last look is older. False if the store does not answer.
        """
        with self._lock:
            if self._is_over:
                return False
            checked_ns = self._checked_ns
        if checked_ns is not None and seconds_since(self._clock, checked_ns) < _VALID_SECONDS:
            return True
        try:
            self.check()
        except (Deposed, OSError):
            return False
        return True

    def remove_old(self, name: str) -> None:
        """Removes the keys `NAME/TERM` of old terms. Call it after this term has written its own key.

        Raises OSError.
        """
        for key in self._store.keys(f"{name}/"):
            number = key.rpartition("/")[2].partition(_MARK)[0]
            if number.isdecimal() and int(number) < self.number - _KEPT_TERMS:
                self._store.remove(key)

    def _claimed(self, first: int) -> int:
        """Claims a number above the numbers of all terms in the store."""
        while True:
            number = max([first, *(found + 1 for found in _numbers(self._store, _TERMS))])
            if self._store.put(f"{_TERMS}/{number}", "", is_new=True):
                return number

    def _marked(self) -> str:
        return f"{_TERMS}/{self.number}{_MARK}{self._mark}"


class StoredText:
    """A `StateStore` for one value of a fleet in one term. One thread at a time uses it."""

    def __init__(self, store: KeyValueStore, term: StoredTerm, name: str) -> None:
        self._store = store
        self._term = term
        self._name = name
        self._has_written = False

    def read(self) -> str | None:
        """See `StateStore`. Raises Deposed if a later term has begun, because its value may be another one."""
        numbers = _numbers(self._store, self._name)
        text = self._store.get(f"{self._name}/{max(numbers)}") if numbers else None
        # A later term may have removed the key between the two calls.
        self._term.check()
        return text

    def write(self, text: str) -> None:
        """See `StateStore`.

        After Deposed, either no later term reads the text, or the next term has already begun with it.
        """
        self._term.check()
        self._store.put(f"{self._name}/{self._term.number}", text)
        if not self._has_written:
            self._term.remove_old(self._name)
            self._term.remove_old(_TERMS)
            self._has_written = True
        # This check comes last: if it passes, the next term has not begun yet, and will begin with this text.
        self._term.check()


def _numbers(store: KeyValueStore, name: str) -> list[int]:
    """The numbers of the terms that have a key of this name."""
    return _numbers_in(store.keys(f"{name}/"))


def _numbers_in(keys: Iterable[str]) -> list[int]:
    found = [key.rpartition("/")[2] for key in keys]
    return [int(text) for text in found if text.isdecimal()]


@contextmanager
def _as_errors_of_the_store() -> Iterator[None]:
    """Raises OSError for any error of Ray."""
    try:
        yield
    except Exception as error:
        # Ray has no type for this error. The error means a new cluster, because a store in Redis keeps its id when it
        # comes back.
        kind = AnotherCluster if "WrongClusterID" in str(error) else OSError
        raise kind(f"Ray's key-value store does not answer: {error}") from error

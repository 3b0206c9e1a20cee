"""The state of a fleet in the key-value store of a Ray cluster, and the terms in which it is written.

The store has no compare-and-swap, but if two writers set a *new* key, only one of them succeeds. Two rules
make that enough:

1. Each term writes keys of its own, `NAME/TERM`, and begins with the value of the highest term before it.
   So no later term reads a late write of an earlier one.
2. A write ends with a look at the terms. If it returns, no later term had begun, so each later term
   begins with this value. If it raises, the writer must not act on the value.

A term has a second key with a mark of its process. If the keys are deleted, a number may come again. So a
term whose mark is gone is over.
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
# Stands before the mark in a key.
_MARK = "."

# The terms whose values stay in the store, for people and for a coordinator that is just reading.
_KEPT_TERMS = 3
# A look at the terms is valid for so long. Grants within this time need no other look.
_VALID_SECONDS = 1.0
# One term makes fewer than 268 million changes of the state. An order then has 59 bits until 2038.
_ORDER_BITS = 28


class AnotherCluster(OSError):
    """The cluster was started anew, without what it had stored. This process belongs to the earlier one."""


class Deposed(OSError):
    """Another coordinator of this fleet has begun a later term: this one must not write or act."""


class KeyValueStore:
    """The values of one fleet, by name. Any thread, in a process that is connected to the cluster."""

    def __init__(self, fleet: str) -> None:
        self._prefix = f"{fleet}/"

    def get(self, key: str) -> str | None:
        """Reads a value; None if there is none. Raises OSError."""
        # Ray's annotation leaves None out.
        value: Any
        with _as_errors_of_the_store():
            value = internal_kv._internal_kv_get(self._key(key), namespace=_NAMESPACE)  # noqa: SLF001
        return None if value is None else bytes(value).decode()

    def put(self, key: str, text: str, *, is_new: bool = False) -> bool:
        """Sets a value, and returns False if it `is_new` and another process was first. Raises OSError."""
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
    """The time in which one process may write the state of a fleet. The next term ends it. Thread-safe.

    Ray runs one actor of a name. But an actor that is cut off may live on after the next one has begun. It
    then finds the next term in the store, and does nothing more.
    """

    def __init__(self, store: KeyValueStore, clock: Clock, first: int = 1) -> None:
        """Begins the next term, with a number of at least `first`. Raises OSError and Deposed."""
        self._store = store
        self._clock = clock
        # Guards the members below.
        self._lock = threading.Lock()
        self._checked_ns: int | None = None
        self._is_over = False
        self._mark = uuid.uuid4().hex
        self.number = self._claimed(first)
        self._store.put(self._marked(), "")
        # Checked after the claim, because the claim may have come late: a number is free again once the key
        # of its term is removed.
        self.check()

    @property
    def order_min(self) -> int:
        """The lowest order of a grant in this term: above each order of an earlier term."""
        return self.number << _ORDER_BITS

    @property
    def is_over(self) -> bool:
        """True once a look has found a later term, or this one deleted. It never becomes False again."""
        with self._lock:
            return self._is_over

    def check(self) -> None:
        """Raises Deposed if a later term has begun, or this one was deleted from the store, and OSError."""
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
        """True if no later term had begun at the last look, which is at most a second old.

        False if the store does not answer.
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
        """Removes the keys of a name that no term needs any more, if this term has a key of its own.

        Raises OSError.
        """
        for key in self._store.keys(f"{name}/"):
            number = key.rpartition("/")[2].partition(_MARK)[0]
            if number.isdecimal() and int(number) < self.number - _KEPT_TERMS:
                self._store.remove(key)

    def _claimed(self, first: int) -> int:
        """Claims a number above those that are there."""
        while True:
            number = max([first, *(found + 1 for found in _numbers(self._store, _TERMS))])
            if self._store.put(f"{_TERMS}/{number}", "", is_new=True):
                return number

    def _marked(self) -> str:
        return f"{_TERMS}/{self.number}{_MARK}{self._mark}"


class StoredText:
    """A `StateStore`: one value of a fleet, written in a term. One thread at a time uses it."""

    def __init__(self, store: KeyValueStore, term: StoredTerm, name: str) -> None:
        self._store = store
        self._term = term
        self._name = name
        self._has_written = False

    def read(self) -> str | None:
        """See `StateStore`. Raises Deposed if another term may have begun with another value."""
        numbers = _numbers(self._store, self._name)
        text = self._store.get(f"{self._name}/{max(numbers)}") if numbers else None
        # A later term may have removed the key between the two calls.
        self._term.check()
        return text

    def write(self, text: str) -> None:
        """See `StateStore`.

        If it raises Deposed, either no later term reads the text, or the next one has already copied it.
        """
        self._term.check()
        self._store.put(f"{self._name}/{self._term.number}", text)
        if not self._has_written:
            self._term.remove_old(self._name)
            self._term.remove_old(_TERMS)
            self._has_written = True
        # Checked last: if this passes, the next term has yet to begin, and will begin with this text.
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
        # Ray has no type for this error. With Redis behind it, a store that comes back has the same id.
        kind = AnotherCluster if "WrongClusterID" in str(error) else OSError
        raise kind(f"Ray's key-value store does not answer: {error}") from error

"""Packages that another one imports if they are installed, and that a server never uses."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent_packages(*names: str) -> Iterator[None]:
    """Inside `with` an import of these packages fails as if they were not installed.

    A package that is imported already stays.
    """
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]

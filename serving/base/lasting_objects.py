"""Objects that stay for as long as the process: the garbage collector need not look at them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_objects() -> Iterator[None]:
    """Inside `with` nothing is searched for garbage. All that is there at its end is left out of later searches.

    For modules: a seventh of a start's processor time, and half of the exit's. Not for objects that refer to
    native ones: in a cycle these would be left at the exit, of which nanobind writes lines.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()

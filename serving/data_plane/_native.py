"""Loads the built data plane. `plane.DataPlane` is its contract."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from serving.base.tensorflow_package import installed_package, mismatch

if _mismatch := mismatch(installed_package()):
    raise ImportError(_mismatch)


@contextmanager
def _lazy_binding() -> Iterator[None]:
    """Lets functions of TensorFlow's libraries be looked up at their first call.

    There are 230,000 of them. A server calls few, and looking up all takes 0.15 s at its start.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


with _lazy_binding():
    # The names are those of the built module, which scripts/check_seam.py compares with the contract.
    from serving.data_plane._data_plane import *  # type: ignore[import-untyped]  # noqa: F403

"""Loads the ops of tensorflow-text, if it is installed, when a model first lacks an op.

TensorFlow Serving has these ops built in, so a model that uses them needs no flag there. A package that
is not installed, or is built for another TensorFlow, is ignored.
"""

import threading
from collections.abc import Callable, Sequence

import structlog

from serving.base.errors import InvalidConfig

_log = structlog.get_logger(__name__)

BUILT_IN_THERE = ("tensorflow-text",)
"""The packages whose ops TensorFlow Serving has built in; others need --op_package."""


class InstalledOps:
    """Loads each package's libraries at most once; any thread.

    `find_libraries` returns the paths of an installed package's op libraries, or raises InvalidConfig.
    """

    def __init__(self, find_libraries: Callable[[str], Sequence[str]]) -> None:
        self._find_libraries = find_libraries
        self._lock = threading.Lock()
        self._loaded: set[str] = set()
        self._ops: set[str] = set()

    def load(self, ops: Sequence[str], load_library: Callable[[str], Sequence[str]]) -> bool:
        """Loads the packages of BUILT_IN_THERE; returns True if they have any of `ops`."""
        # Loads of several models wait for each other here, so the second finds the ops registered.
        with self._lock:
            for package in BUILT_IN_THERE:
                if package not in self._loaded:
                    self._load(package, load_library)
            return not self._ops.isdisjoint(ops)

    def _load(self, package: str, load_library: Callable[[str], Sequence[str]]) -> None:
        try:
            libraries = self._find_libraries(package)
        except InvalidConfig:
            return
        self._loaded.add(package)
        for path in libraries:
            added = load_library(path)
            _log.info("op_library_loaded", path=path, ops=list(added))
            self._ops.update(added)

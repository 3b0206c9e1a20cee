"""Loads ops of packages that are installed beside the server when a model first needs them.

TensorFlow Serving has the ops of tensorflow-text built in, so a model that uses them needs no flag
there. Packages that are not installed, or are built for another TensorFlow, are ignored.
"""

import threading
from collections.abc import Callable, Sequence
from importlib import metadata

import structlog

from serving.base.errors import InvalidConfig
from serving.config.op_library_files import op_libraries_of
from serving.loading.op_packages import package_of

_log = structlog.get_logger(__name__)

BUILT_IN_THERE = frozenset({"tensorflow-text"})
"""The packages whose ops TensorFlow Serving has built in; others need --op_package."""


def installed_op_libraries(package: str) -> tuple[str, ...]:
    """Returns the op libraries of a package for the TensorFlow that runs. Raises InvalidConfig."""
    return op_libraries_of(package, tensorflow_version=metadata.version("tensorflow"))


class InstalledOps:
    """Loads each package's libraries at most once; any thread.

    `find_libraries` returns the paths of an installed package's op libraries, or raises InvalidConfig.
    """

    def __init__(self, find_libraries: Callable[[str], Sequence[str]]) -> None:
        self._find_libraries = find_libraries
        self._lock = threading.Lock()
        self._tried: set[str] = set()

    def load(self, ops: Sequence[str], load_library: Callable[[str], Sequence[str]]) -> bool:
        """Loads the packages that have any of `ops`; returns True if the graph may be read again."""
        packages = {package.name for op in ops if (package := package_of(op)) is not None}
        # Loads of several models wait for each other here, so the second finds the ops registered.
        with self._lock:
            loaded = [self._load(name, load_library) for name in packages & BUILT_IN_THERE]
        return any(loaded)

    def _load(self, package: str, load_library: Callable[[str], Sequence[str]]) -> bool:
        if package in self._tried:
            return True
        try:
            libraries = self._find_libraries(package)
        except InvalidConfig:
            return False
        self._tried.add(package)
        for path in libraries:
            _log.info("op_library_loaded", path=path, ops=list(load_library(path)))
        return True

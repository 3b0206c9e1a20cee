"""Modules that are imported when they are first used, so that a start does not wait for them."""

import importlib
from typing import Any


class DeferredModule:
    """Stands for a module and imports it when its first attribute is read. Thread-safe.

    Each attribute is looked up once, so that later reads cost what a module's own cost.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        _deferred.append(self)

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        self.__dict__[attribute] = value
        return value

    def load(self) -> None:
        """Imports the module now."""
        importlib.import_module(self._name)


_deferred: list[DeferredModule] = []


def load_deferred_modules() -> None:
    """Imports all deferred modules.

    A server calls this before it opens a port. Otherwise the import of numpy would hold the interpreter
    for 70 ms during the first swap, while requests over HTTP wait for it. And it would fail if clients
    have taken all descriptors by then.
    """
    for module in _deferred:
        module.load()

"""Lets the tests import `tests` wherever pytest is started, and compiles protos/."""

import gc
import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

REPOSITORY = str(Path(__file__).parents[1])

if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

# Compiles protos/ if it has changed, so that the unit tests need no build.
subprocess.run(["cmake", "-P", f"{REPOSITORY}/cmake/protos.cmake"], check=True)

# An example may take any time: a unit test holds on a machine of any speed. Each run has the same examples,
# so that a run fails for a change and not for luck.
settings.register_profile("fixed", deadline=None, derandomize=True)
# For `make fuzz`: new examples. Tests that count theirs in the default's number have ten times as many.
settings.register_profile("fuzz", deadline=None, max_examples=1_000)
settings.load_profile("fixed")


class LazyIriGrammar(ModuleType):
    """The checker of IRIs that jsonschema imports, and Ray with it: its grammar takes 3 s to compile."""

    @staticmethod
    def is_valid_syntax(term: str, value: str) -> bool:
        if isinstance(sys.modules[IRI_GRAMMAR], LazyIriGrammar):
            del sys.modules[IRI_GRAMMAR]
        return bool(importlib.import_module(IRI_GRAMMAR).is_valid_syntax(term, value))


IRI_GRAMMAR = "rfc3987_syntax"
if find_spec(IRI_GRAMMAR) is not None:
    sys.modules[IRI_GRAMMAR] = LazyIriGrammar(IRI_GRAMMAR)


# Searches less for garbage, which takes a sixth of the time of imports and of the unit tests.
gc.set_threshold(20_000, 50, 100)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves out of these searches what stays to the end: modules and tests."""
    del session
    gc.freeze()

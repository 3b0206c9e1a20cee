"""Tests of the check that compares the stub with the module."""

from __future__ import annotations

import check_stub
import pytest

STUB = '''
from typing import final

def initialize(*, thread_count: int) -> None:
    """Sets the pools."""

@final
class Servable:
    """One loaded version."""

    @property
    def version(self) -> int: ...
    def predict(self, request: bytes) -> bytes: ...
'''

BUILT = """
def initialize(*, thread_count: int) -> None: ...

class Servable:
    @property
    def version(self) -> int: ...

    def predict(self, request: bytes) -> bytes: ...
"""


def found(built: str) -> list[str]:
    return check_stub.differences(check_stub.signatures(STUB), check_stub.signatures(built))


def test_check_stub_ignores_docstrings_and_final() -> None:
    assert found(BUILT) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("initialize", "thread_count", "threads"),
        ("Servable.predict", "-> bytes", "-> str"),
        ("Servable.version", "@property\n", "\n"),
        ("Servable.predict", "    def predict(self, request: bytes) -> bytes: ...\n", ""),
        ("Extra", "class Servable:", "class Extra: ...\nclass Servable:"),
    ],
)
def test_check_stub_other_signature_is_a_difference(name: str, old: str, new: str) -> None:
    (difference,) = found(BUILT.replace(old, new))

    assert difference.startswith(f"{name}:")

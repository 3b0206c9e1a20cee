"""Tests of the check that compares the seam's contract with the built module."""

from __future__ import annotations

from types import SimpleNamespace

import check_seam
import pytest

PLANE = '''
class DataPlane(Protocol):
    """The module."""

    @property
    def StatusError(self) -> type[Exception]: ...
    def initialize(self, *, thread_count: int) -> None:
        """Sets the pools."""

    def Load(self, name: str, tags: Sequence[str] = ()) -> loads.Load: ...
'''

CLASSES = '''
class Step(Protocol):
    @property
    def name(self) -> str: ...

class Load(Step, Protocol):
    """One version."""

    def since(self, earlier: Any = None) -> "Load": ...
    def names(self) -> Sequence[str]: ...
'''

BUILT = """
def initialize(*, thread_count: int) -> None: ...

class Load:
    def __init__(self, name: str, tags: Sequence[str] = ()) -> None: ...
    @property
    def name(self) -> str: ...

    def since(self, earlier: Load | None = None) -> Load: ...
    def names(self) -> list[str]: ...
"""


def found(built: str) -> list[str]:
    contract = check_seam.contract_declarations([PLANE, CLASSES])
    module = check_seam.built_declarations(built) | {"StatusError": ("exception",)}
    return check_seam.differences(contract, module)


def test_check_seam_same_declarations_pass() -> None:
    assert found(BUILT) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("initialize", "thread_count", "threads"),
        ("Load.__init__", "tags: Sequence[str]", "tags: list[str]"),
        ("Load.__init__", ", tags: Sequence[str] = ()", ""),
        ("Load.names", "-> list[str]", "-> list[int]"),
        ("Load.name", "@property\n", "\n"),
        ("Load.since", "earlier: Load", "later: Load"),
        ("Load.since", "= None", "= 1"),
        ("Load.names", "    def names(self) -> list[str]: ...\n", ""),
        ("Extra", "class Load:", "class Extra: ...\nclass Load:"),
    ],
)
def test_check_seam_other_signature_is_found(name: str, old: str, new: str) -> None:
    (difference,) = found(BUILT.replace(old, new))

    assert difference.startswith(f"{name}:")


@pytest.mark.parametrize(
    ("docstring", "unnamed"),
    [
        ("One version.", ["DataPlane", "Load"]),
        ("One version. Thread: any.", ["DataPlane"]),
        ("One version, by this\n\n    Thread: one at a time.", ["DataPlane"]),
        ("One version. A value.", ["DataPlane"]),
    ],
)
def test_check_seam_unnamed_threads_are_found(docstring: str, unnamed: list[str]) -> None:
    # `Step` is only extended: the module makes none.
    classes = CLASSES.replace("One version.", docstring)

    assert check_seam.without_threads([PLANE, classes]) == unnamed


def test_check_seam_missing_error_is_found() -> None:
    contract = check_seam.contract_declarations([PLANE, CLASSES])
    module = check_seam.built_declarations(BUILT)

    (difference,) = check_seam.differences(contract, module)

    assert difference.startswith("StatusError:")


VALUES = '''
MODES = ("idle", "busy")
LIMIT = 3

@dataclass(frozen=True)
class Options:
    """The options of a load."""

    tags: Sequence[str]
    """Which graph."""

    pool: pools.Pool | None = None
    modes: Mapping[str, int] = field(default_factory=dict)
'''
LOWER_VALUES = """
@dataclass(frozen=True)
class Unrelated:
    name: str
"""
TAGS = "@collections.abc.Sequence@list@[str]"
FIELDS = {"tags": TAGS, "pool": "Pool | None", "modes": "@collections.abc.Mapping@dict@[str, int]"}


def differing_values(
    fields: dict[str, str], modes: tuple[str, ...] = ("idle", "busy")
) -> list[str]:
    module = SimpleNamespace(value_fields={"Options": fields}, enum_names={"MODES": modes})
    return check_seam.value_differences(
        check_seam.contract_values([VALUES]),
        check_seam.built_values(module),
        lower=check_seam.contract_values([LOWER_VALUES]),
    )


def test_check_seam_same_values_pass() -> None:
    assert differing_values(FIELDS) == []


@pytest.mark.parametrize(
    "fields",
    [
        FIELDS | {"depth": "int"},
        {name: FIELDS[name] for name in ("tags", "modes")},
        {name: FIELDS[name] for name in ("pool", "tags", "modes")},
        FIELDS | {"tags": "str"},
    ],
    ids=["added", "missing", "moved", "other type"],
)
def test_check_seam_other_field_is_found(fields: dict[str, str]) -> None:
    (difference,) = differing_values(fields)

    assert difference.startswith("Options:")


def test_check_seam_otherenum_names_are_found() -> None:
    (difference,) = differing_values(FIELDS, ("busy", "idle"))

    assert difference.startswith("MODES:")


def test_check_seam_value_without_a_struct_is_found() -> None:
    module = SimpleNamespace(value_fields={}, enum_names={})

    (difference,) = check_seam.value_differences(
        check_seam.contract_values([VALUES]), check_seam.built_values(module), lower={}
    )

    assert difference.startswith("Options:")

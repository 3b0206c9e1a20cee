"""Checks the seam's Protocols against the built data plane, as the binder describes it.

Usage: check_seam.py

The contract is `serving/data_plane/`: a method of `DataPlane` is a function of the built module, or
makes an object of the class of that name, which is a Protocol beside it. Every class, function,
property and signature must be the same on both sides. A contract may promise less than the module
gives: `Sequence` for `list`, `Mapping` for `dict`, and `Any` for an argument, because a test's data
plane takes only its own objects. (mypy's stubtest cannot do this: nanobind's functions have no
inspectable signature.)

A value crosses as a dataclass of the contract. It must have the fields that the module's
`value_fields` lists, in that order and with these types. The names of an enumeration cross as
texts, which a constant of the contract lists as the module's `enum_names` does. The datatypes of the
open inference protocol are those of `serving.kserve.documents`. Each Protocol of the contract says which
threads may call it.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from serving.kserve.documents import DATATYPES

SERVING = Path(__file__).parent.parent / "serving"
CONTRACT = tuple(sorted((SERVING / "data_plane").glob("[!_]*.py")))
# Values that rooms below the seam declare.
LOWER_VALUES = (SERVING / "base" / "trace_context.py", SERVING / "core" / "servable.py")
MODULE = "serving.data_plane._native"
# The module that the contract describes and that MODULE re-exports.
BUILT_MODULE = "serving.data_plane._data_plane"
PLANE = "DataPlane"

Declaration = tuple[str, ...]
"""The decorators and the result of a function, and after them each argument with its type and default."""

_WIDER_RESULTS = (("list[", "Sequence["), ("dict[", "Mapping["))


def contract_declarations(sources: Sequence[str]) -> dict[str, Declaration]:
    """The declarations of the contract, under the names that the built module gives them."""
    classes = _protocols(sources)
    found: dict[str, Declaration] = {}
    for member in _functions(classes[PLANE]):
        if member.name in classes:
            found[f"{member.name}.__init__"] = _declaration(member, result="None")
        elif "Exception" in ast.unparse(member.returns or ast.Constant("")):
            found[member.name] = ("exception",)
        else:
            found[member.name] = _declaration(member)
    for name in _made(classes) - {PLANE}:
        found[name] = ("class",)
        found |= {f"{name}.{m.name}": _declaration(m) for m in _members(classes, name)}
    return found


def _protocols(sources: Sequence[str]) -> dict[str, ast.ClassDef]:
    return {
        statement.name: statement
        for source in sources
        for statement in ast.parse(source).body
        if isinstance(statement, ast.ClassDef) and "Protocol" in _base_names(statement)
    }


def _made(classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """The Protocols of objects that a module makes: no other Protocol extends them."""
    extended = {base for statement in classes.values() for base in _base_names(statement)}
    return classes.keys() - extended


def without_threads(sources: Sequence[str]) -> list[str]:
    """The Protocols with methods whose docstring does not say which threads may call them.

    A value may be read by any thread, and says that it is one.
    """
    classes = _protocols(sources)
    return [
        name
        for name in sorted(_made(classes))
        if any(_members(classes, name))
        and not re.search(r"\bThread: |\bA value\b", ast.get_docstring(classes[name]) or "")
    ]


def contract_values(sources: Sequence[str]) -> dict[str, Declaration]:
    """Returns the fields of each dataclass of the contract, and the texts of each constant."""
    found: dict[str, Declaration] = {}
    for statement in (part for source in sources for part in ast.parse(source).body):
        if isinstance(statement, ast.ClassDef) and _is_dataclass(statement):
            fields = (part for part in statement.body if isinstance(part, ast.AnnAssign))
            found[statement.name] = tuple(
                f"{ast.unparse(part.target)}: {_unqualified(ast.unparse(part.annotation))}"
                for part in fields
            )
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
            found[ast.unparse(statement.targets[0])] = tuple(
                str(ast.literal_eval(part)) if isinstance(part, ast.Constant) else ast.unparse(part)
                for part in statement.value.elts
            )
    return found


def _is_dataclass(statement: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in statement.decorator_list)


def built_values(module: Any) -> dict[str, Declaration]:
    """Returns the fields of each value, and the names of each enumeration, of a built module."""
    values: dict[str, Declaration] = {
        name: tuple(f"{field}: {_field_type(type_)}" for field, type_ in fields.items())
        for name, fields in module.value_fields.items()
    }
    names: dict[str, Declaration] = module.enum_names
    return values | names


def _field_type(text: str) -> str:
    """Returns nanobind's text for a type as the contract has it."""
    # Where arguments and results have different types, nanobind's text is @argument@result@.
    text = re.sub(r"@([^@]*)@[^@]*@", r"\1", text)
    return text.replace("collections.abc.", "")


def value_differences(
    contract: Mapping[str, Declaration],
    built: Mapping[str, Declaration],
    lower: Mapping[str, Declaration],
) -> list[str]:
    """Returns one text for each value or list of names that differs on both sides.

    `lower` are those of rooms below the contract, of which the module need not have all. Neither
    need it have a constant of the contract.
    """
    values = {name for name in contract if not name.isupper()}
    declared = {**lower, **contract}
    return [
        f"{name}:\n    contract: {declared.get(name, 'absent')}\n    module:   {built.get(name, 'absent')}"
        for name in sorted(values | built.keys())
        if declared.get(name) != built.get(name)
    ]


def _members(classes: Mapping[str, ast.ClassDef], name: str) -> Iterator[ast.FunctionDef]:
    """Yields the members of a Protocol, and of those that it extends."""
    for base in _base_names(classes[name]):
        if base in classes:
            yield from _members(classes, base)
    yield from _functions(classes[name])


def built_declarations(stub: str) -> dict[str, Declaration]:
    """The declarations in nanobind's stub of a built module."""
    found: dict[str, Declaration] = {}
    for statement in ast.parse(stub).body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = _declaration(statement, has_self=False)
        elif isinstance(statement, ast.ClassDef):
            found[statement.name] = ("class",)
            found |= {f"{statement.name}.{m.name}": _declaration(m) for m in _functions(statement)}
    return found


def _functions(statement: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (member for member in statement.body if isinstance(member, ast.FunctionDef))


def _base_names(statement: ast.ClassDef) -> list[str]:
    return [ast.unparse(base) for base in statement.bases]


def _declaration(
    function: ast.FunctionDef, *, has_self: bool = True, result: str | None = None
) -> Declaration:
    if result is None:
        result = ast.unparse(function.returns) if function.returns else "?"
    for narrow, wide in _WIDER_RESULTS:
        result = result.replace(narrow, wide)
    decorators = "".join(f"@{ast.unparse(decorator)} " for decorator in function.decorator_list)
    arguments = ast.unparse(function.args)
    split = [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", arguments) if part.strip()]
    return (
        f"{decorators}-> {_unqualified(result)}",
        *(_unqualified(part) for part in split[1 if has_self else 0 :]),
    )


def _unqualified(text: str) -> str:
    """Types as the built module names them, without modules of the contract and quotes."""
    return re.sub(r"\b[a-z_]+\.(?=[A-Z])|'", "", text)


def differences(contract: Mapping[str, Declaration], built: Mapping[str, Declaration]) -> list[str]:
    """One text for each name whose declarations differ."""
    return [
        f"{name}:\n    contract: {_text(contract.get(name))}\n    module:   {_text(built.get(name))}"
        for name in sorted(contract.keys() | built.keys())
        if not _agree(contract.get(name), built.get(name))
    ]


def _agree(contract: Declaration | None, built: Declaration | None) -> bool:
    if contract is None or built is None or len(contract) != len(built):
        return False
    return all(map(_parts_agree, contract, built))


def _parts_agree(contract: str, built: str) -> bool:
    """True if both parts are the same, except for an argument's type that the contract leaves open."""
    name, colon, declared = contract.partition(": ")
    if colon and declared.partition("=")[0].strip() == "Any":
        default = declared.partition("=")[2].strip()
        return built.startswith(f"{name}: ") and built.partition("=")[2].strip() == default
    return contract == built


def _text(declaration: Declaration | None) -> str:
    if declaration is None:
        return "absent"
    result, *arguments = declaration
    return f"({', '.join(arguments)}) {result}"


def stub_of_module(module: ModuleType) -> str:
    """The stub that nanobind writes for a module that it built."""
    from nanobind.stubgen import StubGen

    generator = StubGen(module=module)
    generator.put(module)
    stub: str = generator.get()
    return stub


def exceptions_of(module: ModuleType) -> dict[str, Declaration]:
    """The exceptions of a built module under MODULE's name, which nanobind's stub leaves
    out.
    """
    return {
        name: ("exception",)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == MODULE
    }


def main() -> int:
    # Imported first, because it loads the libraries that the built module needs.
    given_out = importlib.import_module(MODULE)
    sources = _texts(CONTRACT)
    contract = contract_declarations(sources)
    built_module = importlib.import_module(BUILT_MODULE)
    built = built_declarations(stub_of_module(built_module)) | exceptions_of(built_module)
    found = differences(contract, built)
    found += value_differences(
        contract_values(sources),
        built_values(built_module),
        lower=contract_values(_texts(LOWER_VALUES)),
    )
    if built_module.infer_datatypes != DATATYPES:
        found.append(f"infer_datatypes: {built_module.infer_datatypes} differs from {DATATYPES}")
    found += [f"{name}: its docstring names no thread" for name in without_threads(sources)]
    found += [f"{name}: not exported by {MODULE}" for name in missing(built, given_out)]
    for difference in found:
        print(f"{SERVING / 'data_plane'}: {difference}", file=sys.stderr)
    return 1 if found else 0


def _texts(paths: Iterable[Path]) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in paths]


def missing(built: Mapping[str, Declaration], module: ModuleType) -> list[str]:
    """The top-level names of the built module that `module` lacks."""
    return [name for name in built if "." not in name and not hasattr(module, name)]


if __name__ == "__main__":
    sys.exit(main())

"""Checks _native.pyi against the built data plane, as the binder describes it.

Usage: check_stub.py

Every class, function, property and signature must be the same on both sides. Only the stub has
documentation and `@final`. (mypy's stubtest cannot do this: nanobind's functions have no
inspectable signature.)
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

STUB = Path(__file__).parent.parent / "serving" / "data_plane" / "_native.pyi"
MODULE = "serving.data_plane._native"
# The module that the stub describes and that MODULE re-exports.
BUILT_MODULE = "serving.data_plane._data_plane"


def signatures(stub: str) -> dict[str, str]:
    """Returns the declaration of each qualified name of a stub, as a line without documentation."""
    return dict(_signatures(ast.parse(stub).body, ""))


def _signatures(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            bases = ", ".join(ast.unparse(base) for base in statement.bases)
            yield f"{prefix}{statement.name}", f"class {statement.name}({bases})"
            yield from _signatures(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef):
            yield f"{prefix}{statement.name}", _signature_line(statement)


def _signature_line(function: ast.FunctionDef) -> str:
    decorators = "".join(f"@{ast.unparse(decorator)} " for decorator in function.decorator_list)
    returns = ast.unparse(function.returns) if function.returns else "?"
    return f"{decorators}def {function.name}({ast.unparse(function.args)}) -> {returns}"


def differences(written: dict[str, str], built: dict[str, str]) -> list[str]:
    """Returns one text for each name whose declarations in stub and module differ."""
    return [
        f"{name}:\n    stub:   {written.get(name, 'absent')}\n    module: {built.get(name, 'absent')}"
        for name in sorted(written.keys() | built.keys())
        if written.get(name) != built.get(name)
    ]


def stub_of_module(module: ModuleType) -> str:
    """Returns the stub that nanobind writes for a module that it built."""
    from nanobind.stubgen import StubGen

    generator = StubGen(module=module)
    generator.put(module)
    stub: str = generator.get()
    return stub


def exceptions_of(module: ModuleType) -> dict[str, str]:
    """Returns the exceptions of a built module under MODULE's name, which nanobind's stub leaves
    out.
    """
    return {
        name: f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == MODULE
    }


def main() -> int:
    # First, because it loads the libraries that the built module needs.
    given_out = importlib.import_module(MODULE)
    written = signatures(STUB.read_text(encoding="utf-8"))
    built_module = importlib.import_module(BUILT_MODULE)
    built = signatures(stub_of_module(built_module)) | exceptions_of(built_module)
    found = differences(written, built)
    found += [f"{name}: not exported by {MODULE}" for name in missing(written, given_out)]
    for difference in found:
        print(f"{STUB}: {difference}", file=sys.stderr)
    return 1 if found else 0


def missing(written: dict[str, str], module: ModuleType) -> list[str]:
    """Returns the top-level names of the stub that are missing in `module`."""
    return [name for name in written if "." not in name and not hasattr(module, name)]


if __name__ == "__main__":
    sys.exit(main())

"""Checks the order of native/ and of the Python packages, and the imports between tests.

A rung of native/ includes only itself and the rungs below it, and not its siblings. Only one rung
includes a foreign world: jemalloc, TensorFlow, nghttp2 and llhttp with OpenSSL and epoll, or the binder. base
includes zlib too, and so do rest and rpc, which compress. No rung includes gRPC: only the load
generator does. No units of native/ include one another in a circle; a unit is a header with its
source file.

A room of serving/, fleet/ or loadtest/ imports only itself and the rooms below it; warmup/ has a place
among the rooms of serving/. A package imports no package above it, and fleet/ only those rooms of
serving/ that have to do with it. No modules import one another in a circle. An import inside a
function counts too, because it would only hide the circle until the function runs.

No file below tests/ imports a test file: what test files share is in modules beside them.

Usage: check_ladder.py [REPOSITORY]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

# From the lowest to the highest.
RUNGS = (
    "base",
    "metrics",
    "memory",
    "pjrt",
    "tensor",
    "servable",
    "inference",
    "rpc",
    "rest",
    "tf",
    "python",
)

# The rungs that stand beside a rung and not below it, so that it must not include them either. What
# answers requests and what runs a model meet in servable/ alone.
SIBLINGS = {"tf": frozenset({"inference", "rpc", "rest"})}

# The rooms of each Python package, from the lowest to the highest.
SERVING_ROOMS = (
    "base",
    "core",
    "warmup",
    "client",
    "data_plane",
    "request_log",
    "gates",
    "loading",
    "source",
    "storage",
    "manager",
    "config",
    "reload",
    "rpc",
    "http",
    "rest",
    "kserve",
    "monitoring",
    "supervisor",
    "server",
    "commands",
)
FLEET_ROOMS = (
    "rollout",
    "replicas",
    "files",
    "config",
    "lead",
    "http",
    "kubernetes",
    "service",
    "ray",
    "commands",
)
ROOMS = {
    "serving": SERVING_ROOMS,
    "fleet": FLEET_ROOMS,
    "loadtest": ("plan", "drive", "measure", "report", "commands"),
}

# A package that stands among the rooms of another one, because rooms above it need it, and it needs rooms
# below it.
PACKAGES_AS_ROOMS = {"warmup": "serving"}

# From the lowest to the highest. The packages of one row are ordered by ROOMS.
PACKAGES = (("serving", "warmup"), ("fleet",), ("millpond",), ("loadtest",))

# The rooms that a fleet shares with a server. It reaches all else of a server over the network.
SERVING_ROOMS_OF_FLEET = frozenset(
    {
        "base",
        "client",
        "commands",
        "config",
        "core",
        "gates",
        "http",
        "manager",
        "monitoring",
        "server",
    }
)

# Above the rooms: the package itself and `python -m PACKAGE`, which may import every room.
ABOVE_ROOMS = frozenset({"__init__.py", "__main__.py"})

# Beside the ladder: programs that may include every rung.
BESIDE = frozenset({"bench", "load_generator"})

# The start of an included path, and the rungs that may include it.
FOREIGN_WORLDS = {
    "jemalloc/": {"memory"},
    "tensorflow/": {"tf"},
    "tsl/": {"tf"},
    "xla/": {"pjrt", "tf"},
    "absl/": {"tf"},
    "Eigen/": {"tf"},
    "unsupported/Eigen/": {"tf"},
    "google/protobuf/": {"tf"},
    "tensorflow_serving/": {"tf"},
    "llhttp/": {"rpc"},
    "nghttp2/": {"rpc"},
    "openssl/": {"rpc"},
    "sys/epoll.h": {"rpc"},
    "grpc/": set[str](),
    "grpcpp/": set[str](),
    "nanobind/": {"python"},
    "zlib.h": {"base", "rest", "rpc"},
    "Python.h": {"python"},
}

SOURCE_SUFFIXES = frozenset({".h", ".hpp", ".cc", ".cpp"})
INCLUDE = re.compile(r"""^\s*#\s*include\s*[<"]([^>"]+)[>"]""")


class Violation(NamedTuple):
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def rung_of_include(included: str) -> str | None:
    """The rung of a path like `tf/device.h` or `native/tf/device.h`; None for other
    paths.
    """
    first, _, rest = included.removeprefix("native/").partition("/")
    return first if rest and first in RUNGS else None


def problem_with(rung: str, included: str) -> str | None:
    """The rule that a file of `rung` breaks by including `included`, or None."""
    if ".." in Path(included).parts:
        return f"'{included}' leaves its folder: give the path from native/"
    other = rung_of_include(included)
    if other is not None:
        if RUNGS.index(other) > RUNGS.index(rung):
            return f"{rung} includes '{included}', but {other} is above it"
        if other in SIBLINGS.get(rung, ()):
            return f"{rung} includes '{included}', but {other} is beside it"
        return None
    for prefix, allowed in FOREIGN_WORLDS.items():
        if included.startswith(prefix) and rung not in allowed:
            who = f"only {' and '.join(sorted(allowed))}" if allowed else "no rung"
            return f"{rung} includes '{included}', which {who} may include"
    return None


def includes_of(source: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1]


def check_file(source: Path, rung: str) -> Iterator[Violation]:
    for line, included in includes_of(source):
        message = problem_with(rung, included)
        if message is not None:
            yield Violation(source, line, message)


def check_ladder(native: Path) -> list[Violation]:
    """Finds every violation below `native`, in the order of the paths."""
    violations: list[Violation] = []
    for source in sorted(native.rglob("*")):
        if source.suffix not in SOURCE_SUFFIXES:
            continue
        rung = source.relative_to(native).parts[0]
        if rung in BESIDE:
            continue
        if rung not in RUNGS:
            violations.append(Violation(source, 1, f"'{rung}' is not a rung: {' < '.join(RUNGS)}"))
            continue
        violations.extend(check_file(source, rung))
    return violations


@cache
def import_nodes(source: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file. Each file is looked at by several checks."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def includes_between_units(native: Path) -> dict[str, dict[str, Violation]]:
    """The units that each unit below `native` includes, each with the place."""
    units: dict[str, dict[str, Violation]] = {}
    for source in sorted(native.rglob("*")):
        if source.suffix not in SOURCE_SUFFIXES:
            continue
        unit = source.relative_to(native).with_suffix("").as_posix()
        includes = units.setdefault(unit, {})
        for line, included in includes_of(source):
            other = included.removeprefix("native/")
            name = other.rpartition(".")[0]
            if name != unit and (native / other).is_file():
                includes.setdefault(name, Violation(source, line, included))
    return units


def circles_of(imports: Mapping[str, Mapping[str, Violation]], kind: str) -> list[Violation]:
    """Finds each import that closes a circle. `imports` has the imports of each unit or module."""
    violations: list[Violation] = []
    done: set[str] = set()

    def visit(unit: str, way: tuple[str, ...]) -> None:
        if unit in done:
            return
        for other, (source, line, included) in imports.get(unit, {}).items():
            if other in way:
                circle = " → ".join([*way[way.index(other) :], other])
                message = f"'{included}' closes a circle of {kind}: {circle}"
                violations.append(Violation(source, line, message))
            else:
                visit(other, (*way, other))
        done.add(unit)

    for unit in imports:
        visit(unit, (unit,))
    return violations


def check_cycles(native: Path) -> list[Violation]:
    """Finds a violation for each include that closes a circle of units below `native`."""
    return circles_of(includes_between_units(native), "units")


def imports_between_modules(repository: Path) -> dict[str, dict[str, Violation]]:
    """The modules that each module of the packages imports, each with the place.

    An import inside a function counts like one at the top.
    """
    sources = {
        ".".join(source.relative_to(repository).with_suffix("").parts).removesuffix(
            ".__init__"
        ): source
        for names in PACKAGES
        for package in names
        for source in sorted((repository / package).rglob("*.py"))
    }
    modules: dict[str, dict[str, Violation]] = {}
    for module, source in sources.items():
        imports = modules.setdefault(module, {})
        for line, name in names_imported(source):
            other = name if name in sources else name.rpartition(".")[0]
            if other in sources and other != module:
                imports.setdefault(other, Violation(source, line, other))
    return modules


def check_import_circles(repository: Path) -> list[Violation]:
    """Finds a violation for each import that closes a circle of Python modules."""
    return circles_of(imports_between_modules(repository), "modules")


def imports_of(source: Path, packages: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields the line and the dotted name of each module of `packages` that `source` imports."""
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif node.module in packages:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            modules = [node.module or ""]
        yield from ((node.lineno, name) for name in modules if name.partition(".")[0] in packages)


def sources_of_rooms(package: Path) -> Iterator[tuple[Path, str]]:
    """Yields each file of a package, and of the packages that stand among its rooms, with its room."""
    for source in sorted(package.rglob("*.py")):
        room = source.relative_to(package).parts[0]
        if room not in ABOVE_ROOMS:
            yield source, room.removesuffix(".py")
    for name in packages_among_rooms(package.name):
        yield from ((source, name) for source in sorted((package.parent / name).rglob("*.py")))


def packages_among_rooms(package: str) -> list[str]:
    return [name for name, home in PACKAGES_AS_ROOMS.items() if home == package]


def check_rooms(package: Path) -> list[Violation]:
    """Finds every violation below `package`, in the order of the paths."""
    rooms = ROOMS[package.name]
    violations: list[Violation] = []
    for source, room in sources_of_rooms(package):
        if room not in rooms:
            violations.append(Violation(source, 1, f"'{room}' is not a room: {' < '.join(rooms)}"))
            continue
        for line, module in imports_of(source, [package.name, *packages_among_rooms(package.name)]):
            first, _, rest = module.partition(".")
            other = rest.partition(".")[0] if first == package.name else first
            if other and other not in rooms:
                message = f"{room} imports '{module}', which is not in a room"
                violations.append(Violation(source, line, message))
            elif other and rooms.index(other) > rooms.index(room):
                message = f"{room} imports '{module}', but {other} is above it"
                violations.append(Violation(source, line, message))
    return violations


def problem_of_package(package: str, imported: str) -> str | None:
    """The rule that a file of `package` breaks by importing `imported`, or None."""
    rows = {name: row for row, names in enumerate(PACKAGES) for name in names}
    other, _, rest = imported.partition(".")
    if rows.get(other, -1) > rows[package]:
        return f"{package} imports '{imported}', but {other} is above it"
    if (package, other) == ("fleet", "serving"):
        room = rest.partition(".")[0]
        if room not in SERVING_ROOMS_OF_FLEET:
            return f"fleet imports '{imported}', which belongs to a server alone"
    return None


def check_packages(repository: Path) -> list[Violation]:
    """Finds each import of a package above, and of a room of serving/ that a fleet must not know."""
    return [
        Violation(source, line, message)
        for names in PACKAGES
        for package in names
        for source in sorted((repository / package).rglob("*.py"))
        for line, name in names_imported(source)
        if (message := problem_of_package(package, name)) is not None
    ]


def names_imported(source: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the dotted name of everything that `source` imports."""
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def check_tests(tests: Path) -> list[Violation]:
    """Finds every import of a test file below `tests`, in the order of the paths."""
    return [
        Violation(source, line, f"'{name}' is in a test file; move it to a module beside")
        for source in sorted(tests.rglob("*.py"))
        for line, name in names_imported(source)
        if re.match(r"tests\.(.+\.)?test_", name)
    ]


def main(arguments: list[str]) -> int:
    repository = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    missing = [name for name in ("native", "serving") if not (repository / name).is_dir()]
    if missing:
        print(f"check_ladder.py: {repository} has no folder {missing[0]}", file=sys.stderr)
        return 2
    violations = check_ladder(repository / "native") + check_cycles(repository / "native")
    for package in ROOMS:
        violations += check_rooms(repository / package)
    violations += check_packages(repository) + check_import_circles(repository)
    violations += check_tests(repository / "tests")
    for violation in violations:
        print(violation, file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

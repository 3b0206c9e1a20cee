"""The TensorFlow package that the native module is compiled against.

Its C++ libraries promise nothing from one minor version to the next, so another minor version is
refused before the module is loaded: its symbols may be missing, or may have another layout.

The package is `tensorflow`, or `tensorflow-cpu`, which has the same libraries without code for GPUs. Both
put their files into the same directory, so only one of them can be installed.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

MINOR_VERSION = "2.21"
NAMES = ("tensorflow", "tensorflow-cpu")

_VERSIONS = ">=2.21,<2.22"
REQUIREMENT = f"tensorflow{_VERSIONS}"


class Package(NamedTuple):
    """An installed package, by the name that pip knows."""

    name: str
    version: str


def installed_package() -> Package | None:
    """The installed TensorFlow package; None if no package is installed."""
    for name in NAMES:
        try:
            return Package(name, version(name))
        except PackageNotFoundError:
            pass
    return None


def installed_version() -> str | None:
    """The version of the installed TensorFlow package; None if no package is installed."""
    package = installed_package()
    return package.version if package is not None else None


def mismatch(installed: Package | None) -> str:
    """The reason why the module cannot run with TensorFlow `installed`, and the command that mends it.

    "" if it can. Pure.
    """
    if installed is None:
        return f"tensorflow is not installed: pip install '{REQUIREMENT}'"
    if installed.version.split(".")[:2] == MINOR_VERSION.split("."):
        return ""
    return (
        f"{installed.name} {installed.version} is installed, but this package needs {MINOR_VERSION}: "
        f"pip install '{installed.name}{_VERSIONS}'"
    )

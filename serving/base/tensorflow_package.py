"""The TensorFlow package that the native module is compiled against.

Its C++ libraries promise nothing from one minor version to the next, so another minor version is
refused before the module is loaded: its symbols may be missing, or may have another layout.
"""

from importlib.metadata import PackageNotFoundError, version

MINOR_VERSION = "2.21"
REQUIREMENT = "tensorflow>=2.21,<2.22"
MENDED_BY = f"pip install '{REQUIREMENT}'"

# tensorflow-cpu has the same libraries, without code for GPUs.
_NAMES = ("tensorflow", "tensorflow-cpu")


def installed_version() -> str | None:
    """Returns the version of the installed TensorFlow package; None if no package is installed."""
    for name in _NAMES:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return None


def mismatch(installed: str | None) -> str:
    """Returns why the module cannot run with TensorFlow `installed`, and the command that mends it.

    Returns "" if it can. Pure.
    """
    if installed is None:
        return f"tensorflow is not installed: {MENDED_BY}"
    if installed.split(".")[:2] == MINOR_VERSION.split("."):
        return ""
    return (
        f"tensorflow {installed} is installed, but this package needs {MINOR_VERSION}: {MENDED_BY}"
    )

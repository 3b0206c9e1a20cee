"""The PJRT plugin of the tests, which XLA's authors have on PyPI."""

from importlib.util import find_spec
from pathlib import Path


def plugin_path() -> Path:
    """The plugin of the package xla-cpu-pjrt."""
    spec = find_spec("xla_plugins.xla_cpu_pjrt")
    assert spec is not None
    folders = spec.submodule_search_locations
    assert folders
    return Path(folders[0]) / "xla_cpu_pjrt.so"

"""The PJRT plugins of the tests: one that XLA's authors have on PyPI, and those around it that fail or differ."""

import subprocess
from importlib.util import find_spec
from pathlib import Path


def plugin_path() -> Path:
    """The plugin of the package xla-cpu-pjrt."""
    spec = find_spec("xla_plugins.xla_cpu_pjrt")
    assert spec is not None
    folders = spec.submodule_search_locations
    assert folders
    return Path(folders[0]) / "xla_cpu_pjrt.so"


def compiled_plugin(source: Path, directory: Path) -> Path:
    """Compiles a plugin, which passes calls on to another one, into `directory`. Imports TensorFlow."""
    import tensorflow as tf

    library = directory / f"{source.stem}.so"
    include = f"-I{tf.sysconfig.get_include()}"
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", include, str(source)]
    subprocess.run([*command, "-o", str(library), "-ldl", "-lpthread"], check=True)
    return library

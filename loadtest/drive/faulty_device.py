"""An accelerator whose devices fail as they are told: a plugin over another one (faulty_device.cc)."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

_SOURCE = Path(__file__).with_name("faulty_device.cc")
_HEADER = Path(__file__).with_name("plugin_over.h")
_ROOT = Path(__file__).parents[2]

HOLD, FAIL, CRASH, LOST, HANG = "hold", "fail", "crash", "lost", "hang"
"""The faults, as faulty_device.cc explains them."""


def environment_of(over: Path, directory: Path) -> Mapping[str, str]:
    """The variables for a plugin over the plugin `over`, which files in `directory` control (plugin_over.h)."""
    return {"PLUGIN_OVER": str(over), "PLUGIN_DIRECTORY": str(directory)}


def compiled_plugin(source: Path, directory: Path) -> Path:
    """The plugin in `directory` that passes calls on to another one, compiled if it is not there. Imports TensorFlow.

    Raises CalledProcessError, and OSError without a compiler.
    """
    library = _library_in(directory, source)
    if library.exists():
        return library
    import tensorflow as tf

    includes = [f"-I{tf.sysconfig.get_include()}", f"-I{_ROOT}"]
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", *includes, str(source)]
    subprocess.run([*command, "-o", str(library), "-ldl", "-lpthread"], check=True)
    return library


def _library_in(directory: Path, source: Path) -> Path:
    # Models are kept for later runs, and a plugin of an older source would not know its variables.
    digest = sha256(source.read_bytes() + _HEADER.read_bytes()).hexdigest()[:12]
    return directory / f"{source.stem}-{digest}.so"


def faulty_plugin_in(directory: Path) -> Path:
    """The place of the plugin in `directory`."""
    return _library_in(directory, _SOURCE)


def faulty_plugin(directory: Path) -> Path:
    """The plugin in `directory`. Raises as `compiled_plugin` does."""
    return compiled_plugin(_SOURCE, directory)


class FaultyDevice:
    """The faults of the plugin in one server, told by files in `directory`."""

    def __init__(self, directory: Path, over: Path) -> None:
        """The devices are those of the plugin `over`."""
        self._directory = directory
        directory.mkdir()
        self.environment = environment_of(over, directory)
        """The variables of the server's process."""

    def tell(self, fault: str) -> None:
        (self._directory / fault).touch()

    def end_of(self, fault: str) -> None:
        (self._directory / fault).unlink()

    @contextmanager
    def while_it(self, fault: str) -> Iterator[None]:
        """The fault is there inside `with`."""
        self.tell(fault)
        try:
            yield
        finally:
            self.end_of(fault)

    def transfer_count(self) -> int:
        """The later transfers of uploads so far, which HOLD, FAIL and CRASH are for."""
        path = self._directory / "transfers"
        return len(path.read_text().splitlines()) if path.exists() else 0

"""A model with an op that crashes the server on a magic input (crash_op.cc)."""

import os
import subprocess
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).with_name("crash_op.cc")

SEGV, ABORT, SEGV_IN_OTHER_THREAD = 666.0, 667.0, 668.0
"""The magic inputs."""

_FLOATS_PER_MB = 250_000


def build_crash_op(directory: Path) -> Path:
    """Compiles the op, which takes seconds, and returns its library."""
    import tensorflow as tf

    library = directory / "crash_op.so"
    include, link = tf.sysconfig.get_include(), tf.sysconfig.get_link_flags()
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{include}", str(_SOURCE)]
    subprocess.run([*command, "-o", str(library), *link, "-lpthread"], check=True)
    return library


def export_crashing(directory: Path, library: Path, *, init: float = 0.0, mb: int = 1) -> Path:
    """Exports a model whose output is its input and 1. Its init op runs the op on `init`.

    It has `mb` MB of parameters.
    """
    import tensorflow as tf
    from tensorflow.python.trackable.resource import CapturableResource

    ops = tf.load_op_library(str(library))

    class Initializer(CapturableResource):  # type: ignore[misc]
        """A resource whose initialization, which each load runs, calls the op."""

        def _create_resource(self) -> Any:
            return tf.raw_ops.MutableHashTableV2(
                key_dtype=tf.int64, value_dtype=tf.float32, shared_name="initializer"
            )

        def _initialize(self) -> Any:
            return ops.millpond_crash(x=tf.constant([init]))

    class Crashing(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(tf.zeros([mb * _FLOATS_PER_MB]))
            self.initializer = Initializer()

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])  # type: ignore[untyped-decorator]
        def serve(self, x: Any) -> dict[str, Any]:
            size = tf.raw_ops.LookupTableSizeV2(table_handle=self.initializer.resource_handle)
            zero = tf.cast(size, tf.float32) + self.weights[0]
            return {"y": ops.millpond_crash(x=x) + zero}

    module = Crashing()
    tf.saved_model.save(module, str(directory), signatures=module.serve)
    return directory


def link_version(source: Path, base_path: Path, version: int) -> None:
    """Drops a version whose files are hard links: its bytes are in the page cache already."""
    beside = base_path / f".{version}.partial"
    for root, _, names in os.walk(source):
        target = beside / Path(root).relative_to(source)
        target.mkdir(parents=True)
        for name in names:
            os.link(Path(root, name), target / name)
    beside.rename(base_path / str(version))

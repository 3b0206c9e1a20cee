"""A model of a few variables, which loads as fast as a model can.

    python -m loadtest.drive.small_model DIRECTORY

exports it to DIRECTORY. This is a separate process, to keep TensorFlow out of the clients' process.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from serving.base.errors import InvalidConfig

# Old files need no time to settle: a server loads them at once.
_LONG_AGO_NS = 1_600_000_000 * 10**9


def write_small_models(directory: Path, count: int) -> dict[str, Path]:
    """Exports one model and copies it; returns the base path of each model by its name.

    Raises InvalidConfig if the export fails.
    """
    exported = directory / "exported"
    command = [sys.executable, "-m", "loadtest.drive.small_model", str(exported)]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
        raise InvalidConfig(f"the small model could not be exported to {exported}; see above")
    base_paths = {f"small-{number:04}": directory / f"small-{number:04}" for number in range(count)}
    for base_path in base_paths.values():
        _let_age(Path(shutil.copytree(exported, base_path / "1")))
    return base_paths


def config_text(base_paths: dict[str, Path]) -> str:
    """Makes the --model_config_file with these models."""
    models = (
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}'
        for name, path in base_paths.items()
    )
    return "model_config_list {\n" + "\n".join(models) + "\n}\n"


def export(directory: Path) -> None:
    """Exports `y = x / 2 + 2` by three methods, two of them on examples, as a TensorFlow 1
    graph.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = v1.get_variable("a", initializer=0.5), v1.get_variable("b", initializer=2.0)
        x = v1.placeholder(tf.float32, [None], "x")
        examples = v1.placeholder(tf.string, [None], "tf_example")
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        y = a * parsed["x"] + b
        make = v1.saved_model
        signatures = {
            "serving_default": make.predict_signature_def({"x": x}, {"y": a * x + b}),
            "regress_x_to_y": make.regression_signature_def(examples, y),
            "classify_x_to_y": make.classification_signature_def(examples, None, y),
        }
        session.run(v1.global_variables_initializer())
        builder = make.Builder(str(directory))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()


def _let_age(directory: Path) -> None:
    for root, _, names in os.walk(directory, topdown=False):
        for path in [Path(root), *(Path(root, name) for name in names)]:
            os.utime(path, ns=(_LONG_AGO_NS, _LONG_AGO_NS))


if __name__ == "__main__":
    export(Path(sys.argv[1]))

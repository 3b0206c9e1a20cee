"""A version that loads and answers, but answers with NaN: the gates must refuse it.

    python -m loadtest.drive.soak_unfit SOURCE TARGET

copies the exported version SOURCE to TARGET with NaN for all weights of the last layer. This is a
separate process, to keep TensorFlow, which writes them, out of the clients' process.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from serving.base.errors import InvalidConfig
from serving.base.protos import prediction_log_pb2
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from serving.commands.ctr_model import LAYER_SIZES, reference_answer
from warmup.records import read_records, write_records
from warmup.replay import WARM_UP_FILE


class UnfitVersion:
    """Drops versions that must never serve into a base path, each by one rename."""

    def __init__(self, directory: Path, source: Path, base_path: Path, table_rows: int) -> None:
        """Makes the version from the good version `source` (content 1), in `directory`.

        `directory` must be on `base_path`'s file system. The warm-up records hold the right
        answers, so that the version is refused even if there is no predecessor to compare with.
        Raises InvalidConfig if it cannot be made.
        """
        self._directory = directory
        self._base_path = base_path
        self._export = directory / "unfit"
        write_spoiled(source, self._export)
        add_golden_answers(self._export / WARM_UP_FILE, table_rows)

    def drop(self, version: int) -> None:
        """Adds it to the base path as `version`. Raises OSError."""
        partial = self._directory / f"{version}.partial"
        shutil.copytree(self._export, partial, copy_function=os.link)
        partial.rename(self._base_path / str(version))


def write_spoiled(source: Path, target: Path) -> None:
    """Runs `spoil` in a process of its own. Raises InvalidConfig if it fails."""
    command = [sys.executable, "-m", "loadtest.drive.soak_unfit", str(source), str(target)]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
        raise InvalidConfig(f"the unfit version could not be made from {source}; see above")


def add_golden_answers(path: Path, table_rows: int) -> None:
    """Adds the answer of content 1 of the CTR model to each record of a warm-up file."""
    records = []
    for record in read_records(path):
        log = prediction_log_pb2.PredictionLog.FromString(record)
        request, response = log.predict_log.request, log.predict_log.response
        inputs = {name: from_tensor_proto(tensor) for name, tensor in request.inputs.items()}
        answer = reference_answer(1, inputs, table_rows).astype("float32")
        response.model_spec.name = request.model_spec.name
        response.outputs["ctr"].CopyFrom(to_tensor_proto(answer))
        records.append(log.SerializeToString())
    # Not written in place: the file may be a hard link to another export's file.
    path.unlink()
    write_records(path, records)


def spoil(source: Path, target: Path) -> None:
    """Copies `source` to `target` with NaN weights. Raises OSError and TensorFlow's errors."""
    shutil.copytree(source, target)
    prefix = target / "variables" / "variables"
    tensors = _tensors(prefix)
    shutil.rmtree(prefix.parent)
    prefix.parent.mkdir()
    _write_tensors(prefix, {name: _spoiled(value) for name, value in tensors.items()})


def _spoiled(value: Any) -> Any:
    # Only the last matrix has one column per output.
    is_last_matrix = getattr(value, "shape", ()) == (LAYER_SIZES[-2], LAYER_SIZES[-1])
    return value * float("nan") if is_last_matrix else value


def _tensors(prefix: Path) -> dict[str, Any]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _write_tensors(prefix: Path, tensors: dict[str, Any]) -> None:
    import tensorflow as tf

    values = [tf.constant(value) for value in tensors.values()]
    names, slices = list(tensors), [""] * len(tensors)
    part = f"{prefix}.part"
    tf.raw_ops.SaveV2(prefix=part, tensor_names=names, shape_and_slices=slices, tensors=values)
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[part], destination_prefix=str(prefix), delete_old_dirs=False
    )


if __name__ == "__main__":
    spoil(Path(sys.argv[1]), Path(sys.argv[2]))

"""Two deltas of the CTR model on disk, as the versions of a load test.

`python -m loadtest.drive.ctr_deltas DIRECTORY ROWS` writes them, in a process of its own: TensorFlow's threads and
memory stay out of the clients' process.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loadtest.drive.demo_model import MODEL_NAME, DemoModel
from loadtest.drive.lean_models import Weights, fill, make_lean
from loadtest.plan.ctr_deltas import BASE, changed_ids
from serving.base.errors import InvalidConfig
from serving.commands.ctr_model import LAYER_SIZES, TABLE_COUNT, layer_weights, table_rows_of

_DELTAS = (1, 2)


def delta_model(directory: Path, table_rows: int) -> DemoModel:
    """The deltas' directories below `directory`: delta 1 is in `base_path`, and delta 2 in `staged`."""
    return DemoModel.below(directory / "deltas", table_rows)


def prepare_deltas(
    directory: Path, table_rows: int, say: Callable[[str], None], *, is_lean: bool = False
) -> DemoModel:
    """Exports both deltas if they are not there yet, without their tables if `is_lean`.

    If they are, they get their tables. Raises InvalidConfig if they cannot be written, and OSError.
    """
    model = delta_model(directory, table_rows)
    root = model.base_path.parents[1]
    if (model.staged / "2").exists():
        if not is_lean:
            fill(root)
        say("deltas 1 and 2 were exported before")
        return model
    shutil.rmtree(directory / "deltas" / f"rows-{table_rows}", ignore_errors=True)
    command = [sys.executable, "-m", "loadtest.drive.ctr_deltas", str(directory), str(table_rows)]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
        raise InvalidConfig(f"deltas could not be exported to {directory}; see above")
    if is_lean:
        make_lean(root, _weights(table_rows))
    return model


def _weights(table_rows: int) -> Iterator[Weights]:
    for table in range(TABLE_COUNT):
        yield Weights("table", (BASE, table, table_rows))
        for delta in _DELTAS:
            yield Weights("changed_rows", (delta, table, table_rows))


def write_deltas(directory: Path, table_rows: int) -> None:
    """Writes the base and both deltas. Imports TensorFlow."""
    from millpond.delta import export_base, export_delta
    from serving.commands.ctr_export import ctr_module, ctr_signature, write_ctr_warm_up

    model = delta_model(directory, table_rows)
    module = ctr_module(BASE, table_rows)
    base = export_base(
        module,
        model.base_path.parent / "base" / "1",
        signatures=ctr_signature(module, BASE, table_rows),
        tables=module.tables,
    )
    for delta, place in zip(_DELTAS, (model.base_path, model.staged), strict=True):
        place.mkdir(parents=True, exist_ok=True)
        _train(module, delta, table_rows)
        path = place / str(delta)
        export_delta(module, base, path)
        write_ctr_warm_up(path, MODEL_NAME, table_rows)
        _untrain(module, delta, table_rows)


def _train(module: Any, delta: int, table_rows: int) -> None:
    """Gives the module the rows and the layers of the delta."""
    _set_rows(module, delta, delta, table_rows)
    for layer in range(len(LAYER_SIZES)):
        for variable, weights in zip(
            module.layers[layer], layer_weights(delta, layer), strict=True
        ):
            variable.assign(weights)


def _untrain(module: Any, delta: int, table_rows: int) -> None:
    """Gives the module the base's rows again."""
    _set_rows(module, BASE, delta, table_rows)


def _set_rows(module: Any, version: int, delta: int, table_rows: int) -> None:
    """Makes the rows that the delta changes those of `version`."""
    ids = changed_ids(delta, table_rows)
    for table in range(TABLE_COUNT):
        rows = table_rows_of(version, table, ids, table_rows)
        module.tables[table].scatter_nd_update(ids[:, None], rows)


if __name__ == "__main__":
    write_deltas(Path(sys.argv[1]), int(sys.argv[2]))

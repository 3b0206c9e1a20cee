"""A trainer in a process of its own: stock TensorFlow and `millpond.delta`, without a server.

    python -m loadtest.drive.trainer DIRECTORY KIND VALUES [TEMPLATES]

It writes version 1 below DIRECTORY, and then, for each number on its standard input, that version. It answers
each with a line of JSON, and ends with its input. VALUES are the fields of `RowValues` as JSON. With TEMPLATES,
which `version_template` writes, it works without TensorFlow and without the tables in memory.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any

from loadtest.drive.plain_tables import PlainTables
from loadtest.drive.trained_model import DELTA, TrainedTables, WrittenVersion
from loadtest.plan.row_values import TABLE_COUNT, RowValues
from serving.base.clock import SystemClock
from serving.base.errors import Unavailable

# On a machine of its own it would take nothing from the server.
_NICE = 10
_THREAD_COUNT = 2
# For 32 GB of tables on a slow disk.
_WRITE_SECONDS_MAX = 900.0


@dataclass(frozen=True)
class Export:
    """A version that a trainer wrote. Instants are of `Clock.now_ns`.

    `changed_row_count` is of the version before, and `own_bytes` are those without links to the base.
    """

    version: int
    changed_row_count: int
    own_bytes: int
    started_ns: int
    renamed_ns: int


class Trainer:
    """Runs a trainer inside `with`, whose first version is there at once. One thread at a time."""

    def __init__(
        self, directory: Path, kind: str, values: RowValues, templates: Path | None = None
    ) -> None:
        """`kind` is DELTA or FULL: what the later versions are. With `templates` TensorFlow is not needed."""
        self.base_path = directory / "versions"
        self._command = [
            *(sys.executable, "-m", "loadtest.drive.trainer"),
            *(str(directory), kind, json.dumps(asdict(values))),
            *([] if templates is None else [str(templates)]),
        ]
        self._cleanup = ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def __enter__(self) -> "Trainer":
        with ExitStack() as stack:
            self._errors = stack.enter_context(TemporaryFile("w+", prefix="millpond-trainer-"))
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True
            )
            stack.callback(_end, self._process)
            self._read_line()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    def export(self, version: int) -> Export:
        """Changes rows, writes them as `version`, and renames it to where servers look.

        Raises Unavailable if the trainer fails, or takes 15 minutes.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{version}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return Export(**json.loads(self._read_line()))

    def _read_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        # Kills a trainer that prints nothing, so that the read ends.
        watchdog = Timer(_WRITE_SECONDS_MAX, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise self._failure()
        return line

    def _failure(self) -> Unavailable:
        assert self._process is not None
        assert self._errors is not None
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return Unavailable(f"the trainer ended with status {status}: {'; '.join(lines[-1:])}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


# --- In the trainer's process ---------------------------------------------------------------------


def _serve(
    tables: TrainedTables | PlainTables, kind: str, values: RowValues, lines: IO[str], out: IO[str]
) -> None:
    """Writes version 1 and says so, and then each version that `lines` asks for."""
    if kind == DELTA:
        tables.publish_base()
        write = tables.export_delta
    else:
        tables.publish(tables.export_whole(1))
        write = tables.export_whole
    _say(out, {})
    for line in lines:
        _say(out, asdict(_exported(tables, write, values, int(line))))


def _exported(
    tables: TrainedTables | PlainTables,
    write: Callable[[int], WrittenVersion],
    values: RowValues,
    version: int,
) -> Export:
    clock = SystemClock()
    tables.train(version)
    started_ns = clock.now_ns()
    written = write(version)
    own_bytes = written.own_bytes
    tables.publish(written)
    return Export(
        version=version,
        changed_row_count=TABLE_COUNT * values.step_count,
        own_bytes=own_bytes,
        started_ns=started_ns,
        renamed_ns=clock.now_ns(),
    )


def _say(out: IO[str], document: Any) -> None:
    out.write(json.dumps(document) + "\n")
    out.flush()


def _tables(
    directory: Path, values: RowValues, templates: str | None
) -> TrainedTables | PlainTables:
    if templates is not None:
        return PlainTables(directory, values, Path(templates))
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(_THREAD_COUNT)
    tf.config.threading.set_inter_op_parallelism_threads(_THREAD_COUNT)
    return TrainedTables(directory, values)


def _main(directory: str, kind: str, values_json: str, templates: str | None = None) -> None:
    os.nice(_NICE)
    # Its lines are JSON: what libraries print goes to the errors.
    out, sys.stdout = sys.stdout, sys.stderr
    values = RowValues(**json.loads(values_json))
    _serve(_tables(Path(directory), values, templates), kind, values, sys.stdin, out)


if __name__ == "__main__":
    _main(*sys.argv[1:])

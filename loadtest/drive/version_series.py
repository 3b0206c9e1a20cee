"""A base path into which many versions are dropped, without writing 500 MB for each."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadtest.drive.demo_model import DemoModel
from serving.base.errors import InvalidConfig
from serving.base.protos import prediction_log_pb2
from warmup.records import read_records, write_records
from warmup.replay import WARM_UP_FILE

_GRAPH = "saved_model.pb"

WARM_UP_MODES = ("records", "none", "other-outputs")
"""A version's warm-up file: as exported, removed, or with other outputs than the clients
request."""


def content_of(version: int) -> int:
    """The export that a dropped version is made from: 1 for odd numbers, 2 for even
    ones.
    """
    return 2 - version % 2


class VersionSeries:
    """Drops versions 1, 2, 3, ... of one model as hard links to the two exports in turn.

    Numbers only go up, as users' do. Each version is added and removed by one rename, so that a
    server never sees a part of it. `close` (or the end of `with`) removes all versions; the exports
    stay.
    """

    def __init__(
        self,
        model: DemoModel,
        name: str,
        warm_up: str,
        asked: Sequence[str],
        *,
        has_one_graph: bool = False,
    ) -> None:
        """`asked` is the clients' output filter. With `has_one_graph` all versions have the graph of export 1, and
        only their variables are of the two exports in turn. Raises InvalidConfig for an unknown `warm_up`.
        """
        if warm_up not in WARM_UP_MODES:
            raise InvalidConfig(f"--warm-up={warm_up}: must be one of {', '.join(WARM_UP_MODES)}")
        self.name = name
        self._exports: Mapping[int, Path] = {1: model.base_path / "1", 2: model.staged / "2"}
        self._warm_up = warm_up
        self._asked = asked
        self._graph = self._exports[1] / _GRAPH if has_one_graph else None
        # Lies on the exports' file system, because hard links cannot leave it.
        self._root = Path(tempfile.mkdtemp(prefix=".series-", dir=model.staged.parent))
        self.base_path = self._root / name
        self.base_path.mkdir()

    def __enter__(self) -> "VersionSeries":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes every version that was dropped."""
        shutil.rmtree(self._root, ignore_errors=True)

    def drop(self, version: int) -> None:
        """Adds a version to the base path. Raises OSError."""
        partial = self._root / f"{version}.partial"
        shutil.copytree(self._exports[content_of(version)], partial, copy_function=os.link)
        self._change_warm_up(partial / WARM_UP_FILE)
        if self._graph is not None:
            (partial / _GRAPH).unlink()
            os.link(self._graph, partial / _GRAPH)
        partial.rename(self.base_path / str(version))

    def begin_copy(self, version: int) -> Callable[[], None]:
        """Adds a version without its variables; returns a function that adds them. Raises
        OSError.
        """
        source, target = self._exports[content_of(version)], self.base_path / str(version)

        def ignore(directory: str, names: list[str]) -> list[str]:
            return [name for name in names if directory == str(source) and name == "variables"]

        shutil.copytree(source, target, copy_function=os.link, ignore=ignore)

        def finish() -> None:
            variables = source / "variables"
            shutil.copytree(variables, target / "variables", copy_function=os.link)

        return finish

    def drop_damaged(self, version: int) -> None:
        """Adds a version as `drop` does, with a wrong byte in a shard of its variables. Raises
        OSError.
        """
        partial = self._root / f"{version}.partial"
        shutil.copytree(self._exports[content_of(version)], partial, copy_function=os.link)
        (shard,) = (partial / "variables").glob("variables.data-*")
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 0xFF
        # Not written in place: the file is a hard link to the export's own file.
        shard.unlink()
        shard.write_bytes(data)
        partial.rename(self.base_path / str(version))

    def rewrite_graph(self, version: int) -> None:
        """Replaces the version's graph by a copy with new file times. Raises OSError."""
        graph = self.base_path / str(version) / _GRAPH
        data = graph.read_bytes()
        graph.unlink()
        graph.write_bytes(data)

    def remove(self, version: int) -> None:
        """Removes a version from the base path and from the disk. Raises OSError."""
        gone = self._root / f"{version}.gone"
        (self.base_path / str(version)).rename(gone)
        shutil.rmtree(gone)

    def _change_warm_up(self, path: Path) -> None:
        if self._warm_up == "records" or not path.exists():
            return
        records = list(read_records(path))
        # Not written in place: the file is a hard link to the export's own file.
        path.unlink()
        if self._warm_up == "other-outputs":
            write_records(path, [self._asking_for_other_outputs(record) for record in records])

    def _asking_for_other_outputs(self, record: bytes) -> bytes:
        log = prediction_log_pb2.PredictionLog.FromString(record)
        others = ["version"] if list(self._asked) == ["ctr"] else ["ctr"]
        del log.predict_log.request.output_filter[:]
        log.predict_log.request.output_filter.extend(others)
        record_of_others: bytes = log.SerializeToString()
        return record_of_others

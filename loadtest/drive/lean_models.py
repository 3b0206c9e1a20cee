"""Models on disk without the weights that are a function of their place: a run that needs them computes them.

So models of gigabytes travel in kilobytes to a machine without TensorFlow, and are the same there, byte for byte. Their
checkpoints have checksums, by which a load finds weights that are not.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.plan.ctr_deltas import changed_ids
from serving.base.clock import NS_PER_SECOND
from serving.commands.ctr_model import table_rows_of, table_weights

Array = npt.NDArray[Any]

_PLAN = "lean.json"
_REST = "lean-rest"
# Smaller files are kept as they are.
_FILE_BYTES_MIN = 100_000
# The first bytes of a tensor, by which it is found.
_NEEDLE_BYTES = 64
# A server takes files of that age as still.
_DATED_BACK_NS = 10 * NS_PER_SECOND


@dataclass(frozen=True)
class Weights:
    """A tensor that is computed by one of the `_MAKERS`, from numbers."""

    maker: str
    numbers: Sequence[int]

    def values(self) -> Array:
        return _MAKERS[self.maker](*self.numbers)


def dense_matrix(index: int, rows: int, columns: int) -> Array:
    """The matrix number `index` of a dense model: float32[rows, columns], with which activations keep their size."""
    values = np.random.default_rng([1, index]).random((rows, columns), np.float32)
    # Each step is rounded as IEEE 754 says, so the weights are the same on every machine.
    values -= np.float32(0.5)
    values *= np.float32(np.sqrt(12 / rows))
    return values


def _changed_rows(delta: int, table: int, table_rows: int) -> Array:
    return table_rows_of(delta, table, changed_ids(delta, table_rows), table_rows)


_MAKERS: Mapping[str, Callable[..., Array]] = {
    "table": table_weights,
    "changed_rows": _changed_rows,
    "dense": dense_matrix,
}


def make_lean(root: Path, weights: Iterable[Weights]) -> None:
    """Removes from the files below `root` what `weights` compute, and leaves a plan for `fill`. Raises OSError."""
    found = list(weights)
    files, links = _files_and_links(root)
    plan: list[dict[str, Any]] = []
    with (root / _REST).open("wb") as rest:
        for path in files:
            with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                pieces = _pieces(data, found)
                if not pieces:
                    continue
                plan.append(_file_plan(path.relative_to(root), data, pieces, rest))
            path.unlink()
    gone = {file["path"] for file in plan}
    kept_links = {new: old for new, old in links.items() if old in gone}
    for new in kept_links:
        (root / new).unlink()
    (root / _PLAN).write_text(json.dumps({"files": plan, "links": kept_links}) + "\n")


def fill(root: Path) -> None:
    """Writes the files that `make_lean` has removed, unless they are there. Raises OSError."""
    if not (root / _PLAN).exists():
        return
    plan = json.loads((root / _PLAN).read_text())
    with (root / _REST).open("rb") as rest:
        for file in plan["files"]:
            path = root / file["path"]
            if not path.exists():
                rest.seek(file["rest_at"])
                _fill_file(path, file["parts"], rest)
    for new, old in plan["links"].items():
        if not (root / new).exists():
            os.link(root / old, root / new)


def _files_and_links(root: Path) -> tuple[Sequence[Path], Mapping[str, str]]:
    """The large files, each once, and the other names of each, by which it is linked too."""
    first: dict[int, Path] = {}
    links: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if not path.is_file() or status.st_size < _FILE_BYTES_MIN:
            continue
        if status.st_ino in first:
            links[str(path.relative_to(root))] = str(first[status.st_ino].relative_to(root))
        else:
            first[status.st_ino] = path
    return list(first.values()), links


def _pieces(data: mmap, weights: Iterable[Weights]) -> Sequence[tuple[int, int, Weights]]:
    """The begin, the end and the source of each piece of `data` that is computed, in order."""
    found = []
    for each in weights:
        content = each.values().tobytes()
        at = data.find(content[:_NEEDLE_BYTES])
        # A part of another tensor may begin as this one.
        while at >= 0 and data[at : at + len(content)] != content:
            at = data.find(content[:_NEEDLE_BYTES], at + 1)
        if at >= 0:
            found.append((at, at + len(content), each))
    return sorted(found, key=lambda piece: piece[0])


def _file_plan(
    path: Path, data: mmap, pieces: Sequence[tuple[int, int, Weights]], rest: Any
) -> dict[str, Any]:
    """Writes to `rest` what lies between the pieces. A part of the plan is a number of those bytes, or weights."""
    plan: dict[str, Any] = {"path": str(path), "rest_at": rest.tell()}
    parts: list[int | dict[str, Any]] = []
    done = 0
    for begin, end, weights in pieces:
        parts += [rest.write(data[done:begin]), asdict(weights)]
        done = end
    parts.append(rest.write(data[done:]))
    return {**plan, "parts": parts}


def _fill_file(path: Path, parts: Sequence[int | Mapping[str, Any]], rest: Any) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        for part in parts:
            file.write(rest.read(part) if isinstance(part, int) else Weights(**part).values().data)
    now_ns = os.stat(partial).st_mtime_ns - _DATED_BACK_NS
    os.utime(partial, ns=(now_ns, now_ns))
    partial.rename(path)

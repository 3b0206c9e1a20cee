"""The signatures of a version, read from its directory, without TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from serving.base.bounded_files import read_bounded_bytes, read_bounded_text
from serving.base.errors import DataLoss, NotFound
from serving.base.protos import saved_model_pb2
from serving.base.signatures import INIT_OP_SIGNATURE

DEFAULT_TAGS = ("serve",)

GRAPH_BYTES_MAX = 2**31 - 1
"""The longest message that protobuf parses."""

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
"""A version has at least one of these files; if it has both, the first is read."""


def read_signature_defs(directory: Path, tags: Sequence[str] = DEFAULT_TAGS) -> Mapping[str, Any]:
    """Reads the SignatureDefs, by name, of the meta graph with exactly these tags.

    Takes memory of the graph's size while it runs. Raises NotFound (no SavedModel in `directory`,
    or no meta graph with these tags), DataLoss, OSError.
    """
    saved_model = _read_saved_model(directory)
    for meta_graph in saved_model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == set(tags):
            # Copied out of the message, so that the graph can be freed.
            return {
                name: type(definition).FromString(definition.SerializeToString())
                for name, definition in sorted(meta_graph.signature_def.items())
                if name != INIT_OP_SIGNATURE
            }
    found = [sorted(graph.meta_info_def.tags) for graph in saved_model.meta_graphs]
    raise NotFound(f"{directory}: no meta graph has the tags {sorted(tags)}; there are {found}")


def is_version(directory: Path) -> bool:
    """True if `directory` is a version's directory."""
    return any((directory / name).exists() for name in SAVED_MODEL_FILES)


def require_version(directory: Path) -> None:
    """Raises NotFound, with a hint, if `directory` is not a version's directory."""
    if not is_version(directory):
        raise NotFound(_nothing_in(directory))


def _read_saved_model(directory: Path) -> saved_model_pb2.SavedModel:
    binary, text = (directory / name for name in SAVED_MODEL_FILES)
    try:
        if binary.exists():
            return saved_model_pb2.SavedModel.FromString(
                read_bounded_bytes(binary, GRAPH_BYTES_MAX)
            )
        if text.exists():
            return text_format.Parse(
                read_bounded_text(text, GRAPH_BYTES_MAX), saved_model_pb2.SavedModel()
            )
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise DataLoss(f"{directory}: its SavedModel does not parse: {error}") from error
    raise NotFound(_nothing_in(directory))


def _nothing_in(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory} is not a directory; give a version's directory, like /models/ctr/7"
    versions = sorted(
        (path for path in directory.iterdir() if path.name.isdigit() and path.is_dir()),
        key=lambda path: int(path.name),
    )
    hint = f"; its versions are {', '.join(map(str, versions))}" if versions else ""
    return f"{directory} has neither {' nor '.join(SAVED_MODEL_FILES)}{hint}"

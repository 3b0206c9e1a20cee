"""The files of a SavedModel that are one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2

from millpond.version_files import FINGERPRINT_FILE, GRAPH_FILE
from serving.base.errors import DataLoss


def read_saved_model(version: Path) -> Any:
    """Reads the graphs of a version, at least one. Raises OSError, and DataLoss if the file is damaged."""
    path = version / GRAPH_FILE
    saved = _parsed(saved_model_pb2.SavedModel, path)
    if not saved.meta_graphs:
        raise DataLoss(f"{path}: it has no graph; restore the file, or export the version again")
    return saved


def read_fingerprint(version: Path) -> Any:
    """Reads the fingerprint of a version. Raises OSError, and DataLoss if the file is damaged."""
    return _parsed(fingerprint_pb2.FingerprintDef, version / FINGERPRINT_FILE)


def _parsed(kind: Any, path: Path) -> Any:
    try:
        return kind.FromString(path.read_bytes())
    except DecodeError as error:
        raise DataLoss(
            f"{path}: it is damaged ({error}); restore the file, or export the version again"
        ) from error

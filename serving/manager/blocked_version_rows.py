"""The format of the file of blocked versions.

{"blocked_versions": {"ctr": [{"version": 7, "by": "operator", "reason": "…", "since_wall_ns": …}]}}

The row of a crash has `not_before_wall_ns` too. The row of a gate has `files`, the entries of a fingerprint, and
`gates`, the settings of the gates that refused the version.

A server reads and writes it, and so does its supervisor while the server is down. So this module
imports no logging.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from serving.base.directory_files import sync_directory
from serving.base.errors import DataLoss
from serving.core.blocked_versions import BlockedVersions, as_kept_rows, from_rows

FILE_NAME = "blocked_versions.json"


def read_blocked_versions(path: Path) -> dict[str, BlockedVersions]:
    """Reads the blocked versions by model; an empty dict without a file.

    Raises OSError, and DataLoss if the content is not of this format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise DataLoss(f"{path}: not a text file: {error}") from error
    try:
        models = json.loads(text)["blocked_versions"]
        return {name: from_rows(rows) for name, rows in models.items()}
    except DataLoss as error:
        raise DataLoss(f"{path}: {error.message}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataLoss(f"{path}: not what Millpond wrote: {error!r}") from error


def write_blocked_versions(path: Path, blocked_versions: Mapping[str, BlockedVersions]) -> None:
    """Replaces the file as a whole. It is on disk when this returns. Raises OSError.

    If the process or the machine ends meanwhile, either the old or the new file exists.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {
        "blocked_versions": {
            name: as_kept_rows(blocked_versions[name])
            for name in sorted(blocked_versions)
            if blocked_versions[name]
        }
    }
    # All writes use the same name, so a server that was killed leaves at most one such file behind.
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)

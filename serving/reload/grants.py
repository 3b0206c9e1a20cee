"""Grants: the versions that this server may select as a member of a fleet, kept over restarts."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from serving.base.clock import Clock
from serving.base.directory_files import PRIVATE_FILE_MODE, opened_directory, replace_file
from serving.base.errors import DataLoss
from serving.core.granted_versions import GrantedVersion, as_document, from_document

FILE_NAME = "granted_versions.json"

_log = structlog.get_logger(__name__)


class Grants:
    """The granted version of each model. Thread-safe.

    `directory` is --state_directory. Without it a server that restarts waits for the coordinator before it
    loads a version. `set_granted` receives each change under the lock, so that the last change is also the
    last one that a source sees.
    """

    def __init__(
        self,
        directory: Path | None,
        set_granted: Callable[[str, frozenset[int]], None],
        clock: Clock,
    ) -> None:
        self._path = None if directory is None else directory / FILE_NAME
        self._set_granted = set_granted
        self._clock = clock
        self._lock = threading.Lock()
        self._granted = _read(self._path)

    def granted(self, name: str) -> GrantedVersion | None:
        """The last grant of a model; None if there is none."""
        return self._granted.get(name)

    def versions(self, name: str) -> frozenset[int]:
        """The versions that a model's source may select."""
        return _selectable(self._granted.get(name))

    def grant(self, name: str, version: int | None, order: int) -> GrantedVersion:
        """Takes a grant, and returns the grant that is in effect then: if this one is stale, a later one.

        A `version` of None withdraws the last grant. A grant takes effect even if it cannot be written,
        because it may be a rollback. In that case the next start begins with an older grant, until the
        coordinator has corrected it.
        """
        with self._lock:
            before = self._granted.get(name)
            if before is not None and order < before.order:
                return before
            is_same = before is not None and before.version == version
            since_ns = before.since_ns if before and is_same else self._clock.now_ns()
            after = GrantedVersion(version, order, since_ns)
            self._granted = {**self._granted, name: after}
            self._write()
            if not is_same:
                event = "version_granted" if version is not None else "version_withdrawn"
                _log.info(event, model=name, version=version, order=order)
                self._set_granted(name, _selectable(after))
            return after

    def _write(self) -> None:
        if self._path is None:
            return
        text = json.dumps({"granted_versions": as_document(self._granted)}, indent=1)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with opened_directory(self._path.parent) as directory:
                replace_file(directory, self._path.name, [text.encode()], PRIVATE_FILE_MODE)
        except OSError as error:
            _log.warning(
                "granted_versions_not_kept",
                file=str(self._path),
                reason=str(error),
                consequence="a restart begins with an older grant, until the coordinator corrects it",
            )


def _selectable(granted: GrantedVersion | None) -> frozenset[int]:
    if granted is None or granted.version is None:
        return frozenset()
    return frozenset((granted.version,))


def _read(path: Path | None) -> dict[str, GrantedVersion]:
    """Reads the grants of the file.

    An unreadable file counts as empty, because the coordinator grants again.
    """
    if path is None:
        return {}
    try:
        return from_document(json.loads(path.read_bytes())["granted_versions"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, DataLoss) as error:
        _log.warning("granted_versions_unreadable", file=str(path), reason=str(error))
        return {}

"""Loads and unloads models by request, as the protocol's repository extension defines.

The directories of a model decide which of its versions are loaded. So unloading a model means that
none of its versions is aspired until a client loads the model again. A poll, or a configuration change
that keeps the model, does not undo the unload. A restart does.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from serving.base.errors import FailedPrecondition, NotFound, PermissionDenied, Unavailable
from serving.base.name_text import listed
from serving.core.servable import END, ServableStatus
from serving.manager.state_monitor import StateMonitor, Statuses
from serving.reload.config_reload import has_come, has_failed
from serving.reload.served_models import ServedModels
from serving.rpc.health import why_unavailable

WAIT_SECONDS_MAX = 60.0
"""The longest that a call waits for a load or unload, if its caller would wait longer."""

_log = structlog.get_logger(__name__)


class Selection(Protocol):
    """The part of `ConfigReloader` that selects models."""

    @property
    def unloaded(self) -> frozenset[str]: ...
    def set_unloaded(self, name: str, *, is_unloaded: bool) -> None: ...


class Repository:
    """Loads and unloads models at a client's request. Any thread.

    Only one call waits at a time: few threads answer rare calls, and one of them must stay free for status
    requests.
    """

    def __init__(
        self,
        selection: Selection,
        monitor: StateMonitor,
        served: ServedModels,
        *,
        is_allowed: bool,
    ) -> None:
        self._selection = selection
        self._monitor = monitor
        self._served = served
        self._is_allowed = is_allowed
        self._waiting = threading.Lock()

    @property
    def unloaded(self) -> frozenset[str]:
        """The models that a client has unloaded."""
        return self._selection.unloaded

    def load(self, name: str, wait_seconds: float) -> None:
        """Serves the model: reads its base path now, and waits for a version.

        After PermissionDenied or NotFound nothing has changed. Raises FailedPrecondition if the model
        failed to load. Raises Unavailable with the reason if no version serves after `wait_seconds`;
        the model stays selected.
        """
        self._check(name)
        stale = self._monitor.statuses().get(name, ())
        self._selection.set_unloaded(name, is_unloaded=False)
        _log.info("model_load_requested", model=name)

        def is_decided(statuses: Statuses) -> bool:
            mine = statuses.get(name, ())
            return has_come(mine) or has_failed(mine, stale, self._served.aspired_versions(name))

        self._wait(name, is_decided, wait_seconds)
        mine = self._monitor.statuses().get(name, ())
        if has_come(mine):
            return
        reason = f"model {name!r}: {why_unavailable(mine)}"
        if has_failed(mine, stale, self._served.aspired_versions(name)):
            raise FailedPrecondition(reason)
        raise Unavailable(f"{reason}; the server still looks for it; see RepositoryIndex")

    def unload(self, name: str, wait_seconds: float) -> None:
        """Unloads all versions of the model until `load` is called.

        After PermissionDenied or NotFound nothing has changed. Raises Unavailable if requests still
        hold a version after `wait_seconds`.
        """
        self._check(name)
        self._selection.set_unloaded(name, is_unloaded=True)
        _log.info("model_unload_requested", model=name)

        def is_gone(statuses: Statuses) -> bool:
            return all(status.state is END for status in statuses.get(name, ()))

        if not self._wait(name, is_gone, wait_seconds):
            raise Unavailable(f"model {name!r} is being unloaded; see RepositoryIndex")

    def _check(self, name: str) -> None:
        if not self._is_allowed:
            raise PermissionDenied(
                "models are loaded and unloaded by their directories and the configuration; start "
                "the server with --allow_repository_control to let clients do it"
            )
        names = self._served.names
        if name not in names:
            known = listed(sorted(names))
            raise NotFound(
                f"model {name!r} is not configured; configured: {known}; add it to "
                "--model_config_file, or by HandleReloadConfigRequest"
            )

    def _wait(self, name: str, predicate: Callable[[Statuses], bool], wait_seconds: float) -> bool:
        if not self._waiting.acquire(blocking=False):
            raise Unavailable(
                f"model {name!r}: the change is made, but this call cannot wait for it, because "
                "another call waits already; see RepositoryIndex"
            )
        try:
            return self._monitor.wait_until(predicate, wait_seconds)
        finally:
            self._waiting.release()


def ready_versions(versions: tuple[ServableStatus, ...]) -> list[int]:
    """The versions that answer requests, ascending. Pure."""
    return [status.id.version for status in versions if has_come((status,))]


def unsupported_load_parameters(parameters: Mapping[str, object]) -> list[str]:
    """The parameters that would load a model from elsewhere than its base path. Pure."""
    return sorted(key for key in parameters if key == "config" or key.startswith("file:"))

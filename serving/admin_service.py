"""Millpond's own rare RPCs, for its command line. Requests and replies are JSON (UTF-8).

TensorFlow Serving has no RPC that lists models: GetModelStatus wants a name.
"""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from serving.servable import ServableStatus

if TYPE_CHECKING:
    from serving.state_monitor import Statuses

LIST_MODELS = "/millpond.v1.Admin/ListModels"


class AdminService:
    """Answers `LIST_MODELS`. On the thread of the rare calls; keeps nothing between two of them."""

    def __init__(self, model_names: Sequence[str], statuses: "Callable[[], Statuses]") -> None:
        """`model_names` are those configured; `statuses` is `StateMonitor.statuses`."""
        self._model_names = model_names
        self._statuses = statuses

    def list_models(self, request: bytes) -> bytes:
        """Replies `{"models": [{"name", "versions": [{"version", "state", …}]}]}`, by name and version.

        `request` is empty; what a later client puts in there is not looked at. A model without
        versions is listed too: that it has none is what its operator is looking for.
        """
        del request
        statuses = self._statuses()
        models = [
            {"name": name, "versions": [_version(status) for status in statuses.get(name, ())]}
            for name in sorted({*self._model_names, *statuses})
        ]
        return json.dumps({"models": models}).encode()


def _version(status: ServableStatus) -> dict[str, Any]:
    return {
        "version": status.id.version,
        "state": status.state.name,
        "stage": status.stage.value if status.stage else None,
        "stage_seconds": {stage.value: seconds for stage, seconds in status.stage_seconds.items()},
        "failed_load_count": status.failed_load_count,
        "state_changed_wall_ns": status.state_changed_wall_ns,
        "error_code": int(status.health.code),
        "error_message": status.health.message,
    }

"""Answers the requests of the open inference protocol, except inference, over gRPC and HTTP."""

from collections.abc import Mapping
from typing import Any

from serving.base.errors import NotFound, Unavailable, Unimplemented
from serving.base.name_text import listed
from serving.core.servable import ServableId
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.servables import BatchFigures
from serving.kserve import documents
from serving.kserve.repository import Repository, ready_versions, unsupported_load_parameters
from serving.kserve.statistics import model_statistics
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.reload.served_models import ServedModels
from serving.rpc.health import HealthReporter, why_unavailable
from serving.source.listing import VERSION_MAX


def version_number(version: str) -> int | None:
    """Reads the number of a version's name; None if the name is a label, as in `SetModelVersion`. Pure."""
    if not (version.isascii() and version.isdecimal()):
        return None
    digits = version.lstrip("0") or "0"
    # Python reads no number of thousands of digits.
    is_short = len(digits) <= len(str(VERSION_MAX))
    return int(digits) if is_short and int(digits) <= VERSION_MAX else None


class InferenceQuestions:
    """Returns documents in the form of the protocol's JSON. Any thread.

    `server_version` is the server's own version.
    """

    def __init__(
        self,
        *,
        served: ServedModels,
        monitor: StateMonitor,
        streams: Streams,
        health: HealthReporter,
        requests: RequestStatistics,
        repository: Repository,
        server_version: str,
    ) -> None:
        self._served = served
        self._monitor = monitor
        self._streams = streams
        self._health = health
        self._requests = requests
        self._repository = repository
        self._server_version = server_version

    def is_server_ready(self) -> bool:
        """True if gRPC's health reports the server as SERVING."""
        return self._health.view().is_serving

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """True if the model answers requests. Raises NotFound if it is not configured."""
        versions = self._ready_versions(name)
        if self._health.view().is_draining or not versions:
            return False
        try:
            return self._chosen(name, version) in versions
        except NotFound:
            return False

    def server_metadata(self) -> dict[str, Any]:
        """The document `{"name", "version", "extensions"}`."""
        return documents.server_metadata(self._server_version)

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """The metadata of `version`, a number or a label; "" means the default version.

        Raises NotFound for an unknown model or version, Unavailable if no version has been loaded,
        and FailedPrecondition if the version has no serving_default.
        """
        signatures = self._signatures(name, version)
        return documents.model_metadata(name, self._ready_versions(name), signatures)

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """The model's configuration. Raises the same errors as `model_metadata`."""
        return documents.model_config(name, self._signatures(name, version))

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """The statistics of serving versions. Raises NotFound for an unknown model or version.

        An empty `name` means all models, an empty `version` all serving versions.
        """
        rows, found = self._requests.methods(), []
        for model in [name] if name else sorted(self._served.names):
            versions = self._ready_versions(model)
            if version:
                chosen = self._chosen(model, version)
                if chosen not in versions:
                    known = listed(map(str, versions))
                    raise NotFound(f"model {model!r} has no version {version}; available: {known}")
                versions = [chosen]
            batches = {version: self._batches(ServableId(model, version)) for version in versions}
            found += model_statistics(rows, model, batches)
        return {"model_stats": found}

    def index(self, *, is_ready_only: bool = False) -> list[dict[str, Any]]:
        """Lists a row for each version of each configured model."""
        return documents.repository_index(
            self._served.names,
            self._monitor.statuses(),
            self._repository.unloaded,
            is_ready_only=is_ready_only,
        )

    def load(self, name: str, parameters: Mapping[str, object], wait_seconds: float) -> None:
        """Loads a model as `Repository.load` does, and raises its errors.

        Raises Unimplemented if the request itself contains a model.
        """
        unsupported = unsupported_load_parameters(parameters)
        if unsupported:
            raise Unimplemented(
                "a model is loaded from the base path in the server's configuration; leave out "
                f"{', '.join(unsupported)}"
            )
        self._repository.load(name, wait_seconds)

    def unload(self, name: str, wait_seconds: float) -> None:
        """Unloads a model as `Repository.unload` does, and raises its errors."""
        self._repository.unload(name, wait_seconds)

    def _batches(self, servable_id: ServableId) -> list[BatchFigures]:
        servable = self._streams.servable(servable_id)
        return [state.figures for state in servable.batching()] if servable else []

    def _ready_versions(self, name: str) -> list[int]:
        names = self._served.names
        if name not in names:
            known = listed(sorted(names))
            raise NotFound(f"model {name!r} is not configured; configured: {known}")
        return ready_versions(self._monitor.statuses().get(name, ()))

    def _chosen(self, name: str, version: str) -> int | None:
        """Finds the number of `version`; None if the model has no default version."""
        if not version:
            return self._streams.answering(name)
        number = version_number(version)
        if number is not None:
            return number
        labels = self._streams.labels(name)
        if version not in labels:
            known = listed(sorted(labels))
            raise NotFound(f"model {name!r} has no version {version!r}; labels: {known}")
        return labels[version]

    def _signatures(self, name: str, version: str) -> bytes:
        versions = self._ready_versions(name)
        chosen = self._chosen(name, version)
        if not versions or chosen is None:
            raise Unavailable(
                f"model {name!r}: {why_unavailable(self._monitor.statuses().get(name, ()))}"
            )
        servable = self._streams.servable(ServableId(name, chosen)) if chosen in versions else None
        if servable is None:
            known = listed(map(str, versions))
            raise NotFound(f"model {name!r} has no version {version}; available: {known}")
        return servable.signature_def_map()

"""StatusDocuments: the answers about models and the server that the data plane gives without Python."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from serving.base.errors import FailedPrecondition
from serving.core.servable import ServableId, ServableStatus
from serving.data_plane.requests import GrpcServer
from serving.data_plane.servables import Servable
from serving.http.health_routes import (
    Readiness,
    model_readiness_of,
    model_reason,
    readiness_document,
    server_reason,
)
from serving.kserve import documents
from serving.kserve.repository import ready_versions
from serving.manager.model_notes import NotePublisher
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.rpc.health import HealthReporter
from serving.server.model_documents import (
    Document,
    Documents,
    MetadataOf,
    ModelView,
    VersionView,
    document,
    model_documents,
    path_part,
)

READY_PATH = "/readyz"
_LIST_END = b"}}"

_log = structlog.get_logger(__name__)


class StatusDocuments:
    """Gives the data plane a new document when what it shows has changed. Any thread.

    The documents are the status of models, their readiness and metadata in the open inference protocol, and the
    probes of the server. A change of one model updates only that model's documents and its item of `/readyz`, so
    the start of a thousand models costs a thousand times the start of one. This class has no thread: the thread
    that changes a model calls it after the change.
    """

    def __init__(
        self,
        grpc: GrpcServer,
        *,
        names: Sequence[str],
        monitor: StateMonitor,
        streams: Streams,
        notes: NotePublisher,
        health: HealthReporter,
        status_error: type[Exception],
        server_version: str,
    ) -> None:
        """Follows these parts from now on. `names` are the models that are configured first."""
        self._grpc = grpc
        self._monitor = monitor
        self._streams = streams
        self._notes = notes
        self._health = health
        self._status_error = status_error
        # Held while pushing, so that an older document never replaces a newer one.
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._published: dict[str, Documents] = {}
        self._server_documents: Documents = {}
        self._views: dict[str, ModelView] = {}
        # For each configured model its own document, and its item of `/readyz`, in the order of the models.
        self._readiness: dict[str, Document] = {}
        self._items: dict[str, bytes] = {}
        self._indices: dict[str, int] = {}
        # The items that the data plane does not have yet, by their number.
        self._changed: dict[int, bytes] = {}
        # The models that are not ready, in that order, and `/readyz` without its items.
        self._waiting: dict[str, None] = {}
        self._empty: Document | None = None
        self._metadata: dict[str, dict[int, Mapping[str, Any] | None]] = {}
        self._fixed: Documents = {
            "/v2/health/live": document({"live": True}),
            **dict.fromkeys(("/v2", "/v2/"), document(documents.server_metadata(server_version))),
        }
        monitor.add_stage_listener(self._on_status)
        monitor.add_forget_listener(self.model_changed)
        streams.add_routing_listener(self.model_changed)
        notes.add_listener(self.model_changed)
        health.add_listener(self._on_health)
        self.set_models(names)

    def set_models(self, names: Sequence[str]) -> None:
        """Follows these models from now on, in this order."""
        with self._lock:
            changed = self._known.symmetric_difference(names)
            self._known = frozenset(names)
            for name in changed:
                self._update_model(name)
            for name in self._items.keys() - self._known:
                self._forget_readiness(name)
            self._items = {name: self._items[name] for name in names}
            self._indices = {name: index for index, name in enumerate(self._items)}
            self._sort_waiting()
            self._empty = None
            self._update_server()

    def model_changed(self, name: str) -> None:
        """Brings the documents of one model up to date."""
        with self._lock:
            if self._update_model(name):
                self._update_server()

    def _on_status(self, status: ServableStatus) -> None:
        self.model_changed(status.id.name)

    def _on_health(self) -> None:
        with self._lock:
            for name in self._items if self._health.server.is_draining else ():
                self._update_model(name)
            self._update_server()

    # --- Holding `_lock` --------------------------------------------------------------------------

    def _update_model(self, name: str) -> bool:
        """Returns True if the model's item of `/readyz` has changed."""
        statuses = self._monitor.versions(name)
        view = self._view(name, statuses)
        # A load has many stages, which only the readiness shows.
        if view != self._views.get(name):
            self._views[name] = view
            self._publish(name, self._documents_of(view))
        if not view.is_configured:
            if not statuses:
                del self._views[name]
            return False
        reason = model_reason(statuses, self._notes.source_notes(name))
        readiness = model_readiness_of(name, reason, is_draining=view.is_draining)
        made = document(readiness_document(readiness), readiness.status)
        if self._readiness.get(name) == made:
            return False
        self._readiness[name] = made
        self._grpc.set_http_document(_ready_path(name), made.status, made.body)
        self._items[name] = _item(readiness)
        self._note_waiting(name, is_waiting=reason is not None)
        # `set_models` sends the items of models that are new.
        if name in self._indices:
            self._changed[self._indices[name]] = self._items[name]
        return True

    def _note_waiting(self, name: str, *, is_waiting: bool) -> None:
        if not is_waiting:
            self._waiting.pop(name, None)
        elif name not in self._waiting:
            self._waiting[name] = None
            if name in self._indices:
                self._sort_waiting()

    def _sort_waiting(self) -> None:
        self._waiting = dict.fromkeys(sorted(self._waiting, key=self._indices.__getitem__))

    def _publish(self, name: str, made: Documents) -> None:
        self._published[name] = self._push(self._published.pop(name, {}), made)
        if not made:
            del self._published[name]

    def _documents_of(self, view: ModelView) -> Documents:
        try:
            return model_documents(view, self._metadata_of(view))
        except Exception:  # noqa: BLE001 (a bug here must not stop the thread that changes the model)
            _log.exception("documents_failed", model=view.name)
            # Python answers, and says what fails.
            return {}

    def _forget_readiness(self, name: str) -> None:
        """Lets Python answer that the model is not configured."""
        del self._readiness[name], self._items[name]
        self._waiting.pop(name, None)
        self._grpc.remove_http_document(_ready_path(name))

    def _update_server(self) -> None:
        is_ready = self._health.server.is_serving
        self._server_documents = self._push(
            self._server_documents,
            {
                **self._fixed,
                "/v2/health/ready": document({"ready": is_ready}, 200 if is_ready else 503),
            },
        )
        self._push_readiness(self._server_readiness())

    def _push_readiness(self, empty: Document) -> None:
        """Gives the data plane the items that have changed together with what sums them up."""
        head = empty.body.removesuffix(_LIST_END)
        if self._empty is None:
            items = list(self._items.values())
            self._grpc.set_http_list(READY_PATH, empty.status, head, items, _LIST_END)
        elif self._changed or empty != self._empty:
            self._grpc.change_http_list(READY_PATH, empty.status, head, self._changed)
        self._empty = empty
        self._changed = {}

    # The monitor calls this class before the health of the server follows the same change, and each brings its
    # own push. So when the last model comes, `/readyz` shows it ready beside 503 until the second push: a
    # probe is told too late that the server is ready, and never too early. When a model goes, the first push
    # shows it gone beside the status before.
    def _server_readiness(self) -> Document:
        """The readiness of the server, without its models."""
        server = self._health.server
        reason = server_reason(
            self._waiting, is_serving=server.is_serving, is_draining=server.is_draining
        )
        empty = Readiness(server.is_serving, reason, {})
        return document(readiness_document(empty), empty.status)

    def _push(self, before: Documents, after: Documents) -> Documents:
        for path in before.keys() - after.keys():
            self._grpc.remove_http_document(path)
        for path, made in after.items():
            if before.get(path) != made:
                self._grpc.set_http_document(path, made.status, made.body)
        return after

    def _view(self, name: str, statuses: Sequence[ServableStatus]) -> ModelView:
        # The control thread changes the state of a stream before the status of a version, or after it. In
        # between, a version that answers in either of them does answer.
        state = self._streams.of(name)
        ready = {*ready_versions(tuple(statuses)), *state.ready_versions}
        return ModelView(
            name=name,
            is_configured=name in self._known,
            is_draining=self._health.server.is_draining,
            versions=tuple(
                VersionView(status.id.version, status.state, status.health) for status in statuses
            ),
            ready_versions=tuple(sorted(ready)),
            default_version=state.routing.default_version,
            labels=state.routing.labels,
            label_targets=self._streams.label_targets(name),
        )

    def _metadata_of(self, view: ModelView) -> MetadataOf:
        """Parses the signatures of a version once, because they do not change."""
        before = self._metadata.pop(view.name, {})
        kept = {version: before[version] for version in view.ready_versions if version in before}
        if view.ready_versions:
            self._metadata[view.name] = kept

        def metadata_of(version: int) -> Mapping[str, Any] | None:
            servable = self._streams.servable(ServableId(view.name, version))
            if version not in kept and servable is not None:
                kept[version] = self._parse_metadata(view.name, servable)
            return kept.get(version)

        return metadata_of

    def _parse_metadata(self, name: str, servable: Servable) -> Mapping[str, Any] | None:
        try:
            return documents.model_metadata(name, (), servable.signature_def_map())
        # Without serving_default, or unloaded just now.
        except (FailedPrecondition, self._status_error):
            return None


def _ready_path(name: str) -> str:
    return f"{READY_PATH}?model={path_part(name)}"


def _item(readiness: Readiness) -> bytes:
    """The models of a readiness as the inside of a JSON object."""
    models = readiness_document(readiness)["models"]
    return json.dumps(models, separators=(",", ":"))[1:-1].encode()

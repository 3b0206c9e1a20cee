"""ModelService: the status of models for clients. Handlers from bytes to bytes, off the hot path."""

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from serving.base.errors import InvalidArgument, NotFound
from serving.base.name_text import listed
from serving.base.protos import get_model_status_pb2, model_pb2
from serving.core.servable import ServableStatus
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.reload.served_models import ServedModels

GET_MODEL_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"


class ModelService:
    """Answers from the state monitor. Any thread.

    `served` has the configured models, and `streams` the versions of their labels.
    """

    def __init__(self, monitor: StateMonitor, served: ServedModels, streams: Streams) -> None:
        self._monitor = monitor
        self._served = served
        self._streams = streams

    def get_model_status(self, request: bytes) -> bytes:
        """Answers a GetModelStatusRequest with a GetModelStatusResponse, versions in descending order.

        Raises InvalidArgument for other bytes, a missing model_spec or name, and an unknown label. A label
        means the version that answers requests with that label, or will; TensorFlow Serving ignores labels
        here.
        Raises NotFound for an unknown model or version. A configured model that has no version yet is
        NotFound too, as in TensorFlow Serving, because clients read the first version of an answer without
        checking that there is one. The message has the base path that is searched.
        """
        spec = _model_spec(request)
        statuses = self._monitor.statuses().get(spec.name, ())
        if not statuses:
            raise NotFound(self._no_versions(spec.name))
        version = self._version(spec)
        if version == 0 and all(status.id.version for status in statuses):
            # ovmsclient asks for the default version in this way. Without a number, all versions are the
            # answer.
            version = None
        if version is not None:
            statuses = tuple(status for status in statuses if status.id.version == version)
            if not statuses:
                raise NotFound(self._no_such_version(spec, version))
        return status_response(statuses)

    def _version(self, spec: model_pb2.ModelSpec) -> int | None:
        if spec.WhichOneof("version_choice") == "version_label":
            labels = self._streams.label_targets(spec.name)
            if spec.version_label not in labels:
                raise InvalidArgument(_unknown_label(spec, labels))
            return labels[spec.version_label]
        version: int | None = spec.version.value if spec.HasField("version") else None
        return version

    def _no_versions(self, name: str) -> str:
        message = f"Could not find any versions of model {name}"
        base_path = self._served.base_path(name)
        if base_path is not None:
            return f"{message}: no version was found in {base_path!r} yet; see the server's log"
        known = listed(sorted(self._served.names))
        return f"{message}: it is not configured; configured: {known}"

    def _no_such_version(self, spec: model_pb2.ModelSpec, version: int) -> str:
        known = listed(
            f"{status.id.version} ({status.state.name})"
            for status in self._monitor.statuses().get(spec.name, ())
        )
        label = spec.version_label
        points = f", to which version label {label!r} points" if label else ""
        return f"Could not find version {version} of model {spec.name}{points}; known: {known}"


def _model_spec(request: bytes) -> model_pb2.ModelSpec:
    try:
        message = get_model_status_pb2.GetModelStatusRequest.FromString(request)
    except DecodeError as error:
        raise InvalidArgument(
            f"the request is not a valid GetModelStatusRequest: {error}"
        ) from error
    if not message.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec: set model_spec.name")
    spec = message.model_spec
    if not spec.name:
        raise InvalidArgument("ModelSpec has no name specified: set model_spec.name")
    return spec


def _unknown_label(spec: model_pb2.ModelSpec, labels: Mapping[str, int]) -> str:
    message = f"Unrecognized servable version label: {spec.version_label}"
    if labels:
        return f"{message}; labels of model {spec.name!r}: {listed(sorted(labels))}"
    return (
        f"{message}; model {spec.name!r} has no labels: give it one with version_labels in its "
        "configuration, or request a version, or neither"
    )


def status_response(statuses: tuple[ServableStatus, ...]) -> bytes:
    """Makes a serialized GetModelStatusResponse of ascending versions, the highest first. Pure."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for status in reversed(statuses):
        entry = response.model_version_status.add()
        entry.version = status.id.version
        entry.state = int(status.state)
        entry.status.error_code = int(status.health.code)
        entry.status.error_message = status.health.message
    serialized: bytes = response.SerializeToString()
    return serialized

"""The answers to GET requests about models, in the shape of TensorFlow Serving's JSON. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict

from serving.base.protos import get_model_status_pb2
from serving.core.servable import ServableStatus


def status_request(model: str, version: int | None, label: str | None) -> bytes:
    """Makes a serialized GetModelStatusRequest."""
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = model
    if version is not None:
        request.model_spec.version.value = version
    elif label is not None:
        request.model_spec.version_label = label
    serialized: bytes = request.SerializeToString()
    return serialized


def status_document(response: bytes) -> dict[str, Any]:
    """Converts a GetModelStatusResponse. Numbers of 64 bits are strings, as protobuf's JSON has them."""
    message = get_model_status_pb2.GetModelStatusResponse.FromString(response)
    return _as_dict(message)


def list_document(
    names: Iterable[str], statuses: Mapping[str, Iterable[ServableStatus]]
) -> dict[str, Any]:
    """Lists all configured models by name, each with its versions from the highest down."""
    return {
        "models": [
            {
                "name": name,
                "model_version_status": [
                    _status(status) for status in reversed(tuple(statuses.get(name, ())))
                ],
            }
            for name in sorted(names)
        ]
    }


def _status(status: ServableStatus) -> dict[str, Any]:
    return {
        "version": str(status.id.version),
        "state": status.state.name,
        "status": {
            "error_code": status.health.code.name,
            "error_message": status.health.message,
        },
    }


def _as_dict(message: Any) -> dict[str, Any]:
    # Includes fields at their default, as TensorFlow Serving does.
    document: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return document

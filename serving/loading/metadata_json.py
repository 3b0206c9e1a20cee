"""The answer to `GET /v1/models/NAME/metadata`, in the shape of TensorFlow Serving's JSON. Pure."""

import json
from typing import Any

from google.protobuf.json_format import MessageToDict

from serving.base.protos import get_model_metadata_pb2, model_pb2
from serving.core.servable import ServableId


def metadata_json(servable_id: ServableId, signature_def_map: bytes) -> str:
    """Describes a version: its name and number, and its signatures.

    `signature_def_map` is a serialized SignatureDefMap.
    """
    spec = model_pb2.ModelSpec(name=servable_id.name)
    spec.version.value = servable_id.version
    signatures = get_model_metadata_pb2.SignatureDefMap.FromString(signature_def_map)
    document = {
        "model_spec": _as_dict(spec),
        "metadata": {"signature_def": _as_dict(signatures)},
    }
    return json.dumps(document, separators=(",", ":"))


def _as_dict(message: Any) -> dict[str, Any]:
    # Includes fields at their default, as TensorFlow Serving does.
    document: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return document

"""The open inference protocol's part of `/openapi.json`. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from serving.rest.openapi import MODEL, Paths, operation, reference, response

_VERSION = {
    "name": "version",
    "in": "path",
    "required": True,
    "description": "a number, or a label",
    "schema": {"type": "string", "minLength": 1},
}
_CHOICES: Mapping[str, Sequence[Mapping[str, Any]]] = {"": (), "/versions/{version}": (_VERSION,)}

_TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "format": "int64"}},
        "parameters": {"type": "object"},
        "data": {"type": "array"},
    },
}
_TENSORS = {"type": "array", "items": reference("InferTensor")}
_READINESS = {"type": "boolean"}

SCHEMAS: Mapping[str, Any] = {
    "InferTensor": _TENSOR,
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": _TENSORS,
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
                },
            },
        },
    },
    "InferReply": {
        "type": "object",
        "required": ["model_name", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": _TENSORS,
        },
    },
    "ServerMetadata": {
        "type": "object",
        "required": ["name", "version", "extensions"],
        "properties": {"extensions": {"type": "array", "items": {"type": "string"}}},
    },
    "InferenceModelMetadata": {
        "type": "object",
        "required": ["name", "versions", "platform", "inputs", "outputs"],
        "properties": {"versions": {"type": "array", "items": {"type": "string"}}},
    },
    "ModelConfig": {"type": "object", "required": ["name", "platform", "input", "output"]},
    "ModelStatistics": {
        "type": "object",
        "required": ["model_stats"],
        "properties": {
            "model_stats": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "version", "inference_count", "inference_stats"],
                },
            }
        },
    },
    "Live": {"type": "object", "required": ["live"], "properties": {"live": _READINESS}},
    "Ready": {"type": "object", "required": ["ready"], "properties": {"ready": _READINESS}},
    "ReadyOrError": {"anyOf": [reference("Ready"), reference("Error")]},
    "RepositoryIndex": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name", "version", "state", "reason"],
            "properties": {"state": {"enum": ["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]}},
        },
    },
    "RepositoryParameters": {"type": "object"},
    "Nothing": {"type": "object", "maxProperties": 0},
}


def inference_paths() -> Paths:
    """Returns the paths of the protocol, all under `/v2`."""
    return {**_server_paths(), **_model_paths(), **_repository_paths()}


def _server_paths() -> Paths:
    ready = operation("serverReady", "The server's readiness", "Ready")
    ready["responses"]["503"] = response("The server is not ready", "ReadyOrError")
    return {
        "/v2": {"get": operation("serverMetadata", "The server's metadata", "ServerMetadata")},
        "/v2/models/stats": {
            "get": operation("statistics", "The requests of all models", "ModelStatistics")
        },
        "/v2/health/live": {"get": operation("serverLive", "The server's liveness", "Live")},
        "/v2/health/ready": {"get": ready},
    }


def _model_paths() -> Paths:
    paths: dict[str, Mapping[str, Any]] = {}
    for choice, parameters in _CHOICES.items():
        given, name = [MODEL, *parameters], "OfVersion" if choice else ""
        path = f"/v2/models/{{model}}{choice}"
        ready = operation(f"modelReady{name}", "The model's readiness", "Ready", given)
        ready["responses"]["503"] = response("The model is not ready", "ReadyOrError")
        infer = operation(f"modelInfer{name}", "Runs the model", "InferReply", given)
        infer["responses"]["200"]["content"]["application/octet-stream"] = {
            "schema": {"type": "string", "format": "binary"}
        }
        infer["requestBody"] = _body("InferRequest", is_required=True)
        paths[path] = {
            "get": operation(
                f"modelMetadata{name}", "The model's tensors", "InferenceModelMetadata", given
            )
        }
        paths[f"{path}/ready"] = {"get": ready}
        paths[f"{path}/config"] = {
            "get": operation(
                f"modelConfig{name}", "The model's configuration", "ModelConfig", given
            )
        }
        paths[f"{path}/stats"] = {
            "get": operation(
                f"modelStatistics{name}", "The model's requests", "ModelStatistics", given
            )
        }
        paths[f"{path}/infer"] = {"post": infer}
    return paths


def _repository_paths() -> Paths:
    index = operation("repositoryIndex", "All versions of all models", "RepositoryIndex")
    index["requestBody"] = _body("RepositoryParameters", is_required=False)
    paths: dict[str, Mapping[str, Any]] = {"/v2/repository/index": {"post": index}}
    for verb in ("load", "unload"):
        change = operation(
            f"repository{verb.title()}", f"{verb.title()}s the model", "Nothing", [MODEL]
        )
        change["requestBody"] = _body("RepositoryParameters", is_required=False)
        paths[f"/v2/repository/models/{{model}}/{verb}"] = {"post": change}
    return paths


def _body(schema: str, *, is_required: bool) -> dict[str, Any]:
    return {
        "required": is_required,
        "content": {"application/json": {"schema": reference(schema)}},
    }

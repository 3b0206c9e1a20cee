"""`/openapi.json`: the description of the REST API for tools. Pure, but for the route.

Each protocol brings its own `Paths`. This file has TensorFlow Serving's; others are added to them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from serving.http.app import json_response

Paths = Mapping[str, Mapping[str, Any]]
"""OpenAPI's Operation Objects, by path and then by method in lower case."""

MODEL = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
}
_VERSION = {
    "name": "version",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "format": "int64", "minimum": 0},
}
_LABEL = {
    "name": "label",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
}

_CHOICES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "": (),
    "/versions/{version}": (_VERSION,),
    "/labels/{label}": (_LABEL,),
}

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}

_STATUS = {
    "type": "object",
    "required": ["version", "state", "status"],
    "properties": {
        "version": {"type": "string", "pattern": "^[0-9]+$"},
        "state": {"enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
        "status": {
            "type": "object",
            "required": ["error_code", "error_message"],
            "properties": {"error_code": {"type": "string"}, "error_message": {"type": "string"}},
        },
    },
}

SCHEMAS: Mapping[str, Any] = {
    "Error": _ERROR,
    "VersionStatus": _STATUS,
    "ModelStatus": {
        "type": "object",
        "required": ["model_version_status"],
        "properties": {
            "model_version_status": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/VersionStatus"},
            }
        },
    },
    "ModelList": {
        "type": "object",
        "required": ["models"],
        "properties": {
            "models": {
                "type": "array",
                "items": {
                    "allOf": [
                        {"$ref": "#/components/schemas/ModelStatus"},
                        {"required": ["name"], "properties": {"name": {"type": "string"}}},
                    ]
                },
            }
        },
    },
    "ModelMetadata": {
        "type": "object",
        "required": ["model_spec", "metadata"],
        "properties": {"model_spec": {"type": "object"}, "metadata": {"type": "object"}},
    },
    "PredictRequest": {
        "type": "object",
        "description": 'Rows in `instances`, or whole tensors in `inputs`; bytes are {"b64": …}.',
        "properties": {"signature_name": {"type": "string"}},
        "oneOf": [
            {"required": ["instances"], "properties": {"instances": {"type": "array"}}},
            {"required": ["inputs"], "properties": {"inputs": {}}},
        ],
    },
    "PredictReply": {
        "type": "object",
        "oneOf": [
            {"required": ["predictions"], "properties": {"predictions": {"type": "array"}}},
            {"required": ["outputs"], "properties": {"outputs": {}}},
        ],
    },
    "ExamplesRequest": {
        "type": "object",
        "required": ["examples"],
        "properties": {
            "signature_name": {"type": "string"},
            "context": {"type": "object"},
            "examples": {"type": "array", "items": {"type": "object"}},
        },
    },
    "ExamplesReply": {
        "type": "object",
        "required": ["results"],
        "properties": {"results": {"type": "array"}},
    },
}


def model_paths() -> Paths:
    """Returns TensorFlow Serving's paths, and the path of the list of models."""
    paths: dict[str, dict[str, Any]] = {
        "/v1/models": {"get": operation("listModels", "All models", "ModelList")}
    }
    for choice, parameters in _CHOICES.items():
        given = [MODEL, *parameters]
        path, name = f"/v1/models/{{model}}{choice}", choice.split("/")[1].title() if choice else ""
        paths[path] = {
            "get": operation(f"getStatus{name}", "States of versions", "ModelStatus", given)
        }
        paths[f"{path}/metadata"] = {
            "get": operation(f"getMetadata{name}", "Signatures", "ModelMetadata", given)
        }
        for verb, kind in (
            ("predict", "Predict"),
            ("classify", "Examples"),
            ("regress", "Examples"),
        ):
            run = operation(f"{verb}{name}", f"Runs {verb}", f"{kind}Reply", given)
            run["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": reference(f"{kind}Request")}},
            }
            paths[f"{path}:{verb}"] = {"post": run}
    return paths


def openapi_document(
    version: str, paths: Paths, schemas: Mapping[str, Any] = SCHEMAS
) -> dict[str, Any]:
    """Returns the document of OpenAPI 3.1. `version` is the server's."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millpond", "version": version},
        "paths": dict(paths),
        "components": {"schemas": dict(schemas)},
    }


def openapi_routes(document: Mapping[str, Any]) -> Sequence[BaseRoute]:
    """Returns the route of the document."""

    async def openapi(request: Request) -> Response:
        del request
        return json_response(document)

    return [Route("/openapi.json", openapi)]


def operation(
    name: str, summary: str, reply: str, parameters: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Returns an Operation Object whose answer is the schema `reply`, or an Error."""
    return {
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": response("The answer", reply),
            "default": response("A refusal or a failure", "Error"),
        },
    }


def response(description: str, schema: str) -> dict[str, Any]:
    """Returns a Response Object of one of the schemas."""
    return {
        "description": description,
        "content": {"application/json": {"schema": reference(schema)}},
    }


def reference(schema: str) -> dict[str, str]:
    """Returns a Reference Object of one of the schemas."""
    return {"$ref": f"#/components/schemas/{schema}"}

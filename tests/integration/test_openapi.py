"""REST follows its own description, for requests that schemathesis generates from it."""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving import ModelServer
from serving.kserve.openapi import SCHEMAS as INFERENCE_SCHEMAS
from serving.kserve.openapi import inference_paths
from serving.rest.openapi import SCHEMAS as MODEL_SCHEMAS
from serving.rest.openapi import model_paths, openapi_document
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.rest_clients import RestClient, versions_of

CHECKS = (content_type_conformance, response_schema_conformance, status_code_conformance)
EXAMPLES_PER_OPERATION = 25

DOCUMENT = openapi_document(
    "test",
    {**model_paths(), **inference_paths()},
    {**MODEL_SCHEMAS, **INFERENCE_SCHEMAS},
)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    # An invalid operation lacks `ok`: then the import of this module fails with the reason.
    for operation in (found.ok() for found in SCHEMA.get_all_operations())  # type: ignore[union-attr]
}


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer, scale_model: ScaleModel, tmp_path_factory
) -> ModelServer:
    base_path = tmp_path_factory.mktemp("openapi")
    scale_model.write(base_path, 1)
    server = start_module_server(model_name="scale", base_path=base_path)
    wait_until(lambda: versions_of(server) == ["1"], "version 1 is AVAILABLE")
    return server


def checks_of(operation: str):
    """A 503 of a probe is an answer if the description lists it."""
    method, path = operation.split(" ")
    has_503 = "503" in DOCUMENT["paths"][path][method.lower()]["responses"]
    return [*CHECKS] if has_503 else [*CHECKS, not_a_server_error]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_answers_are_as_described(server, operation):
    @hypothesis.seed(1)
    @settings(
        max_examples=EXAMPLES_PER_OPERATION,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[operation].as_strategy(), is_there=st.booleans())
    def answer_is_as_described(case, is_there):
        if is_there and "model" in case.path_parameters:
            case.path_parameters["model"] = "scale"
        case.call_and_validate(base_url=server.url, checks=checks_of(operation))

    answer_is_as_described()


def test_the_server_shows_the_description(server):
    _, document, _ = RestClient(server).ask("GET", "/openapi.json")
    assert document["paths"] == DOCUMENT["paths"]
    assert document["components"] == DOCUMENT["components"]

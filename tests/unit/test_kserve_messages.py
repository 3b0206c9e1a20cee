"""The messages, compared with those of Triton's own client.

Its generated modules share this process.
"""

from typing import Any, cast

import pytest
from tritonclient.grpc import service_pb2

from serving.base.compiled_protos import INFERENCE_SERVICE, file_of, message_class
from serving.kserve.inference_service import InferenceService
from serving.kserve.questions import InferenceQuestions

FILE = file_of(INFERENCE_SERVICE)
MESSAGES = [
    message.full_name
    for outer in FILE.message_types_by_name.values()
    for message in (outer, *outer.nested_types)
    if not message.GetOptions().map_entry
]


def fields(descriptor: Any) -> dict[int, tuple[object, ...]]:
    return {
        field.number: (
            field.name,
            field.type,
            field.is_repeated,
            field.containing_oneof.name if field.containing_oneof else None,
            field.message_type.full_name if field.message_type else None,
        )
        for field in descriptor.fields
    }


@pytest.mark.parametrize("name", MESSAGES)
def test_message_has_the_fields_of_tritons(name: str) -> None:
    ours = fields(message_class(name).DESCRIPTOR)
    known = fields(service_pb2.DESCRIPTOR.pool.FindMessageTypeByName(name))
    assert ours.items() <= known.items()
    # The server may omit fields of its replies, but it must read every field of a request.
    if name.startswith("inference.ModelInfer") or name.endswith("Request"):
        assert ours == known


def test_service_methods_are_tritons() -> None:
    service = FILE.services_by_name["GRPCInferenceService"]
    known = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == known.full_name
    for method in service.methods:
        expected = known.methods_by_name[method.name]
        assert method.input_type.full_name == expected.input_type.full_name
        assert method.output_type.full_name == expected.output_type.full_name


def test_service_has_the_methods_answered() -> None:
    in_python = InferenceService(cast("InferenceQuestions", None)).handlers
    methods = FILE.services_by_name["GRPCInferenceService"].methods_by_name
    assert {f"/{INFERENCE_SERVICE}/{name}" for name in methods if name != "ModelInfer"} == set(
        in_python
    )


def test_data_types_are_tritons() -> None:
    known = service_pb2.DESCRIPTOR.pool.FindEnumTypeByName("inference.DataType").values
    ours = FILE.enum_types_by_name["DataType"].values
    assert {v.name: v.number for v in ours} == {v.name: v.number for v in known}


def test_bytes_of_one_are_read_by_the_other() -> None:
    sent = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"1"])
    sent.parameters["signature_name"].string_param = "other"
    sent.inputs.add(name="x", datatype="FP32", shape=[1])
    got = message_class("inference.ModelInferRequest").FromString(sent.SerializeToString())
    assert got.parameters["signature_name"].string_param == "other"
    assert got.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)


def test_file_is_one_that_stands_alone() -> None:
    assert (FILE.package, list(FILE.dependencies)) == ("inference", [])

"""The messages, compared with those of Triton's own client.

Its generated modules share this process.
"""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import service_pb2

from serving.base.kserve_messages import (
    DATA_TYPES,
    METHODS,
    file_descriptor,
    file_descriptor_proto,
    message_class,
    message_names,
)


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


def theirs(name: str) -> Any:
    outer, _, inner = name.partition(".")
    pool = service_pb2.DESCRIPTOR.pool
    found = pool.FindMessageTypeByName(f"inference.{outer}")
    return found.nested_types_by_name[inner] if inner else found


@pytest.mark.parametrize("name", list(message_names()))
def test_message_has_the_fields_of_tritons(name: str) -> None:
    ours, known = fields(message_class(name).DESCRIPTOR), fields(theirs(name))
    assert ours.items() <= known.items()
    # The server may omit fields of its replies, but it must read every field of a request.
    if name.startswith("ModelInfer") or name.endswith("Request"):
        assert ours == known


def test_service_methods_are_tritons() -> None:
    (service,) = file_descriptor().services_by_name.values()
    known = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == known.full_name
    assert set(METHODS) == set(service.methods_by_name) <= set(known.methods_by_name)
    for method in service.methods:
        expected = known.methods_by_name[method.name]
        assert method.input_type.full_name == expected.input_type.full_name
        assert method.output_type.full_name == expected.output_type.full_name


def test_data_types_are_tritons() -> None:
    pool = service_pb2.DESCRIPTOR.pool
    known = pool.FindEnumTypeByName("inference.DataType").values_by_name
    assert {name: known[name].number for name in DATA_TYPES} == {
        name: number for number, name in enumerate(DATA_TYPES)
    }


def test_bytes_of_one_are_read_by_the_other() -> None:
    sent = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"1"])
    sent.parameters["signature_name"].string_param = "other"
    sent.inputs.add(name="x", datatype="FP32", shape=[1])
    got = message_class("ModelInferRequest").FromString(sent.SerializeToString())
    assert got.parameters["signature_name"].string_param == "other"
    assert got.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)


def test_file_is_one_that_stands_alone() -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(file_descriptor_proto())
    assert (file.package, file.syntax, list(file.dependency)) == ("inference", "proto3", [])

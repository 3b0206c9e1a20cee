from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor

from serving.base.compiled_protos import file_of, message_class
from serving.base.protos import model_service_pb2, prediction_service_pb2
from serving.config.server_config import ServerConfig
from serving.data_plane.requests import ReflectionTable
from serving.rpc.reflection import reflect
from serving.rpc.transport import GRPC_SERVICES, service_files

FIELD = descriptor_pb2.FieldDescriptorProto


def reflection_class(name: str) -> Any:
    return message_class(f"grpc.reflection.v1.{name}")


def service_names(reflection: ReflectionTable) -> list[str]:
    message = reflection_class("ListServiceResponse").FromString(reflection.services)
    return [service.name for service in message.service]


def files_of(response: bytes) -> list[descriptor_pb2.FileDescriptorProto]:
    message = reflection_class("FileDescriptorResponse").FromString(response)
    return [
        descriptor_pb2.FileDescriptorProto.FromString(file)
        for file in message.file_descriptor_proto
    ]


@pytest.fixture
def scratch_files() -> list[FileDescriptor]:
    """A file with one of everything that has a name, and a file with a service that depends on it."""
    types = descriptor_pb2.FileDescriptorProto(name="types.proto", package="pkg", syntax="proto2")
    outer = types.message_type.add(name="Outer")
    outer.extension_range.add(start=100, end=200)
    outer.oneof_decl.add(name="choice")
    outer.field.add(name="x", number=1, type=FIELD.TYPE_INT32, label=1, oneof_index=0)
    inner = outer.nested_type.add(name="Inner")
    inner.enum_type.add(name="Kind").value.add(name="KIND_A", number=0)
    inner.extension.add(
        name="more", number=101, type=FIELD.TYPE_INT32, label=1, extendee=".pkg.Outer"
    )
    types.enum_type.add(name="Color").value.add(name="RED", number=0)
    types.extension.add(
        name="extra", number=100, type=FIELD.TYPE_INT32, label=1, extendee=".pkg.Outer"
    )
    service = descriptor_pb2.FileDescriptorProto(
        name="service.proto", package="pkg", dependency=["types.proto"]
    )
    service.service.add(name="Service").method.add(
        name="Call", input_type=".pkg.Outer", output_type=".pkg.Outer.Inner"
    )
    pool: Any = descriptor_pool.DescriptorPool()
    for file in (types, service):
        pool.Add(file)
    return [pool.FindFileByName("service.proto")]


def test_every_name_leads_to_declaring_file(
    scratch_files: list[FileDescriptor],
):
    in_types = ["Outer", "Outer.x", "Outer.choice", "Outer.Inner", "Outer.Inner.Kind"]
    in_types += ["Outer.Inner.KIND_A", "Outer.Inner.more", "Color", "RED", "extra"]
    assert reflect(scratch_files).symbols == {
        **{f"pkg.{name}": "types.proto" for name in in_types},
        "pkg.Service": "service.proto",
        "pkg.Service.Call": "service.proto",
    }


def test_extensions_are_found_by_number_anywhere(
    scratch_files: list[FileDescriptor],
):
    extensions = {"pkg.Outer": {100: "types.proto", 101: "types.proto"}}
    assert reflect(scratch_files).extensions == extensions


def test_file_precedes_its_dependencies(
    scratch_files: list[FileDescriptor],
):
    reflection = reflect(scratch_files)
    names = {name: [f.name for f in files_of(r)] for name, r in reflection.files.items()}
    assert names == {
        "service.proto": ["service.proto", "types.proto"],
        "types.proto": ["types.proto"],
    }


def test_only_services_of_given_files_are_listed(
    scratch_files: list[FileDescriptor],
):
    assert service_names(reflect(scratch_files)) == ["pkg.Service"]


def every_file(reflection: ReflectionTable) -> Iterator[list[descriptor_pb2.FileDescriptorProto]]:
    return (files_of(response) for response in reflection.files.values())


def test_each_response_suffices_to_build_file():
    files = [prediction_service_pb2.DESCRIPTOR, model_service_pb2.DESCRIPTOR]
    for file, *dependencies in every_file(reflect([*files, *map(file_of, GRPC_SERVICES)])):
        pool: Any = descriptor_pool.DescriptorPool()
        waiting = {f.name: f for f in [file, *dependencies]}

        def add(name: str, pool: Any = pool, waiting: Any = waiting) -> None:
            if (proto := waiting.pop(name, None)) is not None:
                for dependency in proto.dependency:
                    add(dependency)
                pool.Add(proto)

        add(file.name)
        assert pool.FindFileByName(file.name).name == file.name
        assert not waiting


@pytest.mark.parametrize("is_on", [True, False])
def test_service_files_follow_session_run_setting(is_on: bool):
    config = ServerConfig(models=(), enable_session_run=is_on)
    names = service_names(reflect(service_files(config)))
    assert ("tensorflow.serving.SessionService" in names) == is_on
    assert set(names) - {"tensorflow.serving.SessionService"} == {
        "tensorflow.ProfilerService",
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.mark.parametrize("is_on", [True, False])
def test_service_files_have_the_profiler_if_it_is_on(is_on: bool):
    names = service_names(reflect(service_files(ServerConfig(models=(), enable_profiler=is_on))))
    assert ("tensorflow.ProfilerService" in names) == is_on

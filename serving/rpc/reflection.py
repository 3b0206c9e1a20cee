"""The tables of gRPC's server reflection, which describe the services. Made once at the start.

The data plane answers from these tables; the protocol is in `native/rpc/reflection_service.cc`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from serving.base.compiled_protos import message_class
from serving.data_plane.requests import ReflectionTable

_Field = descriptor_pb2.FieldDescriptorProto
_FileProto = descriptor_pb2.FileDescriptorProto
_MessageProto = descriptor_pb2.DescriptorProto


def reflect(service_files: Sequence[FileDescriptor]) -> ReflectionTable:
    """Returns the tables of a server that answers every service of these files. Pure."""
    closures = {file.name: _closure(file) for file in _all_files(service_files)}
    messages = {name: files[0] for name, files in closures.items()}
    response = _message_class("FileDescriptorResponse")
    return ReflectionTable(
        services=_service_list(service_files),
        files={
            name: response(
                file_descriptor_proto=[file.SerializeToString() for file in files]
            ).SerializeToString()
            for name, files in closures.items()
        },
        symbols={
            symbol: name for name, message in messages.items() for symbol in _symbols(message)
        },
        extensions=_extensions(messages.values()),
    )


def _service_list(files: Sequence[FileDescriptor]) -> bytes:
    services = chain.from_iterable(file.services_by_name.values() for file in files)
    names = sorted(service.full_name for service in services)
    message = _message_class("ListServiceResponse")(service=[{"name": name} for name in names])
    serialized: bytes = message.SerializeToString()
    return serialized


def _all_files(roots: Sequence[FileDescriptor]) -> list[FileDescriptor]:
    """Returns the roots and all their dependencies, each once."""
    found: dict[str, FileDescriptor] = {}
    waiting = list(roots)
    while waiting:
        file = waiting.pop()
        if file.name not in found:
            found[file.name] = file
            waiting += file.dependencies
    return list(found.values())


def _closure(file: FileDescriptor) -> list[_FileProto]:
    """Returns the file first, and then all its dependencies."""
    protos = []
    for found in _all_files([file]):
        proto = _FileProto()
        found.CopyToProto(proto)
        protos.append(proto)
    return protos


def _symbols(file: _FileProto) -> Iterator[str]:
    prefix = f"{file.package}." if file.package else ""
    for message in file.message_type:
        yield from _symbols_of_message(message, prefix)
    yield from _symbols_of_enums(file.enum_type, prefix)
    for extension in file.extension:
        yield prefix + extension.name
    for service in file.service:
        yield prefix + service.name
        for method in service.method:
            yield f"{prefix}{service.name}.{method.name}"


def _symbols_of_message(message: _MessageProto, prefix: str) -> Iterator[str]:
    yield prefix + message.name
    inside = f"{prefix}{message.name}."
    for field in chain(message.field, message.extension):
        yield inside + field.name
    for oneof in message.oneof_decl:
        yield inside + oneof.name
    for nested in message.nested_type:
        yield from _symbols_of_message(nested, inside)
    yield from _symbols_of_enums(message.enum_type, inside)


def _symbols_of_enums(
    enums: Sequence[descriptor_pb2.EnumDescriptorProto], prefix: str
) -> Iterator[str]:
    """Yields the names of enums and their values. A value's name is beside its enum, not inside."""
    for enum in enums:
        yield prefix + enum.name
        for value in enum.value:
            yield prefix + value.name


def _extensions(files: Iterable[_FileProto]) -> dict[str, dict[int, str]]:
    by_type: dict[str, dict[int, str]] = {}
    for file in files:
        nested = chain.from_iterable(
            _extensions_of_message(message) for message in file.message_type
        )
        for extension in chain(file.extension, nested):
            numbers = by_type.setdefault(extension.extendee.lstrip("."), {})
            numbers[extension.number] = file.name
    return by_type


def _extensions_of_message(message: _MessageProto) -> Iterator[_Field]:
    yield from message.extension
    for nested in message.nested_type:
        yield from _extensions_of_message(nested)


def _message_class(name: str) -> Any:
    """Returns a message class of grpc.reflection.v1. v1alpha has the same bytes."""
    return message_class(f"grpc.reflection.v1.{name}")

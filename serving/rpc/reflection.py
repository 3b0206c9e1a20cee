"""The tables of gRPC's server reflection, which describe the services; made once at the start.

The data plane answers from these tables; the protocol is in `native/rpc/reflection_service.cc`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

_Field = descriptor_pb2.FieldDescriptorProto
_FileProto = descriptor_pb2.FileDescriptorProto
_MessageProto = descriptor_pb2.DescriptorProto

_EDITIONS = ("v1", "v1alpha")


@dataclass(frozen=True)
class Reflection:
    """The tables, by name."""

    # A serialized grpc.reflection.v1.ListServiceResponse.
    services: bytes
    # File name → a serialized FileDescriptorResponse: the file and, before whoever has one, all that
    # it depends on.
    files: Mapping[str, bytes]
    # Full name of a message, field, enum, value, service or method → name of its file.
    symbols: Mapping[str, str]
    # Extended message → field number → name of the extension's file.
    extensions: Mapping[str, Mapping[int, str]]


def reflect(service_files: Sequence[FileDescriptor]) -> Reflection:
    """The tables of a server that answers every service of these files. Pure."""
    closures = {file.name: _closure(file) for file in _all_files(service_files)}
    messages = {name: files[0] for name, files in closures.items()}
    response = _message_class("FileDescriptorResponse")
    return Reflection(
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


def grpc_builtin_files() -> list[FileDescriptor]:
    """Returns the files of the services that every server has: health and reflection itself."""
    pool = _own_pool()
    names = ["grpc/health/v1/health.proto", *(_reflection_path(edition) for edition in _EDITIONS)]
    return [pool.FindFileByName(name) for name in names]


def parse_file(serialized: bytes) -> FileDescriptor:
    """A FileDescriptorProto that depends on no other file, in a pool of its own."""
    pool: Any = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(serialized)
    file: FileDescriptor = pool.FindFileByName(_FileProto.FromString(serialized).name)
    return file


def _service_list(files: Sequence[FileDescriptor]) -> bytes:
    services = chain.from_iterable(file.services_by_name.values() for file in files)
    names = sorted(service.full_name for service in services)
    message = _message_class("ListServiceResponse")(service=[{"name": name} for name in names])
    serialized: bytes = message.SerializeToString()
    return serialized


def _all_files(roots: Sequence[FileDescriptor]) -> list[FileDescriptor]:
    """The roots and what they depend on, each once."""
    found: dict[str, FileDescriptor] = {}
    waiting = list(roots)
    while waiting:
        file = waiting.pop()
        if file.name not in found:
            found[file.name] = file
            waiting += file.dependencies
    return list(found.values())


def _closure(file: FileDescriptor) -> list[_FileProto]:
    """The file first, and then what it depends on."""
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
    """A value lies beside its enum, not within."""
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
    pool = _own_pool()
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grpc.reflection.v1.{name}"))


@cache
def _own_pool() -> Any:
    """gRPC's own protos, written here as packages that have them would bring grpcio along. Apart from
    protobuf's default pool, where a process may have those packages'.
    """
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(_health_file())
    for edition in _EDITIONS:
        pool.Add(_reflection_file(edition))
    return pool


def _health_file() -> _FileProto:
    package = "grpc.health.v1"
    file = _FileProto(name="grpc/health/v1/health.proto", package=package, syntax="proto3")
    _add_message(file, "HealthCheckRequest", service=(1, _Field.TYPE_STRING))
    response = _add_message(
        file,
        "HealthCheckResponse",
        status=(1, f".{package}.HealthCheckResponse.ServingStatus"),
    )
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        status.value.add(name=name, number=number)
    response.field[0].type = _Field.TYPE_ENUM
    service = file.service.add(name="Health")
    for method, is_stream in (("Check", False), ("Watch", True)):
        service.method.add(
            name=method,
            input_type=f".{package}.HealthCheckRequest",
            output_type=f".{package}.HealthCheckResponse",
            server_streaming=is_stream,
        )
    return file


def _reflection_path(edition: str) -> str:
    return f"grpc/reflection/{edition}/reflection.proto"


def _reflection_file(edition: str) -> _FileProto:
    package = f"grpc.reflection.{edition}"
    file = _FileProto(name=_reflection_path(edition), package=package, syntax="proto3")
    text, number = _Field.TYPE_STRING, _Field.TYPE_INT32
    request = _add_message(
        file,
        "ServerReflectionRequest",
        host=(1, text),
        file_by_filename=(3, text),
        file_containing_symbol=(4, text),
        file_containing_extension=(5, f".{package}.ExtensionRequest"),
        all_extension_numbers_of_type=(6, text),
        list_services=(7, text),
    )
    _make_oneof(request, "message_request", first_number=3)
    _add_message(file, "ExtensionRequest", containing_type=(1, text), extension_number=(2, number))
    response = _add_message(
        file,
        "ServerReflectionResponse",
        valid_host=(1, text),
        original_request=(2, f".{package}.ServerReflectionRequest"),
        file_descriptor_response=(4, f".{package}.FileDescriptorResponse"),
        all_extension_numbers_response=(5, f".{package}.ExtensionNumberResponse"),
        list_services_response=(6, f".{package}.ListServiceResponse"),
        error_response=(7, f".{package}.ErrorResponse"),
    )
    _make_oneof(response, "message_response", first_number=4)
    files = _add_message(
        file, "FileDescriptorResponse", file_descriptor_proto=(1, _Field.TYPE_BYTES)
    )
    numbers = _add_message(
        file, "ExtensionNumberResponse", base_type_name=(1, text), extension_number=(2, number)
    )
    services = _add_message(file, "ListServiceResponse", service=(1, f".{package}.ServiceResponse"))
    for repeated in (files.field[0], numbers.field[1], services.field[0]):
        repeated.label = _Field.LABEL_REPEATED
    _add_message(file, "ServiceResponse", name=(1, text))
    _add_message(file, "ErrorResponse", error_code=(1, number), error_message=(2, text))
    file.service.add(name="ServerReflection").method.add(
        name="ServerReflectionInfo",
        input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


def _add_message(
    file: _FileProto, name: str, /, **fields: tuple[int, "_Field.Type.ValueType | str"]
) -> _MessageProto:
    """Each field is (number, type), a message's type by its full name."""
    message = file.message_type.add(name=name)
    for field_name, (number, kind) in fields.items():
        field = message.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
        if isinstance(kind, str):
            field.type, field.type_name = _Field.TYPE_MESSAGE, kind
        else:
            field.type = kind
    return message


def _make_oneof(message: _MessageProto, name: str, *, first_number: int) -> None:
    """Puts the fields from `first_number` on into a oneof."""
    message.oneof_decl.add(name=name)
    for field in message.field:
        if field.number >= first_number:
            field.oneof_index = 0

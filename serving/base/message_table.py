"""Builds protobuf messages from tables of field numbers, for services without installed pb2 modules."""

from collections.abc import Iterable, Mapping

from google.protobuf import descriptor_pb2

Fields = Mapping[int, tuple[str, str]]
"""The fields of one message: number to name and type.

`[T]` is repeated, `{T}` a map of names to T, `?T` a member of the message's oneof, `#T` an enum.
"""

_Field = descriptor_pb2.FieldDescriptorProto
_Message = descriptor_pb2.DescriptorProto

_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def add_messages(
    file: descriptor_pb2.FileDescriptorProto, messages: Mapping[str, Fields], *, choice: str = ""
) -> None:
    """Adds messages by their names to `file`; one named `A.B` is nested in A, which comes first.

    `choice` is the name of every message's oneof.
    """
    by_name: dict[str, _Message] = {}
    for full_name, fields in messages.items():
        parent, _, name = full_name.rpartition(".")
        message = by_name[parent].nested_type.add() if parent else file.message_type.add()
        message.name = name
        by_name[full_name] = message
        _Builder(file.package, choice).add_fields(message, full_name, fields)


def add_service(
    file: descriptor_pb2.FileDescriptorProto, full_name: str, methods: Iterable[str]
) -> None:
    """Adds a service of `file`'s package whose method M takes MRequest and returns MResponse."""
    service = file.service.add(name=full_name.rpartition(".")[2])
    for method in methods:
        service.method.add(
            name=method,
            input_type=f".{file.package}.{method}Request",
            output_type=f".{file.package}.{method}Response",
        )


class _Builder:
    def __init__(self, package: str, choice: str) -> None:
        self._package = package
        self._choice = choice

    def add_fields(self, message: _Message, full_name: str, fields: Fields) -> None:
        if any(kind.startswith("?") for _, kind in fields.values()):
            message.oneof_decl.add(name=self._choice)
        for number, (name, kind) in fields.items():
            field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
            if kind.startswith(("[", "{")):
                field.label = _Field.LABEL_REPEATED
            if kind.startswith("?"):
                field.oneof_index = 0
            is_map = kind.startswith("{")
            entry = self._add_entry(message, full_name, name, kind.strip("{}")) if is_map else ""
            self._set_type(field, entry or kind.strip("[]?"))

    def _add_entry(self, message: _Message, full_name: str, field_name: str, value: str) -> str:
        """Adds the entry message of a map, which is a repeated field of key and value on the wire.

        Returns the entry's full name.
        """
        entry = message.nested_type.add(name=f"{field_name.capitalize()}Entry")
        entry.options.map_entry = True
        self.add_fields(entry, "", {1: ("key", "string"), 2: ("value", value)})
        return f"{full_name}.{entry.name}"

    def _set_type(self, field: _Field, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
            return
        field.type = _Field.TYPE_ENUM if kind.startswith("#") else _Field.TYPE_MESSAGE
        field.type_name = f".{self._package}.{kind.lstrip('#')}"

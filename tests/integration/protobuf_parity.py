"""Which bytes of a PredictRequest the server reads: it may skip what protobuf refuses, and no more."""

from collections.abc import Iterator
from dataclasses import dataclass

from serving.base.protos import types_pb2

# The numbers of the fields in the protos.
MODEL_SPEC, INPUTS, OUTPUT_FILTER = 1, 2, 3
KEY, VALUE = 1, 2
DTYPE, TENSOR_SHAPE, TENSOR_CONTENT = 1, 2, 4
VALUE_FIELDS = {
    **dict.fromkeys(("DT_HALF", "DT_BFLOAT16"), 13),
    "DT_FLOAT": 5,
    "DT_DOUBLE": 6,
    "DT_STRING": 8,
    "DT_COMPLEX64": 9,
    "DT_INT64": 10,
    "DT_BOOL": 11,
    "DT_COMPLEX128": 12,
    "DT_UINT32": 16,
    "DT_UINT64": 17,
}
INT_FIELD = 7
DELIMITED = 2


@dataclass(frozen=True)
class Field:
    """One field of a message: `raw` is all of it, `body` the content of a delimited field."""

    number: int
    kind: int
    raw: bytes
    body: bytes


def fields(message: bytes) -> Iterator[Field]:
    """Yields the fields of a message as long as it is well-formed; then raises IndexError."""
    position = 0
    while position < len(message):
        begin = position
        tag, position = read_varint(message, position)
        start = position
        if tag & 7 == 0:
            _, position = read_varint(message, position)
        elif tag & 7 == DELIMITED:
            size, start = read_varint(message, position)
            position = start + size
        elif tag & 7 in (1, 5):
            position += 8 if tag & 7 == 1 else 4
        yield Field(tag >> 3, tag & 7, message[begin:position], message[start:position])


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Returns the value and the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def delimited(number: int, body: bytes) -> bytes:
    size = bytearray()
    rest = len(body)
    while rest >= 128:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | DELIMITED, *size, rest]) + body


def has_entry_with_two_values(message: bytes) -> bool:
    """Protobuf merges the two fields. Encoders never write this, and Millpond refuses it."""
    return any(
        sum((field.number, field.kind) == (VALUE, DELIMITED) for field in fields(entry.body)) > 1
        for entry in fields(message)
        if (entry.number, entry.kind) == (INPUTS, DELIMITED)
    )


def what_millpond_reads(message: bytes) -> bytes:
    """Returns the message without the parts that the server skips unread.

    These parts are request options and the like, an input that a later one of the same name
    replaces, and in a tensor the values for other dtypes.
    """
    kept = []
    inputs: dict[bytes, bytes] = {}
    for field in fields(message):
        if field.kind == DELIMITED and field.number in (MODEL_SPEC, OUTPUT_FILTER):
            kept.append(field.raw)
        elif field.kind == DELIMITED and field.number == INPUTS:
            key, value = b"", b""
            for part in fields(field.body):
                if (part.number, part.kind) == (KEY, DELIMITED):
                    key = part.body
                elif (part.number, part.kind) == (VALUE, DELIMITED):
                    value = part.body
            inputs[key] = value
    for key, value in inputs.items():
        entry = delimited(KEY, key) + delimited(VALUE, what_millpond_reads_of_a_tensor(value))
        kept.append(delimited(INPUTS, entry))
    return b"".join(kept)


def what_millpond_reads_of_a_tensor(tensor: bytes) -> bytes:
    parts = list(fields(tensor))
    dtype = 0
    for part in parts:
        if (part.number, part.kind) == (DTYPE, 0):
            dtype, _ = read_varint(part.body, 0)
    name = types_pb2.DataType.Name(dtype)
    read = {DTYPE, TENSOR_SHAPE, TENSOR_CONTENT, VALUE_FIELDS.get(name, INT_FIELD)}
    return b"".join(part.raw for part in parts if part.number in read)

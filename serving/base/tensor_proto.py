"""Converts numpy arrays to TensorProto and back without TensorFlow, for clients and warm-up records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from serving.base.deferred_module import DeferredModule
from serving.base.errors import InvalidArgument
from serving.base.protos import tensor_pb2, tensor_shape_pb2, types_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = DeferredModule("numpy")


@dataclass(frozen=True)
class _Encoding:
    """The encoding of one dtype in a TensorProto whose values are not in `tensor_content`.

    `field` is the repeated field; `decode` turns the field's values into a flat array of the dtype.
    `array_dtype` is a name that `np.dtype` accepts, or a name of ml_dtypes if `is_extension`.
    """

    array_dtype: str
    field: str
    decode: Callable[[Any, np.dtype[Any]], npt.NDArray[Any]]
    is_extension: bool = False


def _decode_numbers(values: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.array(values, dtype)


def _decode_small_integers(values: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    # A uint8 of 255 may be encoded as -1. TensorFlow casts values, so this wraps around too.
    return np.array(values, np.int64).astype(dtype)


def _decode_half_bits(values: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.array(values, np.int64).astype(np.uint16).view(dtype)


def _decode_pairs(values: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    real = np.float32 if dtype == np.complex64 else np.float64
    return np.array(values, real).view(dtype)


def _decode_bytes(values: bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(values, dtype)


_ENCODINGS = {
    types_pb2.DT_FLOAT: _Encoding("float32", "float_val", _decode_numbers),
    types_pb2.DT_DOUBLE: _Encoding("float64", "double_val", _decode_numbers),
    types_pb2.DT_INT64: _Encoding("int64", "int64_val", _decode_numbers),
    types_pb2.DT_INT32: _Encoding("int32", "int_val", _decode_numbers),
    types_pb2.DT_INT16: _Encoding("int16", "int_val", _decode_small_integers),
    types_pb2.DT_INT8: _Encoding("int8", "int_val", _decode_small_integers),
    types_pb2.DT_UINT64: _Encoding("uint64", "uint64_val", _decode_numbers),
    types_pb2.DT_UINT32: _Encoding("uint32", "uint32_val", _decode_numbers),
    types_pb2.DT_UINT16: _Encoding("uint16", "int_val", _decode_small_integers),
    types_pb2.DT_UINT8: _Encoding("uint8", "int_val", _decode_small_integers),
    types_pb2.DT_BOOL: _Encoding("bool", "bool_val", _decode_numbers),
    types_pb2.DT_COMPLEX64: _Encoding("complex64", "scomplex_val", _decode_pairs),
    types_pb2.DT_COMPLEX128: _Encoding("complex128", "dcomplex_val", _decode_pairs),
    types_pb2.DT_HALF: _Encoding("float16", "half_val", _decode_half_bits),
    types_pb2.DT_BFLOAT16: _Encoding("bfloat16", "half_val", _decode_half_bits, is_extension=True),
    types_pb2.DT_FLOAT8_E5M2: _Encoding(
        "float8_e5m2", "float8_val", _decode_bytes, is_extension=True
    ),
    types_pb2.DT_FLOAT8_E4M3FN: _Encoding(
        "float8_e4m3fn", "float8_val", _decode_bytes, is_extension=True
    ),
}
_DATA_TYPES = {encoding.array_dtype: data_type for data_type, encoding in _ENCODINGS.items()}


def to_tensor_proto(values: npt.ArrayLike) -> tensor_pb2.TensorProto:
    """Encodes an array: numbers in `tensor_content`, text (as UTF-8) and bytes in `string_val`.

    Raises InvalidArgument for a dtype that TensorProto does not carry.
    """
    array = as_array(values)
    if array.dtype.kind in "USO":
        return _string_tensor_proto(array)
    data_type = _DATA_TYPES.get(array.dtype.name)
    if data_type is None:
        raise InvalidArgument(f"dtype {array.dtype} has no TensorProto; convert the array first")
    little_endian = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return tensor_pb2.TensorProto(
        dtype=data_type, tensor_shape=_shape_proto(array), tensor_content=little_endian.tobytes()
    )


def as_array(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Does `numpy.asarray(values)`, but keeps text and bytes in lists as Python objects.

    numpy's own arrays of bytes cut off zeros at the end of each value, and turn numbers beside text
    into text. Raises ValueError if nested lists differ in length.
    """
    array = np.asarray(values)
    if array.dtype.kind in "US" and not isinstance(values, np.ndarray):
        return np.array(values, object)
    return array


def from_tensor_proto(proto: tensor_pb2.TensorProto) -> npt.NDArray[Any]:
    """Decodes a tensor, with TensorFlow's rule that the last value given fills up the shape.

    Strings become an object array of bytes. Raises InvalidArgument if shape and values contradict
    each other, or if numpy does not have the dtype.
    """
    shape = _checked_shape(proto)
    if proto.dtype == types_pb2.DT_STRING:
        return _filled(np.array(proto.string_val, object), shape, missing=b"")
    encoding = _ENCODINGS.get(proto.dtype)
    if encoding is None:
        raise InvalidArgument(f"no numpy dtype for {data_type_name(proto.dtype)}")
    dtype = array_dtype(proto.dtype)
    if proto.tensor_content:
        return _from_content(proto.tensor_content, dtype, shape)
    values = encoding.decode(getattr(proto, encoding.field), dtype)
    return _filled(values, shape, missing=dtype.type(0))


def array_dtype(data_type: int) -> np.dtype[Any]:
    """The numpy dtype of a `types_pb2.DataType`; `object` for DT_STRING.

    Raises InvalidArgument if numpy does not have the dtype.
    """
    if data_type == types_pb2.DT_STRING:
        return np.dtype(object)
    encoding = _ENCODINGS.get(data_type)
    if encoding is None:
        raise InvalidArgument(f"no numpy dtype for {data_type_name(data_type)}")
    if encoding.is_extension:
        import ml_dtypes  # 60 ms to import, for dtypes that are rare on the wire

        extension: type[Any] = getattr(ml_dtypes, encoding.array_dtype)
        return np.dtype(extension)
    return np.dtype(encoding.array_dtype)


def data_type_name(data_type: int) -> str:
    """The name of a data type, `DT_FLOAT` for 1; the number if this TensorFlow has no name for it."""
    value = types_pb2.DataType.DESCRIPTOR.values_by_number.get(data_type)
    return value.name if value else f"DataType {data_type}"


def _string_tensor_proto(array: npt.NDArray[Any]) -> tensor_pb2.TensorProto:
    return tensor_pb2.TensorProto(
        dtype=types_pb2.DT_STRING,
        tensor_shape=_shape_proto(array),
        string_val=[_as_bytes(value) for value in array.ravel().tolist()],
    )


def _as_bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise InvalidArgument(f"{value!r} is not text; a tensor of strings holds only str or bytes")


def _shape_proto(array: npt.NDArray[Any]) -> tensor_shape_pb2.TensorShapeProto:
    dims = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in array.shape]
    return tensor_shape_pb2.TensorShapeProto(dim=dims)


def _checked_shape(proto: tensor_pb2.TensorProto) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        raise InvalidArgument(f"a tensor's shape must be known and not negative, got {shape}")
    return shape


def _from_content(content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    expected_bytes = prod(shape) * dtype.itemsize
    if len(content) != expected_bytes:
        raise InvalidArgument(
            f"tensor_content has {len(content)} bytes, {dtype}{list(shape)} takes {expected_bytes}"
        )
    # A copy, because the caller may expect to write to the array, and `content` is immutable.
    array: npt.NDArray[Any] = np.frombuffer(content, dtype).reshape(shape).copy()
    return array


def _filled(
    values: npt.NDArray[Any], shape: tuple[int, ...], *, missing: object
) -> npt.NDArray[Any]:
    count = prod(shape)
    if len(values) > count:
        raise InvalidArgument(f"{len(values)} values for a tensor of shape {list(shape)}")
    if len(values) == count:
        return values.reshape(shape)
    last = values[-1] if len(values) else missing
    array = np.empty(count, values.dtype)
    array[: len(values)] = values
    array[len(values) :] = last
    return array.reshape(shape)

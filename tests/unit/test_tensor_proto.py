import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from serving.base.errors import InvalidArgument
from serving.base.protos import tensor_pb2, types_pb2
from serving.base.tensor_proto import (
    array_dtype,
    data_type_name,
    from_tensor_proto,
    to_tensor_proto,
)

DTYPES = [
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
]


def proto_with(data_type: int, shape: list[int], **values: object) -> tensor_pb2.TensorProto:
    proto = tensor_pb2.TensorProto(dtype=data_type, **values)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hypothesis_numpy.arrays(
            dtype, hypothesis_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
        )
    )
)
def test_tensor_proto_of_numbers_round_trips(array: np.ndarray):
    again = from_tensor_proto(to_tensor_proto(array))
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()


@given(st.lists(st.binary(max_size=5), max_size=5))
def test_tensor_proto_of_bytes_round_trips(values: list[bytes]):
    array = np.array(values, object)
    assert from_tensor_proto(to_tensor_proto(array)).tolist() == values


@given(st.lists(st.binary(max_size=5), max_size=5))
def test_bytes_list_keeps_trailing_zeros(values: list[bytes]):
    assert from_tensor_proto(to_tensor_proto([*values, b"a\0"])).tolist() == [*values, b"a\0"]


def test_text_beside_number_is_refused():
    with pytest.raises(InvalidArgument, match="1 is not text"):
        to_tensor_proto(["a", 1])  # type: ignore[arg-type]


def test_tensor_proto_of_text_is_utf_8():
    assert from_tensor_proto(to_tensor_proto([["ä", "b"]])).tolist() == [["ä".encode(), b"b"]]


def test_transposed_array_keeps_logical_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert from_tensor_proto(to_tensor_proto(array)).tolist() == array.tolist()


def test_tensor_proto_of_big_endian_array_keeps_values():
    array = np.array([1, 2, 3], ">i4")
    assert from_tensor_proto(to_tensor_proto(array)).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (proto_with(types_pb2.DT_FLOAT, [3], float_val=[1.5, 2.5]), [1.5, 2.5, 2.5]),
        (proto_with(types_pb2.DT_INT32, [2, 2], int_val=[7]), [[7, 7], [7, 7]]),
        (proto_with(types_pb2.DT_UINT8, [2], int_val=[-1, 255]), [255, 255]),
        (proto_with(types_pb2.DT_INT64, [2]), [0, 0]),
        (proto_with(types_pb2.DT_BOOL, [], bool_val=[True]), True),
        (proto_with(types_pb2.DT_STRING, [3], string_val=[b"a", b"b"]), [b"a", b"b", b"b"]),
        (proto_with(types_pb2.DT_STRING, [1]), [b""]),
        (proto_with(types_pb2.DT_HALF, [2], half_val=[0x3C00]), [1.0, 1.0]),
        (proto_with(types_pb2.DT_BFLOAT16, [1], half_val=[0x3F80]), [1.0]),
        (proto_with(types_pb2.DT_COMPLEX64, [2], scomplex_val=[1, 2]), [1 + 2j, 1 + 2j]),
        (proto_with(types_pb2.DT_FLOAT8_E5M2, [1], float8_val=b"\x3c"), [1.0]),
    ],
)
def test_typed_values_repeat_last_one(proto: tensor_pb2.TensorProto, expected: object):
    assert from_tensor_proto(proto).tolist() == expected


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (proto_with(types_pb2.DT_FLOAT, [2], tensor_content=b"1234"), "4 bytes, .* takes 8"),
        (proto_with(types_pb2.DT_FLOAT, [1], float_val=[1, 2]), "2 values"),
        (proto_with(types_pb2.DT_FLOAT, [-1]), "not negative"),
        (proto_with(types_pb2.DT_RESOURCE, [1]), "DT_RESOURCE"),
    ],
)
def test_contradictory_proto_is_invalid_argument(proto: tensor_pb2.TensorProto, message: str):
    with pytest.raises(InvalidArgument, match=message):
        from_tensor_proto(proto)


def test_from_tensor_proto_array_is_writable():
    array = from_tensor_proto(to_tensor_proto(np.zeros(2)))
    array[0] = 1
    assert array.tolist() == [1, 0]


@pytest.mark.parametrize("values", [np.array(["2020"], "M8[D]"), np.array([{}], object)])
def test_unrepresentable_array_is_invalid_argument(values: np.ndarray):
    with pytest.raises(InvalidArgument):
        to_tensor_proto(values)


def test_array_dtype_of_string_is_object():
    assert array_dtype(types_pb2.DT_STRING) == np.dtype(object)


def test_unknown_data_type_is_named_by_number():
    assert data_type_name(1) == "DT_FLOAT"
    assert data_type_name(9999) == "DataType 9999"

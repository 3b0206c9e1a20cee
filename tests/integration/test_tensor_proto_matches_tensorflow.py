"""serving.base.tensor_proto against TensorFlow's own conversion, both ways, for every dtype."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto

ARRAYS = [
    *(
        np.array([[0, 1, 2], [3, 4, 5]], dtype)
        for dtype in (
            *("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
            *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn),
        )
    ),
    np.array(-1, "int8"),
    np.array([1 + 2j, 3 - 4j], "complex64"),
    np.zeros((0, 4), "float32"),
    np.full((4, 4), 7.5, "float32"),
    np.array([b"a", b"\x00b", b""], object),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_from_tensor_proto_reads_tensorflow_bytes(array: np.ndarray):
    again = from_tensor_proto(tf.make_tensor_proto(array))
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_to_tensor_proto_is_read_by_tensorflow(array: np.ndarray):
    np.testing.assert_array_equal(tf.make_ndarray(to_tensor_proto(array)), array)

"""One pass of each dtype through a real server: a model returns what arrived, bit for bit.

TensorFlow's own conversions read the answer. `tests/native/tensor_codec_test.cc` has every form of each
encoding, and `predict_codec_test.cc` the messages around it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.base.protos import (
    get_model_metadata_pb2,
    predict_pb2,
    tensor_pb2,
    tensor_shape_pb2,
    types_pb2,
)
from tests.integration.clients import Caller, array, predict_request
from tests.integration.exports import ECHO_DTYPES
from tests.integration.model_host import ModelHost

NUMBER_DTYPES = tuple(dtype for dtype in ECHO_DTYPES if dtype != "string")

_ENUM = {
    **{
        dtype: getattr(types_pb2, f"DT_{dtype.upper()}") for dtype in ECHO_DTYPES if dtype[0] != "f"
    },
    "float16": types_pb2.DT_HALF,
    "float32": types_pb2.DT_FLOAT,
    "float64": types_pb2.DT_DOUBLE,
    "float8_e5m2": types_pb2.DT_FLOAT8_E5M2,
    "float8_e4m3fn": types_pb2.DT_FLOAT8_E4M3FN,
}
_QUANTIZED = {
    "qint8": "int8",
    "quint8": "uint8",
    "qint16": "int16",
    "quint16": "uint16",
    "qint32": "int32",
}


@pytest.fixture(scope="module")
def server(module_host: ModelHost, echo_export: Path) -> ModelServer:
    return module_host.model(name="echo").serve(echo_export, 7).server


def array_dtype(dtype: str) -> Any:
    """Returns the numpy dtype with the memory of a TensorFlow dtype."""
    import ml_dtypes

    name = _QUANTIZED.get(dtype, dtype)
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def values_of(dtype: str) -> Any:
    """Returns six values of a dtype, its extremes among them."""
    kind = array_dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return np.array([limits.min, limits.max, 0, 1, limits.max - 1, 77], kind)
    if kind.kind == "b":
        return np.array([True, False, False, True, True, False])
    if kind.kind == "c":
        return np.array([1 + 2j, -3.5j, 0, np.inf, -1, complex(0, np.nan)], kind)
    return np.array([1.5, -2.25, 0, -0.0, np.nan, 448], np.float32).astype(kind)


def field_values(dtype: str, values: Any) -> dict[str, Any]:
    """Returns the typed field of TensorProto that carries `values`, as tensor.proto has it."""
    flat = values.reshape(-1)
    if dtype == "complex64":
        return {"scomplex_val": flat.view(np.float32).tolist()}
    if dtype == "complex128":
        return {"dcomplex_val": flat.view(np.float64).tolist()}
    if dtype in ("float16", "bfloat16"):
        return {"half_val": flat.view(np.uint16).tolist()}
    if dtype.startswith("float8"):
        return {"float8_val": flat.tobytes()}
    field = {
        "float32": "float_val",
        "float64": "double_val",
        "int64": "int64_val",
        "uint64": "uint64_val",
        "uint32": "uint32_val",
        "bool": "bool_val",
    }.get(dtype, "int_val")
    return {field: flat.tolist()}


def tensor(dtype: str, shape: tuple[int, ...], **fields: Any) -> tensor_pb2.TensorProto:
    dims = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in shape]
    return tensor_pb2.TensorProto(
        dtype=_ENUM[dtype], tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=dims), **fields
    )


def request_of(dtype: str, proto: tensor_pb2.TensorProto) -> predict_pb2.PredictRequest:
    request = predict_request("echo", {}, signature_name=f"echo_{dtype}")
    request.inputs["x"].CopyFrom(proto)
    return request


def echo(caller: Caller, dtype: str, proto: tensor_pb2.TensorProto) -> tensor_pb2.TensorProto:
    answer = caller.predict(request_of(dtype, proto)).outputs["y"]
    assert answer.dtype == _ENUM[dtype]
    return answer


def by_tensorflow(proto: tensor_pb2.TensorProto) -> bytes:
    """Returns the memory of the tensor as TensorFlow's own decoder reads it."""
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(proto.dtype)
    memory: bytes = tf.io.parse_tensor(proto.SerializeToString(), dtype).numpy().tobytes()
    return memory


def shape_of(proto: tensor_pb2.TensorProto) -> tuple[int, ...]:
    return tuple(dim.size for dim in proto.tensor_shape.dim)


def assert_echoes(caller: Caller, dtype: str, proto: tensor_pb2.TensorProto, expected: Any) -> None:
    """Asserts that the answer to `proto` is `expected`, bit for bit."""
    answer = echo(caller, dtype, proto)
    assert shape_of(answer) == expected.shape
    # Bytes are compared in place of values, because NaNs and signed zeros count.
    assert by_tensorflow(answer) == expected.tobytes()


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
def test_predict_values_arrive_bit_for_bit(caller: Caller, dtype: str):
    values = values_of(dtype).reshape(2, 3)
    assert_echoes(caller, dtype, tensor(dtype, (2, 3), tensor_content=values.tobytes()), values)
    assert_echoes(caller, dtype, tensor(dtype, (2, 3), **field_values(dtype, values)), values)
    empty = values.reshape(-1)[:0].reshape(3, 0, 2)
    assert_echoes(caller, dtype, tensor(dtype, (3, 0, 2)), empty)


def test_predict_keeps_order_beyond_numpy_dimensions(caller: Caller):
    shape = (1, 2, 1, 3, *[1] * 249, 4)
    values = [value - 12 for value in range(24)]
    answer = echo(caller, "int64", tensor("int64", shape, int64_val=values))
    assert (shape_of(answer), list(answer.int64_val)) == (shape, values)


def test_predict_ignores_field_of_other_dtype(caller: Caller):
    proto = tensor("int64", (2,), int_val=[8, 9])
    assert by_tensorflow(proto) == bytes(16)
    assert_echoes(caller, "int64", proto, np.zeros(2, np.int64))


STRINGS = [
    b"",
    b"plain",
    b"\x00",
    b"a\x00b\x00",
    "Größe 漢字".encode(),
    bytes(range(256)),
    b"x" * 10_000,
]


def test_predict_strings_arrive_byte_for_byte(caller: Caller):
    proto = tensor("string", (len(STRINGS),), string_val=STRINGS)
    assert array(echo(caller, "string", proto)).tolist() == STRINGS


def test_predict_tensor_of_many_megabytes_arrives(caller: Caller):
    # Larger than any buffer of the network, so that the content lies in many pieces.
    values = np.random.default_rng(2).integers(0, 2**63, 2_000_003, np.int64)
    proto = tensor("int64", values.shape, tensor_content=values.tobytes())
    assert_echoes(caller, "int64", proto, values)
    proto = tensor("int64", values.shape, int64_val=values.tolist())
    assert_echoes(caller, "int64", proto, values)


def test_metadata_has_signatures_as_exported(caller: Caller, echo_export: Path):
    from serving.base.protos import saved_model_pb2

    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "echo"
    reply = caller.metadata(request)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert reply.metadata["signature_def"].Unpack(signatures)
    saved_model = saved_model_pb2.SavedModel.FromString(
        (echo_export / "saved_model.pb").read_bytes()
    )
    (meta_graph,) = saved_model.meta_graphs
    assert dict(signatures.signature_def) == dict(meta_graph.signature_def)
    assert (reply.model_spec.name, reply.model_spec.version.value) == ("echo", 7)

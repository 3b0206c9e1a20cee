"""Every encoding that a client may send arrives right: a model returns it unchanged.

TensorFlow's own conversions read the answer and make the expected value.
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
from tests.integration.clients import Caller, array, caller_to, predict_request
from tests.integration.conftest import StartServer
from tests.integration.exports import ECHO_DTYPES, ScaleModel, drop

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
def server(
    start_module_server: StartServer, echo_export: Path, tmp_path_factory: pytest.TempPathFactory
) -> ModelServer:
    base_path = tmp_path_factory.mktemp("echo")
    drop(echo_export, base_path, 7)
    server = start_module_server(model_name="echo", base_path=base_path)
    server.wait_until_available("echo", 7)
    return server


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
def test_predict_tensor_content_arrives_bit_for_bit(caller: Caller, dtype: str):
    values = values_of(dtype).reshape(2, 3)
    proto = tensor(dtype, (2, 3), tensor_content=values.tobytes())
    assert_echoes(caller, dtype, proto, values)


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
def test_predict_typed_field_arrives_bit_for_bit(caller: Caller, dtype: str):
    values = values_of(dtype).reshape(3, 2)
    proto = tensor(dtype, (3, 2), **field_values(dtype, values))
    assert_echoes(caller, dtype, proto, values)


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
def test_predict_too_few_values_repeat_last(caller: Caller, dtype: str):
    values = values_of(dtype)
    proto = tensor(dtype, (3, 3), **field_values(dtype, values[:2]))
    expected = np.array([values[0], *[values[1]] * 8], values.dtype).reshape(3, 3)
    assert by_tensorflow(proto) == expected.tobytes()
    assert_echoes(caller, dtype, proto, expected)


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
def test_predict_one_value_fills_a_tensor(caller: Caller, dtype: str):
    values = values_of(dtype)[1:2]
    proto = tensor(dtype, (2, 2), **field_values(dtype, values))
    assert_echoes(caller, dtype, proto, np.full((2, 2), values[0], values.dtype))


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
def test_predict_no_values_are_zeros(caller: Caller, dtype: str):
    assert_echoes(caller, dtype, tensor(dtype, (2, 2)), np.zeros((2, 2), array_dtype(dtype)))


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
@pytest.mark.parametrize("encoding", ["content", "field"])
def test_predict_scalar_arrives(caller: Caller, dtype: str, encoding: str):
    value = values_of(dtype)[1:2].reshape(())
    fields = (
        {"tensor_content": value.tobytes()} if encoding == "content" else field_values(dtype, value)
    )
    assert_echoes(caller, dtype, tensor(dtype, (), **fields), value)


@pytest.mark.parametrize("dtype", ECHO_DTYPES)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)], ids=str)
def test_predict_empty_tensor_keeps_its_shape(caller: Caller, dtype: str, shape: tuple[int, ...]):
    assert shape_of(echo(caller, dtype, tensor(dtype, shape))) == shape


def test_predict_keeps_order_beyond_numpy_dimensions(caller: Caller):
    shape = (1, 2, 1, 3, *[1] * 249, 4)
    values = [value - 12 for value in range(24)]
    answer = echo(caller, "int64", tensor("int64", shape, int64_val=values))
    assert (shape_of(answer), list(answer.int64_val)) == (shape, values)


def test_predict_unpacked_values_equal_packed_ones(caller: Caller):
    # Proto2 clients and hand-written encoders send each element with its own tag.
    tag_and_value = [b"\x50" + bytes([value]) for value in (5, 6, 7)]
    packed_rest = b"\x52\x02\x08\x09"
    message = tensor("int64", (5,)).SerializeToString() + b"".join(tag_and_value) + packed_rest
    proto = tensor_pb2.TensorProto.FromString(message)
    assert list(proto.int64_val) == [5, 6, 7, 8, 9]
    request = request_of("int64", tensor_pb2.TensorProto())
    # Protobuf would write the parsed tensor packed, so the entry is made by hand.
    entry = b"\x0a\x01x\x12" + bytes([len(message)]) + message
    request.ClearField("inputs")
    sent = request.SerializeToString() + b"\x12" + bytes([len(entry)]) + entry
    reply = caller.send_bytes("/tensorflow.serving.PredictionService/Predict", sent)
    answer = predict_pb2.PredictResponse.FromString(reply)
    assert array(answer.outputs["y"]).tolist() == [5, 6, 7, 8, 9]


def test_predict_content_wins_over_values(caller: Caller):
    # As in TensorFlow, typed fields are read only if there is no content.
    values = np.array([1, 2], np.float32)
    proto = tensor("float32", (2,), tensor_content=values.tobytes(), float_val=[8, 9])
    assert by_tensorflow(proto) == values.tobytes()
    assert_echoes(caller, "float32", proto, values)


def test_predict_ignores_field_of_other_dtype(caller: Caller):
    proto = tensor("int64", (2,), int_val=[8, 9])
    assert by_tensorflow(proto) == bytes(16)
    assert_echoes(caller, "int64", proto, np.zeros(2, np.int64))


def test_predict_bools_of_any_byte_arrive_as_true(caller: Caller):
    # A kernel that adds bools up as bytes must not see a 2.
    proto = tensor("bool", (4,), tensor_content=b"\x00\x01\x02\xff")
    assert array(echo(caller, "bool", proto)).tolist() == [False, True, True, True]


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


def test_predict_strings_in_content_keep_every_byte(caller: Caller):
    # TensorFlow writes them as varint lengths followed by the strings.
    lengths = b"".join(_varint(len(value)) for value in STRINGS)
    content = lengths + b"".join(STRINGS)
    proto = tensor("string", (len(STRINGS),), tensor_content=content)
    assert array(echo(caller, "string", proto)).tolist() == STRINGS


def test_predict_too_few_strings_repeat_last(caller: Caller):
    proto = tensor("string", (4,), string_val=[b"a", b"b\x00"])
    assert array(echo(caller, "string", proto)).tolist() == [b"a", b"b\x00", b"b\x00", b"b\x00"]
    assert array(echo(caller, "string", tensor("string", (2,)))).tolist() == [b"", b""]


@pytest.mark.parametrize("value", [b"", b"a\x00", b"x" * 1000])
def test_predict_scalar_string_arrives(caller: Caller, value: bytes):
    answer = echo(caller, "string", tensor("string", (), string_val=[value]))
    assert (shape_of(answer), list(answer.string_val)) == ((), [value])


def test_predict_tensor_of_many_megabytes_arrives(caller: Caller):
    # Larger than any buffer of the network, so that the content lies in many pieces.
    values = np.random.default_rng(2).integers(0, 2**63, 2_000_003, np.int64)
    proto = tensor("int64", values.shape, tensor_content=values.tobytes())
    assert_echoes(caller, "int64", proto, values)
    proto = tensor("int64", values.shape, int64_val=values.tolist())
    assert_echoes(caller, "int64", proto, values)


def test_predict_map_entry_sent_twice_counts_the_last(caller: Caller):
    first = request_of("float32", tensor("float32", (1,), float_val=[1.0]))
    second = predict_pb2.PredictRequest()
    second.inputs["x"].CopyFrom(tensor("float32", (1,), float_val=[2.0]))
    joined = first.SerializeToString() + second.SerializeToString()
    reply = caller.send_bytes("/tensorflow.serving.PredictionService/Predict", joined)
    answer = predict_pb2.PredictResponse.FromString(reply)
    assert array(answer.outputs["y"]).tolist() == [2.0]


def test_predict_unknown_fields_are_passed_over(caller: Caller):
    request = request_of("float32", tensor("float32", (1,), float_val=[1.0]))
    unknown = b"\xa2\x06\x03abc" + b"\x98\x06\x01" + b"\xa3\x06\x98\x06\x01\xa4\x06"
    reply = caller.send_bytes(
        "/tensorflow.serving.PredictionService/Predict", request.SerializeToString() + unknown
    )
    answer = predict_pb2.PredictResponse.FromString(reply)
    assert array(answer.outputs["y"]).tolist() == [1.0]


# --- Requested outputs and versions ---------------------------------------------------------------


def default_request(**more: Any) -> predict_pb2.PredictRequest:
    inputs = {"dense": np.ones((2, 3), np.float32), "ids": np.array([1, 2], np.int64)}
    return predict_request("echo", inputs, **more)


def test_predict_without_a_filter_answers_all_outputs(caller: Caller):
    outputs = caller.predict(default_request()).outputs
    assert {name: array(tensor).tolist() for name, tensor in outputs.items()} == {
        "sum": [3.0, 3.0],
        "next": [2, 3],
        "kind": b"echo",
    }


@pytest.mark.parametrize("names", [["sum"], ["kind", "next"], ["sum", "next", "kind"]])
def test_predict_with_a_filter_answers_those_outputs(caller: Caller, names: list[str]):
    request = default_request()
    request.output_filter.extend(names)
    outputs = caller.predict(request).outputs
    assert sorted(outputs) == sorted(names)
    values = {"sum": [3.0, 3.0], "next": [2, 3], "kind": b"echo"}
    assert {name: array(outputs[name]).tolist() for name in names} == {
        name: values[name] for name in names
    }


def test_predict_reply_names_version_and_signature(caller: Caller):
    spec = caller.predict(default_request()).model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("echo", 7, "serving_default")
    request = request_of("int8", tensor("int8", (1,)))
    assert caller.predict(request).model_spec.signature_name == "echo_int8"


def test_predict_signature_runs_own_part_of_graph(caller: Caller):
    fill = caller.outputs("echo", {"count": np.int32(3)}, signature_name="fill")
    pick = caller.outputs("echo", {"index": np.int32(1)}, signature_name="pick")
    assert fill["ones"].tolist() == [1.0, 1.0, 1.0]
    assert pick["value"].tolist() == 20


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


def test_predict_answers_pinned_or_latest_version(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    for version in (2, 5, 9):
        scale_model.write(base_path, version)
    config = tmp_path / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "scale" base_path: "{base_path}" '
        'model_platform: "tensorflow" model_version_policy { latest { num_versions: 2 } } } }'
    )
    server = start_server(model_config_file=config)
    for version in (5, 9):
        server.wait_until_available("scale", version)
    x = np.array([1.0, 10.0], np.float32)
    with caller_to(server.target) as caller:
        for asked, effective in ((None, 9), (5, 5), (9, 9)):
            response = caller.predict(predict_request("scale", {"x": x}, version=asked))
            assert response.model_spec.version.value == effective
            assert (
                array(response.outputs["y"]).tolist() == scale_model.answer(effective, x).tolist()
            )
            assert array(response.outputs["version"]) == effective


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])

"""Bad requests to a real server: each is refused with its gRPC code and a helpful message."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.base.protos import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
    tensor_pb2,
    tensor_shape_pb2,
    types_pb2,
)
from tests.integration.clients import (
    HEALTH_CHECK,
    PREDICT,
    SERVING,
    TIMEOUT_SECONDS,
    Caller,
    array,
    predict_request,
    refusal,
)
from tests.integration.model_host import ModelHost
from tests.integration.processes import address_space_mib_peak

METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

Change = Callable[[predict_pb2.PredictRequest], object]

MESSAGE_BYTES_MAX = 2**20
"""The limit for requests and replies."""

# Far above the needs of a small request (a thread's stack is 8 MiB), and far below the tensors that
# the requests here claim to have.
ALLOCATION_MIB_MAX = 128


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {"max_request_bytes": MESSAGE_BYTES_MAX, "max_reply_bytes": MESSAGE_BYTES_MAX}


@pytest.fixture(scope="module")
def server(module_host: ModelHost, echo_export: Path) -> ModelServer:
    return module_host.model(name="echo").serve(echo_export, 7).server


@pytest.fixture(autouse=True)
def _still_answers(caller: Caller) -> Iterator[None]:
    """Checks after each test of this module that the server still gives the right answer."""
    yield
    response = caller.predict(good_request())
    assert array(response.outputs["sum"]).tolist() == [3.0, 12.0]
    assert array(response.outputs["next"]).tolist() == [6]


def good_request(name: str = "echo") -> predict_pb2.PredictRequest:
    dense = np.arange(6, dtype=np.float32).reshape(2, 3)
    return predict_request(name, {"dense": dense, "ids": np.array([5], np.int64)})


def tensor(
    dtype: int, dims: list[int], content: bytes = b"", **fields: object
) -> tensor_pb2.TensorProto:
    shape = tensor_shape_pb2.TensorShapeProto(
        dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in dims]
    )
    return tensor_pb2.TensorProto(dtype=dtype, tensor_shape=shape, tensor_content=content, **fields)


def dense_is(proto: tensor_pb2.TensorProto) -> Change:
    return lambda request: request.inputs["dense"].CopyFrom(proto)


def dense_array_is(values: object) -> Change:
    return lambda request: request.inputs["dense"].CopyFrom(
        predict_request("", {"x": values}).inputs["x"]
    )


def _rename_ids(request: predict_pb2.PredictRequest) -> None:
    request.inputs["idz"].CopyFrom(request.inputs["ids"])
    del request.inputs["ids"]


def _float_dense(dims: list[int], content: bytes = b"", **fields: object) -> Change:
    return dense_is(tensor(types_pb2.DT_FLOAT, dims, content, **fields))


def _unknown_rank(request: predict_pb2.PredictRequest) -> None:
    request.inputs["dense"].tensor_shape.unknown_rank = True


# Each row has the change to a good request, the code, and fragments of the message: the bad value,
# and the remedy or a right value.
BAD_REQUESTS: dict[str, tuple[Change, grpc.StatusCode, tuple[str, ...]]] = {
    "no_model_spec": (
        lambda request: request.ClearField("model_spec"),
        INVALID_ARGUMENT,
        ("Missing ModelSpec", "set model_spec.name"),
    ),
    "no_name": (
        lambda request: request.model_spec.ClearField("name"),
        INVALID_ARGUMENT,
        ("ModelSpec has no name", "set model_spec.name"),
    ),
    "unknown_model": (
        lambda request: setattr(request.model_spec, "name", "ekko"),
        NOT_FOUND,
        ("ekko",),
    ),
    "unknown_version": (
        lambda request: setattr(request.model_spec.version, "value", 8),
        NOT_FOUND,
        ("echo", "8", "7"),
    ),
    "negative_version": (
        lambda request: setattr(request.model_spec.version, "value", -7),
        NOT_FOUND,
        ("echo", "-7"),
    ),
    "version_label": (
        lambda request: setattr(request.model_spec, "version_label", "canary"),
        INVALID_ARGUMENT,
        ("canary", "model 'echo' has no labels", "request a version, or neither"),
    ),
    "unknown_signature": (
        lambda request: setattr(request.model_spec, "signature_name", "classify"),
        FAILED_PRECONDITION,
        ("classify", "serving_default"),
    ),
    "init_op_as_signature": (
        lambda request: setattr(request.model_spec, "signature_name", "__saved_model_init_op"),
        FAILED_PRECONDITION,
        ("__saved_model_init_op",),
    ),
    "no_inputs": (
        lambda request: request.ClearField("inputs"),
        INVALID_ARGUMENT,
        ("Missing but required: {dense, ids}", "serving_default"),
    ),
    "missing_input": (
        lambda request: request.inputs.__delitem__("ids"),
        INVALID_ARGUMENT,
        ("Missing but required: {ids}",),
    ),
    "extra_input": (
        lambda request: request.inputs["more"].CopyFrom(request.inputs["ids"]),
        INVALID_ARGUMENT,
        ("Sent extra: {more}",),
    ),
    "misnamed_input": (
        _rename_ids,
        INVALID_ARGUMENT,
        ("Sent extra: {idz}", "Missing but required: {ids}"),
    ),
    "wrong_dtype": (
        dense_array_is(np.zeros((2, 3), np.float64)),
        INVALID_ARGUMENT,
        ("'dense'", "float32[?,3]", "float64[2,3]"),
    ),
    "text_for_numbers": (
        dense_array_is([["a", "b", "c"]]),
        INVALID_ARGUMENT,
        ("'dense'", "float32[?,3]", "string[1,3]"),
    ),
    "rank_too_low": (
        dense_array_is(np.zeros(3, np.float32)),
        INVALID_ARGUMENT,
        ("'dense'", "float32[?,3]", "float32[3]"),
    ),
    "no_dtype": (
        lambda request: request.inputs["dense"].ClearField("dtype"),
        INVALID_ARGUMENT,
        ("'dense'", "dtype 0", "set dtype"),
    ),
    "dtype_without_meaning": (
        lambda request: setattr(request.inputs["dense"], "dtype", 99),
        INVALID_ARGUMENT,
        ("'dense'", "dtype 99"),
    ),
    "dtype_of_a_reference": (
        lambda request: setattr(request.inputs["dense"], "dtype", types_pb2.DT_FLOAT_REF),
        INVALID_ARGUMENT,
        ("'dense'", "dtype 101"),
    ),
    "dtype_resource": (
        lambda request: setattr(request.inputs["dense"], "dtype", types_pb2.DT_RESOURCE),
        INVALID_ARGUMENT,
        ("'dense'", "resource"),
    ),
    "dtype_variant": (
        lambda request: setattr(request.inputs["dense"], "dtype", types_pb2.DT_VARIANT),
        INVALID_ARGUMENT,
        ("'dense'", "variant"),
    ),
    "content_too_short": (
        _float_dense([2, 3], bytes(20)),
        INVALID_ARGUMENT,
        ("'dense'", "20 bytes", "float32[2,3]", "24"),
    ),
    "content_too_long": (
        _float_dense([2, 3], bytes(28)),
        INVALID_ARGUMENT,
        ("'dense'", "28 bytes", "float32[2,3]", "24"),
    ),
    "content_for_an_empty_tensor": (
        _float_dense([0, 3], bytes(4)),
        INVALID_ARGUMENT,
        ("'dense'", "4 bytes", "float32[0,3]"),
    ),
    "too_many_values": (
        _float_dense([1, 3], float_val=[1, 2, 3, 4]),
        INVALID_ARGUMENT,
        ("'dense'", "4 values", "float32[1,3]", "3"),
    ),
    "negative_size": (
        _float_dense([-1, 3]),
        INVALID_ARGUMENT,
        ("'dense'", "-1"),
    ),
    "least_size": (
        _float_dense([-(2**63), 3]),
        INVALID_ARGUMENT,
        ("'dense'", str(-(2**63))),
    ),
    "shape_overflows": (
        _float_dense([2**32, 2**32], bytes(24)),
        INVALID_ARGUMENT,
        ("'dense'", f"[{2**32},{2**32}]"),
    ),
    "shape_overflows_at_its_last_size": (
        _float_dense([2**31, 2**31, 3], float_val=[1]),
        INVALID_ARGUMENT,
        ("'dense'", str(2**31)),
    ),
    "shape_whose_bytes_overflow": (
        _float_dense([2**61, 3], bytes(24)),
        RESOURCE_EXHAUSTED,
        ("'dense'", f"float32[{2**61},3]", "smaller"),
    ),
    "unknown_rank": (
        _unknown_rank,
        INVALID_ARGUMENT,
        ("'dense'", "unknown_rank"),
    ),
    "too_many_dimensions": (
        _float_dense([1] * 255, bytes(4)),
        INVALID_ARGUMENT,
        ("'dense'", "255", "254"),
    ),
    "filter_that_names_nothing": (
        lambda request: request.output_filter.append("product"),
        INVALID_ARGUMENT,
        ("product", "{kind, next, sum}"),
    ),
    "filter_that_names_an_input": (
        lambda request: request.output_filter.append("dense"),
        INVALID_ARGUMENT,
        ("dense", "{kind, next, sum}"),
    ),
    "filter_that_is_empty_text": (
        lambda request: request.output_filter.append(""),
        INVALID_ARGUMENT,
        ("''", "{kind, next, sum}"),
    ),
    "filter_that_names_one_twice": (
        lambda request: request.output_filter.extend(["sum", "sum"]),
        INVALID_ARGUMENT,
        ("sum", "twice"),
    ),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_predict_bad_request_names_value_and_remedy(caller: Caller, case: str):
    change, code, words = BAD_REQUESTS[case]
    request = good_request()
    change(request)
    got_code, message = refusal(lambda: caller.predict(request))
    assert (got_code, [word for word in words if word not in message]) == (code, []), message


@pytest.mark.parametrize("shape", [(2, 4), (1, 2, 3)])
def test_shape_that_the_kernels_take_is_answered(caller: Caller, shape: tuple[int, ...]):
    request = good_request()
    dense_array_is(np.ones(shape, np.float32))(request)
    sums = array(caller.predict(request).outputs["sum"])
    assert sums.tolist() == np.ones(shape).sum(axis=1).tolist()


HUGE_TENSORS = {
    # Each request names at least 1.2 GB and sends a few bytes.
    "content_contradicts": _float_dense([100_000_000, 3], bytes(24)),
    "values_are_too_many_bytes": _float_dense([200_000_000, 3], float_val=[1]),
    "overflow": _float_dense([2**40, 2**40], float_val=[1]),
    "negative": _float_dense([-(2**30), 3], float_val=[1]),
    "strings": dense_is(tensor(types_pb2.DT_STRING, [2**40, 3], string_val=[b"a"])),
    "empty_and_enormous": _float_dense([2**40, 2**30, 0]),
}


@pytest.mark.parametrize("case", HUGE_TENSORS)
def test_predict_impossible_shape_allocates_nothing(server: ModelServer, caller: Caller, case: str):
    request = good_request()
    HUGE_TENSORS[case](request)
    before_mib = address_space_mib_peak(server.process_id)
    refused = {refusal(lambda: caller.predict(request))[0] for _ in range(10)}
    assert refused <= {INVALID_ARGUMENT, RESOURCE_EXHAUSTED}
    assert address_space_mib_peak(server.process_id) - before_mib < ALLOCATION_MIB_MAX


def test_strict_shapes_are_refused_before_allocation(
    host: ModelHost, server: ModelServer, caller: Caller, echo_export: Path
):
    # 20 bytes on the wire that announce a vector of 1.2 GB, all ones, for an input of rank 2.
    strict = host.model(prefix="strict", settings={"input_shapes": "strict"}).serve(echo_export)
    request = good_request(strict.name)
    _float_dense([300_000_000], float_val=[1])(request)
    before_mib = address_space_mib_peak(server.process_id)
    code, message = refusal(lambda: caller.predict(request))
    assert (code, "float32[?,3]" in message) == (INVALID_ARGUMENT, True), message
    assert address_space_mib_peak(server.process_id) - before_mib < ALLOCATION_MIB_MAX


def test_predict_kernel_error_is_fault_of_caller(caller: Caller):
    request = predict_request("echo", {"index": np.int32(3)}, signature_name="pick")
    code, message = refusal(lambda: caller.predict(request))
    assert (code, "3" in message) == (INVALID_ARGUMENT, True), message


NO_PREDICT_REQUESTS = {
    "noise": b"\xff" * 40,
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "zeros": bytes(16),
    "cut_short": good_request().SerializeToString()[:-1],
    "cut_in_the_first_field": good_request().SerializeToString()[:2],
    "end_of_a_group_that_never_began": b"\x0c",
    "name_that_is_no_utf8": b"\x0a\x03\x0a\x01\xff",
    "endless_varint": b"\x08" + b"\x80" * 20,
    "groups_within_groups": b"\x0b" * 100_000,
}


@pytest.mark.parametrize("case", NO_PREDICT_REQUESTS)
def test_predict_unparsable_bytes_are_invalid(caller: Caller, case: str):
    message_bytes = NO_PREDICT_REQUESTS[case]
    code, message = refusal(lambda: caller.send_bytes(PREDICT, message_bytes))
    assert code == INVALID_ARGUMENT
    assert "tensorflow.serving.PredictRequest" in message
    assert str(len(message_bytes)) in message


def test_predict_empty_message_lacks_model_spec(caller: Caller):
    code, message = refusal(lambda: caller.send_bytes(PREDICT, b""))
    assert (code, "Missing ModelSpec" in message) == (INVALID_ARGUMENT, True), message


def test_predict_long_error_message_is_cut(caller: Caller):
    # A header of 1 MB would end the call with a protocol error instead of the reason.
    request = good_request()
    request.model_spec.name = "é" * 500_000
    code, message = refusal(lambda: caller.predict(request))
    assert code == NOT_FOUND
    assert message.endswith("...TRUNCATED")
    assert len(message.encode()) < 2_000


def metadata_request(**fields: object) -> bytes:
    serialized: bytes = get_model_metadata_pb2.GetModelMetadataRequest(**fields).SerializeToString()
    return serialized


def status_request(**fields: object) -> bytes:
    serialized: bytes = get_model_status_pb2.GetModelStatusRequest(**fields).SerializeToString()
    return serialized


ECHO = {"name": "echo"}
SIGNATURES = ["signature_def"]
BAD_QUESTIONS: dict[str, tuple[str, bytes, grpc.StatusCode, tuple[str, ...]]] = {
    "metadata_of_nothing": (
        METADATA,
        metadata_request(metadata_field=SIGNATURES),
        INVALID_ARGUMENT,
        ("Missing ModelSpec", "set model_spec.name"),
    ),
    "metadata_of_no_name": (
        METADATA,
        metadata_request(model_spec={}, metadata_field=SIGNATURES),
        INVALID_ARGUMENT,
        ("no name", "set model_spec.name"),
    ),
    "metadata_of_an_unknown_model": (
        METADATA,
        metadata_request(model_spec={"name": "ekko"}, metadata_field=SIGNATURES),
        NOT_FOUND,
        ("ekko",),
    ),
    "metadata_of_an_unknown_version": (
        METADATA,
        metadata_request(
            model_spec={"name": "echo", "version": {"value": 8}}, metadata_field=SIGNATURES
        ),
        NOT_FOUND,
        ("echo", "8"),
    ),
    "metadata_of_a_label": (
        METADATA,
        metadata_request(
            model_spec={"name": "echo", "version_label": "canary"}, metadata_field=SIGNATURES
        ),
        INVALID_ARGUMENT,
        ("canary",),
    ),
    "metadata_without_a_field": (
        METADATA,
        metadata_request(model_spec=ECHO),
        INVALID_ARGUMENT,
        ("metadata_field", "signature_def"),
    ),
    "metadata_of_an_unknown_field": (
        METADATA,
        metadata_request(model_spec=ECHO, metadata_field=["signature_def", "graph"]),
        INVALID_ARGUMENT,
        ("graph", "signature_def"),
    ),
    "metadata_of_noise": (METADATA, b"\xff\xff", INVALID_ARGUMENT, ("GetModelMetadataRequest",)),
    "status_of_nothing": (
        STATUS,
        status_request(),
        INVALID_ARGUMENT,
        ("Missing ModelSpec", "set model_spec.name"),
    ),
    "status_of_no_name": (
        STATUS,
        status_request(model_spec={}),
        INVALID_ARGUMENT,
        ("no name", "set model_spec.name"),
    ),
    "status_of_an_unknown_model": (
        STATUS,
        status_request(model_spec={"name": "ekko"}),
        NOT_FOUND,
        ("ekko", "configured: echo"),
    ),
    "status_of_an_unknown_version": (
        STATUS,
        status_request(model_spec={"name": "echo", "version": {"value": 8}}),
        NOT_FOUND,
        ("echo", "8", "7 (AVAILABLE)"),
    ),
    "status_of_a_label": (
        STATUS,
        status_request(model_spec={"name": "echo", "version_label": "canary"}),
        INVALID_ARGUMENT,
        ("canary",),
    ),
    "status_of_noise": (STATUS, b"\xff\xff", INVALID_ARGUMENT, ("GetModelStatusRequest",)),
    "health_of_a_stranger": (HEALTH_CHECK, b"\x0a\x04ekko", NOT_FOUND, ("ekko",)),
    "health_of_noise": (HEALTH_CHECK, b"\xff\xff", INVALID_ARGUMENT, ("HealthCheckRequest",)),
}


@pytest.mark.parametrize("case", BAD_QUESTIONS)
def test_server_bad_request_names_value_and_remedy(caller: Caller, case: str):
    method, request_bytes, code, words = BAD_QUESTIONS[case]
    got_code, message = refusal(lambda: caller.send_bytes(method, request_bytes))
    assert (got_code, [word for word in words if word not in message]) == (code, []), message


def test_server_non_http2_bytes_spare_connections(server: ModelServer, caller: Caller):
    for garbage in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x00\xff", bytes(5000)):
        with socket.create_connection(
            ("127.0.0.1", server.port), timeout=TIMEOUT_SECONDS
        ) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert caller.health("echo") == SERVING


def test_server_oversized_message_is_exhausted(caller: Caller):
    request = predict_request(
        "echo", {"dense": np.zeros((100_000, 3), np.float32), "ids": np.array([5])}
    )
    code, message = refusal(lambda: caller.predict(request))
    assert (code, str(MESSAGE_BYTES_MAX) in message) == (RESOURCE_EXHAUSTED, True), message


def test_server_oversized_reply_is_exhausted(caller: Caller):
    request = predict_request("echo", {"count": np.int32(300_000)}, signature_name="fill")
    code, message = refusal(lambda: caller.predict(request))
    assert (code, str(MESSAGE_BYTES_MAX) in message) == (RESOURCE_EXHAUSTED, True), message
    within = predict_request("echo", {"count": np.int32(200_000)}, signature_name="fill")
    assert len(array(caller.predict(within).outputs["ones"])) == 200_000
